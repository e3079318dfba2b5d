"""Queues: which exist, whether they run, and their limits.

A queue exists once a task was submitted to it, or something was set for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from duetime.admin.limits import MAX_COUNTED, MAX_RULES_PER_TENANT, Counted, LimitRule, LimitRules, QueueState
from duetime.api.auth import need_whole_queue
from duetime.api.bodies.seconds import Silence
from duetime.api.named import name_in_path
from duetime.api.operations import Confined, Operation, Reply
from duetime.api.problems import wrong_with_each
from duetime.api.schedules.reading import check_name
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.filters import read_page
from duetime.api.tasks.operations import PAGES
from duetime.errors import FieldError, InvalidInput, NotFound
from duetime.lifecycle.lanes import Lanes
from duetime.model.limits import Limits, LimitScope, wrong_with
from duetime.model.task import Kind, LaneKey

_TAG = "Administration"


class QueueRequest(Struct, forbid_unknown_fields=True):
    """What is set for a queue; what is left out stays as it is."""

    state: Annotated[QueueState | UnsetType, Meta(description="`paused`: no task of the queue starts.")] = UNSET
    limits: Annotated[
        Limits | UnsetType | None, Meta(description="All limits of the queue. null or an empty object removes them.")
    ] = UNSET
    max_silence: Annotated[
        Silence | UnsetType | None,
        Meta(
            description="The longest silence of workers that lease from the queue and do not set their own. null: "
            "the default of the server."
        ),
    ] = UNSET


class QueueView(Struct):
    """A queue; without a version nothing is set for it."""

    name: str
    state: QueueState
    limits: Limits
    lanes: int
    kinds: list[Literal["push", "pull"]]
    classes: list[str]
    version: int | None
    updated_at: datetime | None
    max_silence: float | None = None


class QueuePut(Struct):
    """The queue as it is now, and the effects on its tasks; counted up to 10,000."""

    name: str
    state: QueueState
    limits: Limits
    version: int
    updated_at: datetime
    running: int
    due: int
    notes: list[str]
    max_silence: float | None = None


class QueuePage(Struct):
    """Some queues, by name; `next` is the cursor of the following page, null on the last one."""

    items: list[QueueView]
    next: str | None


_decode = make_decoder(QueueRequest)
_ONE = "/v1/queues/{name}"
LIST_QUEUES = Operation(
    method="GET",
    path="/v1/queues",
    name="list_queues",
    confined=Confined.PART,
    tag=_TAG,
    summary="List the queues, by name",
    description="Lists each queue that a task was ever put into or that has settings.",
    parameters=PAGES,
    replies={200: Reply("A page.", QueuePage)},
)
GET_QUEUE = Operation(
    method="GET",
    path=_ONE,
    name="get_queue",
    confined=Confined.PART,
    tag=_TAG,
    summary="Get a queue",
    replies={200: Reply("The queue.", QueueView)},
)
PUT_QUEUE = Operation(
    method="PUT",
    path=_ONE,
    name="put_queue",
    confined=Confined.PART,
    tag=_TAG,
    summary="Pause or resume a queue, or set its limits and the longest silence of its workers",
    description="Takes effect on every node within a second. Running attempts continue, and nothing is lost.",
    body=QueueRequest,
    example={"limits": {"max_running": 10, "rate": 50.0}},
    replies={
        201: Reply("The settings were created.", QueuePut),
        200: Reply("The settings were changed, or they were the same already.", QueuePut),
    },
)
DELETE_QUEUE = Operation(
    method="DELETE",
    path=_ONE,
    name="delete_queue",
    confined=Confined.PART,
    tag=_TAG,
    summary="Delete the state and the limits of a queue, but not its tasks",
    replies={204: Reply("The queue is active and has no limits.")},
)
OPERATIONS = [LIST_QUEUES, GET_QUEUE, PUT_QUEUE, DELETE_QUEUE]


@dataclass(frozen=True)
class QueueCalls:
    rules: LimitRules
    lanes: Lanes

    def routes(self) -> list[Route]:
        return [
            Route(LIST_QUEUES, self.page),
            Route(GET_QUEUE, self.get),
            Route(PUT_QUEUE, self.put),
            Route(DELETE_QUEUE, self.delete),
        ]

    async def page(self, request: Request) -> Answer:
        cursor, limit = read_page(request.query())
        caller, tenant = request.caller, request.caller.tenant
        rules = {
            rule.name: rule for rule in await self.rules.page(tenant, LimitScope.QUEUE, "", MAX_RULES_PER_TENANT + 1)
        }
        keys = list((await self.lanes.of_tenant(tenant)).values())
        names = sorted(
            name
            for name in {key.queue for key in keys} | rules.keys()
            if (cursor is None or name > cursor) and caller.may_use(None, name)
        )
        following = names[limit - 1] if len(names) > limit else None
        by_queue: dict[str, list[LaneKey]] = {name: [] for name in names[:limit]}
        for key in keys:
            if key.queue in by_queue:
                by_queue[key.queue].append(key)
        views = [_view(name, rules.get(name), of_queue) for name, of_queue in by_queue.items()]
        return json_answer(200, QueuePage(views, following))

    async def get(self, request: Request) -> Answer:
        request.query()
        name, tenant = _reached_name(request), request.caller.tenant
        keys = (await self._lanes_of(tenant, name)).values()
        rule = await self.rules.find(tenant, LimitScope.QUEUE, name)
        if rule is None and not keys:
            raise NotFound(f"there is no queue {name[:80]}")
        return json_answer(200, _view(name, rule, keys))

    async def put(self, request: Request) -> Answer:
        request.query()
        name, caller = request.path["name"], request.caller
        need_whole_queue(caller, name)
        asked = await request.json(_decode, judge=lambda some: _check(name, some, is_part=True))
        _check(name, asked)
        limits = None if asked.limits is UNSET else asked.limits or Limits()
        state = None if asked.state is UNSET else asked.state
        is_new, rule = await self.rules.put(
            caller.tenant,
            LimitScope.QUEUE,
            name,
            limits=limits,
            state=state,
            max_silence=asked.max_silence,
            by=caller.key,
        )
        lanes = await self._lanes_of(caller.tenant, name)
        counted = await self.rules.count_tasks(list(lanes))
        done = QueuePut(
            rule.name,
            rule.state,
            rule.limits,
            rule.version,
            rule.updated_at,
            counted.running,
            counted.due,
            _notes(rule, counted) + ([] if lanes else ["no task was ever put into this queue"]),
            rule.max_silence,
        )
        return json_answer(201 if is_new else 200, done)

    async def delete(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        name, caller = _reached_name(request), request.caller
        need_whole_queue(caller, name)
        await self.rules.delete(caller.tenant, LimitScope.QUEUE, name, by=caller.key)
        return Answer(204, b"")

    async def _lanes_of(self, tenant: int, queue: str) -> Mapping[int, LaneKey]:
        return {lane: key for lane, key in (await self.lanes.of_tenant(tenant)).items() if key.queue == queue}


def _check(name: str, asked: QueueRequest, *, is_part: bool = False) -> None:
    """Raise everything that is wrong; `is_part`: only some of the request could be read."""
    errors = wrong_with_each(lambda: check_name(name))
    if isinstance(asked.limits, Limits):
        errors += [FieldError(f"limits.{field}", right) for field, right in wrong_with(asked.limits, is_part=is_part)]
    if errors:
        raise InvalidInput.all(errors)


def _view(name: str, rule: LimitRule | None, keys: Iterable[LaneKey]) -> QueueView:
    keys = list(keys)
    kinds: list[Literal["push", "pull"]] = []
    kinds += ["pull"] if any(key.kind is Kind.PULL for key in keys) else []
    kinds += ["push"] if any(key.kind is Kind.PUSH for key in keys) else []
    classes = [priority.word for priority in sorted({key.priority for key in keys})]
    if rule is None:
        return QueueView(name, "active", Limits(), len(keys), kinds, classes, None, None)
    return QueueView(
        name, rule.state, rule.limits, len(keys), kinds, classes, rule.version, rule.updated_at, rule.max_silence
    )


def _notes(rule: LimitRule, counted: Counted) -> list[str]:
    """What the rule does to existing tasks."""
    notes, most = [], rule.limits.max_running
    if rule.state == "paused":
        notes.append(f"the queue is paused: nothing of it starts; {_many(counted.due)} due now")
    if most == 0:
        notes.append(f"max_running is 0: nothing of the queue starts; {_many(counted.due)} due now")
    elif most is not None and counted.running > most:
        notes.append(f"{_many(counted.running)} running, more than max_running: they go on, and none starts meanwhile")
    return notes


def _many(tasks: int) -> str:
    if tasks == 1:
        return "1 task is"
    return f"{tasks:,}{' or more' if tasks == MAX_COUNTED else ''} tasks are"


def _reached_name(request: Request) -> str:
    name = name_in_path(request, "queue")
    if not request.caller.may_use(None, name):
        raise NotFound(f"there is no queue {name[:80]}")
    return name
