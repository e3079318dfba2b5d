"""The API on a real server and a real database, and a client that knows nothing of it."""

import asyncio
import io
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
import uvicorn

from duetime.admin.breakers import ForcedBreakers
from duetime.admin.keyring import Keys
from duetime.admin.keys import Role, create_key
from duetime.admin.limits import LimitRules
from duetime.admin.rules import TenantRules
from duetime.admin.tenants import create_tenant
from duetime.admin.types import Types
from duetime.api.app import App
from duetime.api.server.peers import Peers
from duetime.api.server.protocol import DuetimeProtocol
from duetime.api.service.outbox import reading
from duetime.api.tasks.validation import TaskReader
from duetime.budgets.allowance import Allowance
from duetime.cluster.contract import NodeView
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.lifecycle.admission.admission import Admission
from duetime.lifecycle.admission.pressure import Pressure
from duetime.lifecycle.admission.waiting import WaitingRoom, bound_waiting, count_waiting
from duetime.lifecycle.holders.holders import Holders
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.schedules.backfill import Backfills
from duetime.lifecycle.schedules.changes import Schedules
from duetime.lifecycle.schedules.recurrences import Recurrences
from duetime.lifecycle.submission.outbox import Outbox
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.onward import Onward
from duetime.lifecycle.tasks.settle import Settler
from duetime.lifecycle.tasks.steer import Steering
from duetime.long_work import LongWork
from duetime.model.breaker_status import TENANT_HOST, Forced
from duetime.model.tenant_breaker import BreakerRules
from duetime.model.vault import Vault
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.feed import Feeder
from duetime.scheduler.firing import Firing
from duetime.scheduler.relay import Relay
from duetime.scheduler.rulebook import put_together
from duetime.scheduler.tenant_breakers import TenantBreakers
from duetime.signals import AwaitedSignal, Signal

#: What seals secrets, where a test says nothing else.
A_VAULT = Vault([b"k" * 32])


@dataclass
class Reply:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def paths(self) -> list[str]:
        """The fields that a problem names."""
        return [error["path"] for error in self.json["errors"]]


@dataclass
class Serving:
    """A server on a free port, with the parts behind it."""

    app: App
    database: Database
    feeder: Feeder
    firing: Firing
    relay: Relay
    breakers: Breakers
    tenant_breakers: TenantBreakers
    lanes: Lanes
    onward: Onward
    session: aiohttp.ClientSession
    port: int
    admission: Admission
    #: By how many seconds the clock of the quotas is ahead.
    passed: list[float]
    types: Types
    limits: LimitRules
    outbox: Outbox
    rules: TenantRules
    #: Why the node is not ready, if there is a reason.
    reasons: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def obey(self) -> None:
        """What a node does twice a second."""
        rules = await self.rules.refresh()
        self.feeder.rule(rules.weights, rules.suspended)
        self.admission.rule(rules.quotas, rules.default)
        self.tenant_breakers.rule(rules.breakers)
        await self.types.refresh()
        await self.limits.refresh()
        await self.feeder.limit(put_together(rules.limits, self.limits, self.types, self.breakers))

    async def tenant(self, name: str, role: Role = "admin") -> "Api":
        tenant = await create_tenant(self.database, name)
        _, key = await create_key(self.database, tenant.id, role)
        return Api(self, tenant.id, name, key)


@dataclass
class Api:
    """The API as one tenant sees it."""

    serving: Serving
    tenant: int
    tenant_name: str
    key: str

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: Any = None,
        headers: dict[str, str] | None = None,
        key: str | None = None,
    ) -> Reply:
        """`body` is sent as JSON, `data` as it is; a header that is empty is left out."""
        sent = {"Authorization": f"Bearer {self.key if key is None else key}"}
        if body is not None or data is not None:
            sent["Content-Type"] = "application/json"
        if body is not None:
            data = json.dumps(body).encode()
        if isinstance(data, bytes):
            data = io.BytesIO(data)
        sent |= headers or {}
        async with self.serving.session.request(
            method,
            self.serving.url + path,
            data=data,
            headers={name: value for name, value in sent.items() if value},
            allow_redirects=False,
        ) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Reply:
        return await self.call("POST", path, body, **options)

    async def submit(self, **fields: Any) -> Any:
        """A task that is stored, as the answer shows it."""
        answer = await self.post("/v1/tasks", {"type": "test.task", **fields})
        assert answer.status == 202, answer.body
        return answer.json

    async def state(self, task: Any) -> str:
        answer = await self.get(f"/v1/tasks/{task['id']}")
        assert answer.status == 200, answer.body
        state: str = answer.json["state"]
        return state

    async def lease(self, worker: str = "w", **fields: Any) -> list[Any]:
        answer = await self.post("/v1/workers/lease", {"worker": worker, "max": 100, "wait": 5, **fields})
        assert answer.status == 200, answer.body
        tasks: list[Any] = answer.json["tasks"]
        return tasks

    async def settle(self, task: Any, outcome: str = "succeeded", worker: str = "w", **fields: Any) -> Any:
        settlement = {"id": task["id"], "attempt": task["attempt"], "outcome": outcome, **fields}
        answer = await self.post("/v1/workers/settle", {"worker": worker, "settlements": [settlement]})
        assert answer.status == 200, answer.body
        return answer.json

    async def bury(self, **fields: Any) -> Any:
        """A dead letter."""
        task = await self.submit(**fields)
        (leased,) = await self.lease()
        await self.settle(leased, "failed", error={"message": "no such user", "kind": "permanent"})
        return task

    async def attempted(self, attempts: int, size: int) -> str:
        """A task with so many failed attempts, each with an error of this size."""
        task: str = (await self.submit(delay="1h"))["id"]
        detail = json.dumps({"error": {"message": "x" * size, "kind": "transient"}}).encode()
        await self.serving.database.execute(
            """
            INSERT INTO attempt (lane, task, number, outcome, final, picked_at, started_at, completed_at, detail)
            SELECT task.lane, task.id, number, 2, false, now(), now(), now(), $2
              FROM task, generate_series(1, $3) AS number
             WHERE task.id = $1
            """,
            task,
            detail,
            attempts,
        )
        return task

    async def stored(self) -> int:
        """How many tasks of the tenant the database has."""
        rows = await self.serving.database.fetch(
            "SELECT count(*) AS tasks FROM task JOIN lane ON lane.id = task.lane WHERE lane.tenant = $1", self.tenant
        )
        tasks: int = rows[0]["tasks"]
        return tasks


