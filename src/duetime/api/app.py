"""The API as one ASGI application: from a request to its handler, and every error to a problem.

The order is fixed: path, method, key, body.  An error of duetime is answered as it
says; any other exception is a 500 whose request id is in the log together with the
cause, of which the client sees nothing.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol

import structlog

from duetime.admin.breakers import ForcedBreakers
from duetime.admin.keyring import Keys
from duetime.admin.keys import Caller
from duetime.admin.limits import LimitRules
from duetime.admin.types import Types
from duetime.api.auth import authenticate, need_right
from duetime.api.limits.breakers import BreakerCalls, BreakersOf
from duetime.api.limits.keys import LimitCalls
from duetime.api.limits.queues import QueueCalls
from duetime.api.problems import problem_of
from duetime.api.reach import Reach
from duetime.api.reference.page import Reference
from duetime.api.schedules.calendars import CalendarCalls
from duetime.api.schedules.handlers import ScheduleCalls
from duetime.api.server import request_id as request_ids
from duetime.api.server.bounds import Bodies, ClientGoneError
from duetime.api.server.connections import Connections
from duetime.api.server.express import Express
from duetime.api.server.http import PROBLEM_JSON, Answer, Receive, Request, Route, Router, Scope, Send, encode
from duetime.api.server.peers import Peers
from duetime.api.server.request_id import read_or_mint
from duetime.api.server.taking import LINE
from duetime.api.server.unsent import Line, Unsent
from duetime.api.service.cluster import Cluster
from duetime.api.service.health import Health
from duetime.api.service.metrics import MetricsCalls
from duetime.api.service.outbox import OutboxCalls
from duetime.api.tasks.dead import DeadLetters
from duetime.api.tasks.handlers import Tasks
from duetime.api.tasks.judging import Judging
from duetime.api.tasks.steer import Steer
from duetime.api.tasks.validation import EgressOf, TaskReader
from duetime.api.tenancy.keys import KeyCalls
from duetime.api.tenancy.signing import Administration
from duetime.api.tenancy.tenants import Tenancy
from duetime.api.tenancy.tiers import TierCalls
from duetime.api.types.handlers import TypeCalls
from duetime.api.workers.handlers import Beating, Leasing, Workers
from duetime.cluster.contract import NodeView
from duetime.config import DEFAULT_SILENCE_SECONDS
from duetime.database.pool import Database
from duetime.errors import DuetimeError, MethodNotAllowed, NotFound, Unauthorized, Unknown
from duetime.lifecycle.admission.admission import Admission
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.schedules.backfill import Backfills
from duetime.lifecycle.schedules.changes import Schedules
from duetime.lifecycle.schedules.recurrences import Recurrences
from duetime.lifecycle.submission.flow import FlowControl
from duetime.lifecycle.submission.outbox import Outbox
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.settle import Settler
from duetime.lifecycle.tasks.steer import Steering
from duetime.long_work import LongWork
from duetime.model.breaker_status import BreakerStatus
from duetime.model.vault import Vault
from duetime.telemetry import Sparing
from duetime.views.explain import LaneFeeder
from duetime.views.patience import Patience
from duetime.watchdog import describe_by

log = structlog.get_logger()

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_READS = frozenset({"GET", "HEAD"})
#: In a scope: the name of the caller's tenant, for the watchdog.
_TENANT = "duetime.tenant"
#: The caller of calls that need no key.
NOBODY = Caller(0, "", 0, "viewer")


class Feeding(Leasing, LaneFeeder, Protocol):
    """This node's feeder, or the feeders of all nodes that share the shards."""


