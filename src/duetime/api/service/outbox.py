"""The outbox: what producers wrote in their own transactions and could not become a task."""

from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import UNSET, Struct, UnsetType

from duetime.admin.keys import Caller
from duetime.admin.types import Types
from duetime.api.bodies.requests import TaskRequest
from duetime.api.operations import Confined, Operation, Reply
from duetime.api.reach import Reach
from duetime.api.server.http import UNREADABLE, Answer, Request, Route, decode_json, json_answer, make_decoder
from duetime.api.tasks.filters import read_number_cursor, read_page
from duetime.api.tasks.judging import Judging
from duetime.api.tasks.operations import PAGES
from duetime.api.tasks.validation import TaskReader
from duetime.database.pool import Database
from duetime.errors import InvalidInput, NotFound
from duetime.lifecycle.submission.outbox import Outbox, Read
from duetime.long_work import LongWork
from duetime.model.task import DEFAULT_QUEUE, DetailedTask, NewTask
from duetime.views.outbox import Fits, OutboxView, RefusedView, find_number, list_fitting, list_refused
from duetime.views.patience import Patience

_TAG = "Outbox"
_ONE = "/v1/outbox/{id}"
_decode = make_decoder(TaskRequest)


class _Kind(Struct):
    """The fields that say where a task belongs."""

    type: str
    queue: str | UnsetType = UNSET


_decode_kind = msgspec.json.Decoder(_Kind).decode


class RefusedPage(Struct):
    """Some refused rows, by number; `next` is the cursor of the following page, null on the last one."""

    items: list[RefusedView]
    next: str | None


LIST_REFUSED = Operation(
    method="GET",
    path="/v1/outbox",
    name="list_refused",
    confined=Confined.PART,
    tag=_TAG,
    summary="List refused outbox rows, by number",
    description="Lists what producers wrote with `duetime.enqueue` and what could not become a task. Rows are kept "
    "as long as dead letters.",
    parameters=PAGES,
    replies={200: Reply("A page.", RefusedPage)},
    is_large=True,
)
GET_NUMBER = Operation(
    method="GET",
    path=_ONE,
    name="get_outbox",
    confined=Confined.PART,
    tag=_TAG,
    summary="Find out what happened to an outbox number",
    description="The id of its task is known for a day.",
    replies={200: Reply("The state of the outbox row.", OutboxView)},
)
RETRY_NUMBER = Operation(
    method="POST",
    path=_ONE + "/retry",
    name="retry_outbox",
    confined=Confined.PART,
    tag=_TAG,
    summary="Try a refused row again",
    description="The row keeps its number. It becomes a task, or it is refused again.",
    replies={202: Reply("The row waits to be tried, or it was accepted already.", OutboxView)},
)
DELETE_NUMBER = Operation(
    method="DELETE",
    path=_ONE,
    name="delete_outbox",
    confined=Confined.PART,
    tag=_TAG,
    summary="Delete a refused row",
    replies={204: Reply("The row was deleted.")},
)
OPERATIONS = [LIST_REFUSED, GET_NUMBER, RETRY_NUMBER, DELETE_NUMBER]


def reading(reader: TaskReader, turns: LongWork | None = None) -> Read:
    """Read a row as if it had been submitted when it was written."""

    judging = Judging(reader, turns)

    def read_by(reader: TaskReader, tenant: int, body: bytes, written_at: datetime) -> NewTask:
        request = decode_json(_decode, body)
        for name in ("unique", "debounce"):
            if getattr(request, name) is not None:
                raise InvalidInput.at(name, "not in the outbox: what commits becomes a task of its own")
        # For the same reason the flow control of the type is not applied to it.
        task = reader.read(request, tenant, written_at)
        return msgspec.structs.replace(task, flow=None) if isinstance(task, DetailedTask) else task

    async def read(tenant: int, body: bytes, written_at: datetime) -> NewTask:
        return await judging.one(tenant, lambda reader: read_by(reader, tenant, body, written_at))

    return read


@dataclass(frozen=True)
class OutboxCalls:
    database: Database
    outbox: Outbox
    types: Types
    reach: Reach
    patience: Patience

    def routes(self) -> list[Route]:
        return [
            Route(LIST_REFUSED, self.page),
            Route(GET_NUMBER, self.get),
            Route(RETRY_NUMBER, self.retry),
            Route(DELETE_NUMBER, self.delete),
        ]

    async def page(self, request: Request) -> Answer:
        cursor, limit = read_page(request.query())
        after = read_number_cursor(cursor, digits=18)
        caller, fits = request.caller, self._fits(request.caller)
        following: int | None
        if fits is None:
            found, has_more = await list_refused(self.database, caller.tenant, after, limit)
            following = found[-1].id if has_more else None
        else:
            look = self.patience.begin(caller.tenant)
            found, following = await list_fitting(self.database, caller.tenant, after, limit, fits, look)
        return json_answer(200, RefusedPage(found, None if following is None else str(following)))

    async def get(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, await self._find(request))

    async def retry(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        number = _number(request)
        if request.caller.is_confined:
            await self._find(request)
        if await self.outbox.retry(request.caller.tenant, number):
            return json_answer(202, OutboxView(number, "waiting"))
        # The retry was requested twice: the row waits, or has become a task.
        return json_answer(202, await self._find(request))

    async def delete(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        number = _number(request)
        if request.caller.is_confined:
            await self._find(request)
        if not await self.outbox.delete(request.caller.tenant, number):
            raise NotFound(f"nothing refused has the number {number}")
        return Answer(204, b"")

    async def _find(self, request: Request) -> OutboxView:
        number, caller = _number(request), request.caller
        found = await find_number(self.database, caller.tenant, number, self._fits(caller))
        task = None if found is None else found.task
        if found is None or (caller.is_confined and task is not None and not await self.reach.has(caller, task)):
            raise NotFound(
                f"nothing is known of number {number}: its transaction has not committed, "
                "or it was accepted more than a day ago"
            )
        return found

    def _fits(self, caller: Caller) -> Fits | None:
        """Return a check whether what a producer wrote is for a task that the caller reaches; None: it reaches all.

        What cannot be read has no type, so a confined key does not reach it.
        """

        def fits(body: bytes) -> bool:
            try:
                asked = _decode_kind(body)
            except UNREADABLE:
                return False
            queue = asked.queue
            if queue is UNSET:
                kind = self.types.kind(caller.tenant, asked.type)
                defaults = None if kind is None else kind.rules.defaults
                queue = (None if defaults is None else defaults.queue) or DEFAULT_QUEUE
            return caller.may_use(asked.type, queue)

        return fits if caller.is_confined else None


def _number(request: Request) -> int:
    number = _read_number(request.path["id"])
    if number is None:
        raise NotFound(f"there is no number {request.path['id'][:80]}")
    return number


def _read_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
