"""Breakers of target hosts and of the tenant: what they let through and why, and forcing them by hand."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from duetime.admin.breakers import MAX_NOTE_CHARACTERS, ForcedBreaker, ForcedBreakers
from duetime.api.operations import Operation, Reply
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.filters import not_a_cursor, read_page
from duetime.api.tasks.operations import PAGES
from duetime.clock import from_ms
from duetime.errors import FieldError, InvalidInput
from duetime.model.breaker_status import TENANT_HOST, BreakerStatus, Forced, State
from duetime.model.origin import read_host

_TAG = "Administration"
_RIGHT_HOST = "must be a host and its port, such as api.example.com:443, or `tenant`"
HOST_PATTERN = r"^(tenant|([a-z0-9._-]+|\[[0-9a-f:.]+\]):[1-9][0-9]{0,4})$"

#: The tenant's breakers that are forced or not simply closed, on whichever node they are.
BreakersOf = Callable[[int], Awaitable[list[BreakerStatus]]]


class BreakerRequest(Struct, forbid_unknown_fields=True):
    """The state that a breaker is to be held in."""

    state: Annotated[
        Literal["open", "closed", "auto"],
        Meta(
            description="`open`: no calls are made. `closed`: calls are not limited. `auto`: the breaker decides "
            "by itself again."
        ),
    ]
    note: Annotated[
        str,
        Meta(
            max_length=MAX_NOTE_CHARACTERS,
            description="The reason, in one line. It is shown with the breaker.",
            extra_json_schema={"format": "printable"},
        ),
    ] = ""


class BreakerView(Struct):
    """What is let through to a target host, or for the whole tenant, and why."""

    host: Annotated[
        str,
        Meta(description="The target host. `tenant`: all tasks of the tenant, both HTTP calls and tasks of workers."),
    ]
    state: State
    reason: str
    next_probe_at: Annotated[datetime | None, Meta(description="When calls begin again, if none are made now.")]
    allowed_rate: Annotated[
        float | None, Meta(description="Calls that may start per second. null: not limited. 0: none, or only probes.")
    ]
    calls: Annotated[
        int,
        Meta(
            description="Calls that were judged most recently, at most those of the last 30 s. For `tenant`: the "
            "attempts that ended before it was stopped."
        ),
    ]
    failures: Annotated[int, Meta(description="How many of these calls failed.")]
    forced: Annotated[Forced | None, Meta(description="The state that it is forced into. null: it decides by itself.")]
    note: str


class BreakerPage(Struct):
    """Some breakers, by host; `next` is the cursor of the following page, null on the last one."""

    items: list[BreakerView]
    next: str | None


_decode = make_decoder(BreakerRequest)
LIST_BREAKERS = Operation(
    method="GET",
    path="/v1/breakers",
    name="list_breakers",
    tag=_TAG,
    summary="List the breakers that limit calls or are forced, by host",
    description="A host that is not listed is called as fast as there is work. `tenant` is the tenant's own breaker, "
    "which holds back all of its tasks.",
    parameters=PAGES,
    replies={200: Reply("A page.", BreakerPage)},
)
PUT_BREAKER = Operation(
    method="PUT",
    path="/v1/breakers/{host}",
    name="put_breaker",
    tag=_TAG,
    summary="Force a breaker open or closed, or let it decide by itself again",
    description="Takes effect on every node within a second. After `open`, `auto` starts with probes. After "
    "`closed`, it starts without any history. The host `tenant` is the tenant's own breaker: after `open`, "
    "`auto` lets the tenant's tasks start slowly again.",
    body=BreakerRequest,
    example={"state": "open", "note": "maintenance until noon"},
    replies={200: Reply("The breaker as it is now.", BreakerView)},
)
OPERATIONS = [LIST_BREAKERS, PUT_BREAKER]


@dataclass(frozen=True)
class BreakerCalls:
    forced: ForcedBreakers
    breakers_of: BreakersOf
    tenant_breaker_of: Callable[[int], BreakerStatus | None]

    def routes(self) -> list[Route]:
        return [Route(LIST_BREAKERS, self.page), Route(PUT_BREAKER, self.put)]

    async def page(self, request: Request) -> Answer:
        cursor, limit = read_page(request.query())
        after = cursor or ""
        if after and not _is_right(after):
            raise not_a_cursor()
        found = await self._read(request.caller.tenant)
        hosts = sorted(host for host in found if host > after)
        following = hosts[limit - 1] if len(hosts) > limit else None
        return json_answer(200, BreakerPage([found[host] for host in hosts[:limit]], following))

    async def put(self, request: Request) -> Answer:
        request.query()
        host, tenant = request.path["host"].lower(), request.caller.tenant

        def check(some: BreakerRequest) -> None:
            errors = [] if _is_right(host) else [FieldError("host", _RIGHT_HOST)]
            if not some.note.isprintable():
                errors.append(FieldError("note", "must be one line of printable text"))
            if errors:
                raise InvalidInput.all(errors)

        asked = await request.json(_decode, judge=check)
        check(asked)
        await self.forced.put(tenant, host, asked.state, asked.note, by=request.caller.key)
        found = await self._read(tenant)
        return json_answer(200, found.get(host) or BreakerView(host, "closed", "", None, None, 0, 0, None, ""))

    async def _read(self, tenant: int) -> dict[str, BreakerView]:
        forced = await self.forced.of_tenant(tenant)
        live = {each.host: each for each in await self.breakers_of(tenant)}
        if (own := self.tenant_breaker_of(tenant)) is not None:
            live[own.host] = own
        return {host: _view(host, live.get(host), forced.get(host)) for host in {*forced, *live}}


def _is_right(host: str) -> bool:
    return host == TENANT_HOST or read_host(host) == host


def _view(host: str, live: BreakerStatus | None, forced: ForcedBreaker | None) -> BreakerView:
    """The stored state decides: the node that calls the host follows it within a second."""
    calls, failures = (live.calls, live.failures) if live is not None else (0, 0)
    if forced is not None:
        rate = 0.0 if forced.forced == "open" else None
        why = f"it is held {forced.forced} by hand"
        return BreakerView(host, forced.forced, why, None, rate, calls, failures, forced.forced, forced.note)
    assert live is not None
    probe_at = None if live.next_probe_ms is None else from_ms(live.next_probe_ms)
    return BreakerView(host, live.state, live.reason, probe_at, live.allowed_rate, calls, failures, live.forced, "")