class QuietServer(uvicorn.Server):
    """A server inside a test: signals stay the test runner's."""

    def install_signal_handlers(self) -> None:
        return None


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Look until it holds: often at first, then less, since each look costs what others wait for."""
    pause = 0.005
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, 0.05)


@asynccontextmanager
async def serve(
    database: Database, vault: Vault = A_VAULT, trusted_proxies: Sequence[str] = ()
) -> AsyncIterator[Serving]:
    lanes, partitions = Lanes(database), Partitions(database)
    await partitions.make_ahead()

    wake = Signal[Collection[uuid.UUID]]()
    onward = Onward(database, partitions, wake)
    turns = LongWork()
    passed = [0.0]

    def monotonic() -> float:
        return time.monotonic() + passed[0]

    breaker_rows_changed = AwaitedSignal[[]]()
    tenant_breakers = TenantBreakers(
        database,
        lanes,
        onward,
        BreakerRules(),
        changed=breaker_rows_changed,
        now_ms=lambda: database.clock.now_ms() + int(passed[0] * 1000),
    )
    feeder = Feeder(database, lanes, onward, tenant_breakers=tenant_breakers, turns=turns)
    wake.listen(feeder.wake)
    await feeder.start()
    holders = Holders(database, onward, on_ended=feeder.polls.forget)
    reasons: list[str] = []

    async def why_not_ready() -> str | None:
        return reasons[0] if reasons else None

    steering = Steering(database, partitions, wake)
    recurrences = Recurrences(database)
    types = Types(database)
    await types.refresh()
    limits = LimitRules(database)
    await limits.refresh()
    room = WaitingRoom(partial(count_waiting, database), partial(bound_waiting, database), monotonic=monotonic)
    await room.look()
    submitter = Submitter(database, lanes, partitions, wake, turns=turns)
    admission = Admission(Pressure(lambda: submitter.backlog), Allowance(None, monotonic=monotonic), room)
    schedules = Schedules(database, partitions, lanes, steering, recurrences, wake, admission)
    backfills = Backfills(database, partitions, recurrences, admission)
    firing = Firing(database, partitions, schedules, backfills, recurrences, steering, wake, room=admission)
    wake.listen(firing.wake)
    await firing.start()
    rules = TenantRules(database)
    reader = TaskReader(types, vault, rules.egress_of)
    outbox = Outbox(database, lanes, submitter, reading(reader), admission)
    breakers = Breakers(lanes.key_of, database.clock.now_ms)

    def obey(forced: Mapping[tuple[int, str], Forced]) -> None:
        breakers.obey({place: state for place, state in forced.items() if place[1] != TENANT_HOST})
        tenant_breakers.obey(forced)

    forced_breakers = ForcedBreakers(database, obey, tenant_breakers.refresh)
    breaker_rows_changed.listen(forced_breakers.changed)
    app = App(
        database=database,
        lanes=lanes,
        submitter=submitter,
        admission=admission,
        feeder=feeder,
        holders=holders,
        settler=Settler(database, holders, onward, turns=turns),
        steering=steering,
        schedules=schedules,
        recurrences=recurrences,
        backfills=backfills,
        types=types,
        limits=limits,
        outbox=outbox,
        breakers=forced_breakers,
        breakers_of=breakers.describe,
        tenant_breaker_of=tenant_breakers.status,
        keys=Keys(database),
        turns=turns,
        is_ready=why_not_ready,
        nodes=lambda: [NodeView("here", 256, True)],
        node="here",
        vault=vault,
        egress_of=rules.egress_of,
        peers=Peers(trusted_proxies),
    )
    server = QuietServer(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            lifespan="off",
            log_level="warning",
            http=DuetimeProtocol,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            # As a node has it: longer than the client keeps a connection that it may use again.
            timeout_keep_alive=75,
        )
    )
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        yield Serving(
            app,
            database,
            feeder,
            firing,
            Relay(outbox),
            breakers,
            tenant_breakers,
            lanes,
            onward,
            session,
            port,
            admission,
            passed,
            types,
            limits,
            outbox,
            rules,
            reasons,
        )
        app.end_polls()
    server.should_exit = True
    await running
    await admission.close()
    await firing.stop()
    await feeder.stop()
