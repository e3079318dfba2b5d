"""Everything that limits and types do at once, by chance.

At the end nothing waits for ever, nothing is still counted, and nobody got what it does not handle.
"""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from duetime.admin.invariants import check_invariants
from duetime.budgets.postgres import PostgresBudgets
from duetime.database.pool import Database
from duetime.lifecycle import lanes as lanes_module
from duetime.model.limits import Limits, TypeLimits
from duetime.model.task import Kind, LeasedTask, Options, Outcome, Target
from duetime.scheduler import gating
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.feed import Ask, Feeder
from duetime.scheduler.rulebook import Book
from engine import Engine, submitted

STEPS = 80
KEYS = ("a", "b", "c")
TYPES = ("a", "b", "c")
#: What workers handle; None: everything.
HANDLED = (None, frozenset({"a"}), frozenset({"b"}), frozenset({"a", "c"}))
HOST = "x.example:80"
LIMITS = (
    *(None, Limits(max_running=0), Limits(max_running=1), Limits(max_running=2, strict=True)),
    *(Limits(rate=30, burst=2), Limits(max_running=2, rate=50)),
)
OF_TYPE = (None, TypeLimits(max_running=2), TypeLimits(max_running=3, rate=40, rate_key="shop"))
OUTCOMES = (Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RELEASED, Outcome.SNOOZED)


class Storm:
    def __init__(self, engine: Engine, feeders: Sequence[Feeder], breakers: Breakers, chance: random.Random) -> None:
        self.engine, self.feeders, self.breakers, self.chance = engine, feeders, breakers, chance
        #: Of types, so that the other events stay the same.
        self.kinds = random.Random(1)
        self.tasks: list[uuid.UUID] = []
        self.running: list[tuple[str, LeasedTask]] = []

    async def step(self) -> None:
        chance, steering = self.chance, self.engine.steering
        some = chance.sample(self.tasks, min(4, len(self.tasks)))
        match chance.choices(range(8), (25, 35, 20, 4, 5, 5, 4, 2))[0]:
            case 0:
                await self.submit(chance.randrange(1, 12))
            case 1:
                await self.lease(0.02)
            case 2:
                await self.settle(chance.randrange(len(self.running) + 1), chance.choice(OUTCOMES))
            case 3:
                await steering.cancel(some)
            case 4:
                await steering.pause(some)
                await (steering.resume if chance.random() < 0.5 else steering.run_now)(some)
            case 5:
                await self.limit(self.book())
            case 6:
                self.suspend(chance.random() < 0.5)
                self.breakers.obey({(self.engine.tenant, HOST): "open"} if chance.random() < 0.5 else {})
            case _:
                await self.engine.lapse(chance.choice(["w1", "w2"]))

    async def submit(self, count: int) -> None:
        new = []
        for _ in range(count):
            is_push = self.chance.random() < 0.2
            options = Options(
                concurrency_key=self.chance.choice([None, *KEYS]),
                rate_key=self.chance.choice([None, *KEYS]),
                target=Target(f"http://{HOST}/") if is_push else None,
            )
            payload = b'{"shop": %d}' % self.chance.randrange(3)
            task = self.engine.new_task(payload, type=self.kinds.choice(TYPES), options=options)
            key = self.engine.lane_key(kind=Kind.PUSH if is_push else Kind.PULL)
            new.append(msgspec.structs.replace(task, lane=key))
        self.tasks += [submitted(each) for each in await self.engine.submitter.submit(new)]

    async def lease(self, wait: float) -> None:
        worker, feeder = self.chance.choice(["w1", "w2"]), self.chance.choice(self.feeders)
        holder = await self.engine.holders.register(self.engine.tenant, worker)
        kind = self.chance.choice([Kind.PULL, Kind.PUSH])
        types = self.kinds.choice(HANDLED) if kind is Kind.PULL else None
        ask = Ask(holder, self.engine.tenant, kind, None, frozenset(), self.chance.randrange(1, 20), types)
        leased = await feeder.lease(ask, wait)
        assert all(task.type in (types or TYPES) for task in leased)
        self.running += [(worker, task) for task in leased]

    async def settle(self, count: int, outcome: Outcome) -> None:
        self.chance.shuffle(self.running)
        ended, self.running = self.running[:count], self.running[count:]
        for worker in ("w1", "w2"):
            mine = [task for holder, task in ended if holder == worker]
            wait = None if outcome is Outcome.SUCCEEDED else 0.0
            await self.engine.settle(mine, outcome, worker=worker, retry_after=wait)
        for _, task in ended:
            self.breakers.report(task, "ok" if outcome is Outcome.SUCCEEDED else "abandoned")

    async def limit(self, book: Book) -> None:
        for feeder in self.feeders:
            await feeder.limit(book)

    def suspend(self, is_suspended: bool) -> None:
        for feeder in self.feeders:
            feeder.rule({}, frozenset({self.engine.tenant} if is_suspended else ()))

    def book(self) -> Book:
        tenant = frozenset({self.engine.tenant})
        limits = {key: self.chance.choice(LIMITS) for key in KEYS}
        whole, of_type = self.chance.choice(LIMITS), self.chance.choice(OF_TYPE)
        return Book(
            tenants={} if whole is None else {self.engine.tenant: whole},
            paused=frozenset({(self.engine.tenant, "default")} if self.chance.random() < 0.1 else ()),
            type_limits=lambda tenant, name: of_type,
            typed=tenant if of_type is not None else frozenset(),
            key_limits=lambda tenant, key: limits[key],
            keyed=tenant,
            slowed=self.breakers.is_slowed,
            has_slowed=self.breakers.has_slowed,
        )

    def calm(self) -> Book:
        """Limits that let everything through, one after the other."""
        return Book(
            tenants={self.engine.tenant: Limits(max_running=10)},
            key_limits=lambda tenant, key: Limits(max_running=3, strict=True),
            keyed=frozenset({self.engine.tenant}),
            slowed=self.breakers.is_slowed,
            has_slowed=self.breakers.has_slowed,
        )

    async def drain(self) -> None:
        self.suspend(False)
        self.breakers.obey({})
        await self.limit(self.calm())
        for worker in ("w1", "w2"):
            await self.engine.lapse(worker)
        for _, task in self.running:
            # A probe of which nobody speaks is waited for, ten minutes long.
            self.breakers.report(task, "abandoned")
        self.running.clear()
        await self.engine.steering.resume(self.tasks)
        open_tasks = "SELECT FROM due WHERE lane >= 256 UNION ALL SELECT FROM claim"
        async with asyncio.timeout(60.0):
            while await self.engine.database.fetch(open_tasks):
                await self.lease(0.05)
                await self.settle(len(self.running), Outcome.SUCCEEDED)