class App:
    def __init__(
        self,
        *,
        database: Database,
        lanes: Lanes,
        submitter: Submitter,
        admission: Admission,
        feeder: Feeding,
        holders: Beating,
        settler: Settler,
        steering: Steering,
        schedules: Schedules,
        recurrences: Recurrences,
        backfills: Backfills,
        types: Types,
        limits: LimitRules,
        outbox: Outbox,
        breakers: ForcedBreakers,
        breakers_of: BreakersOf,
        tenant_breaker_of: Callable[[int], BreakerStatus | None],
        keys: Keys,
        turns: LongWork,
        is_ready: Callable[[], Awaitable[str | None]],
        nodes: Callable[[], list[NodeView]],
        node: str,
        vault: Vault | None = None,
        egress_of: EgressOf = lambda _: None,
        max_silence: float = DEFAULT_SILENCE_SECONDS,
        peers: Peers | None = None,
        connections: Connections | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        self._keys = keys
        #: The addresses of clients: of a connection, or behind a trusted proxy.
        self.peers = peers or Peers()
        self.connections = Connections(self.peers) if connections is None else connections
        self.unsent = unsent or Unsent(self.connections)
        self._clock = database.clock
        self._date = (0, b"")
        #: The first bytes of answers with that date, up to the length of their bodies.
        self._heads: dict[tuple[int, str, bool], bytes] = {}
        self._heads_of = b""
        self._bodies = Bodies()
        self._turns = turns
        #: Why calls that need a key are refused.
        self._refusal: Callable[[], DuetimeError] | None = None
        #: While the database is away, every request would otherwise log a line.
        self._not_served = Sparing()
        reach = Reach(database, lanes)
        self._workers = Workers(
            lanes,
            feeder,
            holders,
            settler,
            limits,
            keys,
            reach,
            database.clock,
            max_silence,
            turns,
            self.connections.bound_polls(),
        )
        judging = Judging(TaskReader(types, vault, egress_of), turns)
        flow = FlowControl(database, submitter, steering)
        #: How long lists and verbs look for what matches a filter.
        self.patience = patience = Patience(reading=self.unsent.reading)
        tasks = Tasks(database, lanes, submitter, flow, feeder, judging, admission, reach, turns, patience=patience)
        #: The fast path for single submissions.
        self.express = Express(tasks, keys, self.peers)
        self._router = Router(
            [
                *tasks.routes(),
                *Steer(database, lanes, steering, reach, patience, admission).routes(),
                *DeadLetters(database, lanes, steering, reach, patience, admission).routes(),
                *self._workers.routes(),
                *ScheduleCalls(database, schedules, backfills, judging, lanes, reach).routes(),
                *CalendarCalls(recurrences.calendars, schedules).routes(),
                *KeyCalls(database, keys).routes(),
                *Administration(database).routes(),
                *Tenancy(database).routes(),
                *TierCalls(database).routes(),
                *TypeCalls(types, lanes).routes(),
                *QueueCalls(limits, lanes).routes(),
                *LimitCalls(limits).routes(),
                *OutboxCalls(database, outbox, types, reach, patience).routes(),
                *BreakerCalls(breakers, breakers_of, tenant_breaker_of).routes(),
                *Cluster(nodes).routes(),
                *Health(is_ready).routes(),
                *MetricsCalls(keys, node).routes(),
                *Reference().routes(),
            ]
        )

    def end_polls(self) -> None:
        """Answer every worker's waiting poll at once, because the server stops."""
        self._workers.end_polls()

    def refuse(self, why: Callable[[], DuetimeError]) -> None:
        """Refuse every call that needs a key from now on: what this application knows is no longer valid."""
        self._refusal = why

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._serve(scope, receive, send)
            case "lifespan":
                await _live(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1003})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        request_id = read_or_mint(headers.get(request_ids.HEADER))
        # It is removed, because the connection keeps its last scope, and would so keep itself alive.
        line: Line | None = scope.pop(LINE, None)
        answering = self._answer(scope, receive, headers, request_id, line)
        try:
            answer = await self.judge(answering, scope["method"], scope["path"], request_id)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            # The server cancels a request only when its time to stop is over.
            error = Unknown("the node stopped while it worked on this; it may have been done")
            answer = problem_answer(error, request_id)
        if line is not None:
            line.answer_bytes = len(answer.body)
        await _send(answer, self._read_date(), request_id, scope["method"] == "HEAD", send)

    async def judge(self, answering: Awaitable[Answer], method: str, path: str, request_id: bytes) -> Answer:
        """Return the answer; for an error, the problem that describes it."""
        try:
            return await answering
        except ClientGoneError:
            raise
        except DuetimeError as error:
            if error.status >= 500 and (left_out := self._not_served.take()) is not None:
                log.warning(
                    "request not served",
                    request_id=request_id.decode(),
                    status=error.status,
                    code=error.code,
                    method=method,
                    path=path,
                    error=error.detail,
                    left_out=left_out,
                )
            return problem_answer(error, request_id)
        except Exception as error:
            log.exception("request failed", request_id=request_id.decode(), method=method, path=path)
            return problem_answer(_fault(request_id, error), request_id)

    def render(self, answer: Answer, *, keep_alive: bool, request_id: bytes) -> bytes:
        """The bytes of the answer, for a server that sends bytes."""
        date = self._read_date()
        if self._heads_of is not date:
            self._heads_of, self._heads = date, {}
        key = (answer.status, answer.content_type, keep_alive)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = b"HTTP/1.1 %d %s\r\ndate: %s\r\n%scontent-type: %s\r\ncontent-length: " % (
                answer.status,
                _PHRASES[answer.status],
                date,
                b"" if keep_alive else b"connection: close\r\n",
                answer.content_type.encode(),
            )
        more = b"".join([b"%s: %s\r\n" % header for header in answer.headers])
        return b"%s%d\r\nx-request-id: %s\r\n%s\r\n%s" % (head, len(answer.body), request_id, more, answer.body)

    def _read_date(self) -> bytes:
        """The time by the database's clock, which judges the times that clients send; a node's clock may be wrong."""
        now = self._clock.now_us() // 1_000_000
        if self._date[0] != now:
            self._date = (now, formatdate(now, usegmt=True).encode())
        return self._date[1]

    async def _answer(
        self, scope: Scope, receive: Receive, headers: dict[bytes, bytes], request_id: bytes, line: Line | None
    ) -> Answer:
        methods, path = self._router.find(scope)
        if not methods:
            raise NotFound("there is no such path; /docs lists them all")
        route = methods.get(scope["method"])
        if route is None:
            allowed = ", ".join(sorted(methods))
            error = MethodNotAllowed(f"this path takes {allowed}")
            answer = problem_answer(error, request_id)
            answer.headers += ((b"allow", allowed.encode()),)
            return answer
        if self._refusal is not None and route.operation.needs_key:
            raise self._refusal()
        request = Request(
            route.operation, scope, receive, headers, path, NOBODY, self._bodies, request_id, self.peers, self._turns
        )
        if route.operation.needs_key:
            request.caller = await authenticate(self._keys, headers, request.peer)
            scope[_TENANT] = request.caller.tenant_name
            need_right(request.caller, route.operation)
            if line is not None:
                line.tenant = request.caller.tenant
            if scope["method"] in _READS:
                return await self._answer_read(request, route)
        try:
            return await route.handler(request)
        finally:
            request.let_go()

    async def _answer_read(self, request: Request, route: Route) -> Answer:
        """Answer a call that changes nothing; refuse it if the client does not read its answers."""
        tenant = request.caller.tenant
        if not route.operation.is_large:
            self.unsent.check(tenant)
            return await route.handler(request)
        async with self.unsent.reading(tenant):
            if request.is_gone():
                raise ClientGoneError
            return await route.handler(request)