@asynccontextmanager
async def raging(database: Database, seed: int, nodes: int) -> AsyncIterator[Storm]:
    engine = await Engine.open(database)
    await engine.lanes.ensure(engine.lane_key())
    breakers = Breakers(engine.lanes.key_of, database.clock.now_ms)
    feeders = [
        Feeder(database, engine.lanes, engine.onward, breakers=breakers, budgets=PostgresBudgets(database))
        for _ in range(nodes)
    ]
    for feeder in feeders:
        engine.wake_also(feeder.wake)
        engine.ended.listen(feeder.ended)
        await feeder.share({engine.tenant: nodes} if nodes > 1 else {})
        await feeder.start()
    yield Storm(engine, feeders, breakers, random.Random(seed))
    for feeder in feeders:
        await feeder.stop()


@pytest.mark.parametrize(("seed", "nodes", "gates"), [(1, 1, 500), (2, 1, 2), (3, 2, 500)])
async def test_nothing_waits_for_ever_and_nothing_is_counted_that_is_over(
    database: Database, monkeypatch: pytest.MonkeyPatch, seed: int, nodes: int, gates: int
) -> None:
    monkeypatch.setattr(lanes_module, "MAX_GATES_PER_TENANT", gates)
    monkeypatch.setattr(gating, "NO_LANE_MS", 100)
    async with raging(database, seed, nodes) as storm:
        await storm.limit(storm.book())
        for _ in range(STEPS):
            await storm.step()

        await storm.drain()

        assert len(storm.tasks) > STEPS
        assert await check_invariants(database, deep=True) == []
        for feeder in storm.feeders:
            await feeder._gates.notice_ended()
            governor = feeder._core.governor
            assert governor.running == {}
            meters = [meter for meters in governor._meters.values() for meter in meters.values()]
            assert [meter for meter in meters if meter.running or meter.promised] == []
            assert not feeder._gates._approached