def _describe(variables: Mapping[str, Any]) -> tuple[str, str | None]:
    """The operation and the tenant of a request that is being answered."""
    request: Request | None = variables.get("request")
    tenant = None if request is None or request.caller is NOBODY else request.caller.tenant_name
    return variables["route"].operation.name, tenant


def _describe_sending(variables: Mapping[str, Any]) -> tuple[str, str | None]:
    """The operation and the tenant for the code around it, for example while the answer is sent."""
    scope: Scope = variables["scope"]
    methods, _ = variables["self"]._router.find(scope)
    return methods[scope["method"]].operation.name, scope.get(_TENANT)


describe_by(App._answer.__code__, _describe)
describe_by(App._serve.__code__, _describe_sending)


async def _send(answer: Answer, date: bytes, request_id: bytes, is_head: bool, send: Send) -> None:
    always = [(b"date", date), (request_ids.HEADER, request_id)]
    headers = [
        *always,
        (b"content-type", answer.content_type.encode()),
        (b"content-length", b"%d" % len(answer.body)),
        *answer.headers,
    ]
    if answer.status == 204:
        headers = [*always, *answer.headers]
    try:
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if is_head else answer.body})
    except BaseException:
        if answer.on_lost is not None:
            await answer.on_lost()
        raise


def problem_answer(error: DuetimeError, request_id: bytes) -> Answer:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if isinstance(error, Unauthorized):
        headers += ((b"www-authenticate", b'Bearer realm="duetime"'),)
    if error.retry_after is not None:
        headers += ((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))),)
    return Answer(error.status, encode(problem_of(error, request_id)), PROBLEM_JSON, headers)


def _fault(request_id: bytes, cause: Exception) -> DuetimeError:
    fault = DuetimeError(f"a fault of the server; its log has more under the request id {request_id.decode()}")
    fault.__cause__ = cause
    return fault


async def _live(receive: Receive, send: Send) -> None:
    """Confirm startup and shutdown: the server does both itself, and nothing here waits for them."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
