"""A node of the simulation: the shipping parts, wired as a node wires them, on simulated time and tables.

What stands for the API here hands requests of clients and workers to the same
parts as the API does.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, cast
from uuid import UUID

import asyncpg

from duetime.admin.breakers import ForcedBreakers
from duetime.clock import DatabaseClock, from_ms
from duetime.cluster.postgres import PostgresCoordinator
from duetime.config import Config
from duetime.database.connections import Connect, Connections
from duetime.database.lineage import Lineage
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import SCHEDULE_LANES_END
from duetime.lifecycle.holders.holders import BEGIN_WITHIN_SECONDS, Holders, Named
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.schedules.backfill import Backfills
from duetime.lifecycle.schedules.changes import Schedules
from duetime.lifecycle.schedules.recurrences import Recurrences
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.onward import Onward
from duetime.lifecycle.tasks.settle import Settler
from duetime.lifecycle.tasks.steer import Steering
from duetime.long_work import LongWork
from duetime.model.attempt import Attempt, Past
from duetime.model.task import LeasedTask
from duetime.parts import Shared
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.clock_sync import ClockSync
from duetime.scheduler.feed import Feeder
from duetime.scheduler.firing import Firing
from duetime.scheduler.forwarding import Forwarding
from duetime.scheduler.liveness import Liveness, Watch
from duetime.scheduler.membership import Membership
from duetime.scheduler.messenger import Messenger
from duetime.scheduler.plan import Ask
from duetime.scheduler.routing import Routing
from duetime.scheduler.rulebook import Book
from duetime.scheduler.shared_holders import SharedHolders
from duetime.scheduler.tenant_shards import TenantShards
from duetime.signals import Signal, ignore
from simulation.checked_core import CheckedCore, DeafCore, StubbornCore
from simulation.clients import LIMITED_TENANT, LIMITS
from simulation.loop import Process

if TYPE_CHECKING:
    from simulation.world import World


_LONG_SECONDS = 1.0


@dataclass(frozen=True)
class Lease:
    """The answer to a poll."""

    tasks: list[LeasedTask]
    begin_within: float
    holder: int


class _HastyWatch(Watch):
    """Takes a database that was away, or its own standing still, for silence of the holders."""

    def look(
        self, beats: Mapping[int, int], at: float, silences: Mapping[int, float] = MappingProxyType({})
    ) -> list[tuple[int, int]]:
        self._looked_at = None
        return super().look(beats, at, silences)

    def interrupted(self) -> None:
        pass


class _Connections(Connections):
    """Notes since when somebody waits for one."""

    def __init__(self, connect: Connect, size: int, time: Callable[[], float]) -> None:
        super().__init__(connect, size)
        self._time = time
        self._asked_at: dict[object, float] = {}
        self._short_at = float("-inf")

    async def take(self, timeout: float) -> asyncpg.Connection:
        asked, asked_at = object(), self._time()
        self._asked_at[asked] = asked_at
        try:
            return await super().take(timeout)
        finally:
            del self._asked_at[asked]
            if self._time() - asked_at > _LONG_SECONDS:
                self._short_at = self._time()

    @property
    def short_at(self) -> float:
        """When somebody last waited for long."""
        now = self._time()
        return now if any(now - at > _LONG_SECONDS for at in self._asked_at.values()) else self._short_at


class Life:
    """A node from its start to its end."""

    def __init__(self, world: "World", name: str, process: Process) -> None:
        self.process = process
        self.is_ready = False
        self.began_at = world.now
        #: When the process last stood still, and until when.
        self.paused_until = world.now
        faults, time = world.faults, world.loop.time
        self.connections = _Connections(world.server.connect, Config().database_connections, time)
        self.database = database = Database("simulated", self.connections, DatabaseClock(time), Lineage())
        turns = LongWork(time)
        chance = random.Random(world.chance.getrandbits(32))
        rows_put, attempts_ended = Signal[Collection[UUID]](), Signal[Sequence[Past]]()
        self.partitions = Partitions(database)
        self.lanes = Lanes(database, time)
        self.onward = Onward(database, self.partitions, rows_put, chance, on_ended=attempts_ended)
        make_core = (
            DeafCore if faults.forgets_wakes_in_flight else StubbornCore if faults.keeps_hint_on_wake else CheckedCore
        )
        self.feeder = Feeder(
            database,
            self.lanes,
            self.onward,
            turns=turns,
            make_core=partial(make_core, world, name),
            monotonic=time,
        )
        self.core = cast(CheckedCore, self.feeder._core)
        self.holders = Holders(database, self.onward, time, on_ended=self.feeder.polls.forget)
        self.settler = Settler(database, self.holders, self.onward, turns=turns, monotonic=time)
        self.submitter = Submitter(
            database, self.lanes, self.partitions, rows_put, holders=self.feeder, turns=turns, monotonic=time
        )
        self.steering = Steering(database, self.partitions, rows_put, on_ended=attempts_ended)
        self.shared: Shared | None = None
        rows_here = Signal[Collection[UUID]]() if world.is_sharing else rows_put
        if world.is_sharing:
            self.shared = self._share(world, name, rows_here)
            rows_put.listen(self.shared.routing.wake)
            attempts_ended.listen(self.shared.routing.ended)
        else:
            attempts_ended.listen(self.feeder.ended)
        recurrences = Recurrences(database, turns, time)
        self.firing = Firing(
            database,
            self.partitions,
            Schedules(database, self.partitions, self.lanes, self.steering, recurrences, rows_put),
            Backfills(database, self.partitions, recurrences),
            recurrences,
            self.steering,
            rows_put,
            feeds=self.feeder.feeds,
            has_duty=lambda duty: self.shared is None or self.shared.membership.has_duty(duty),
            monotonic=time,
        )
        rows_here.listen(self.feeder.wake)
        rows_here.listen(self.firing.wake)
        self.liveness = Liveness(
            database,
            self.holders,
            self.onward,
            self.feeder.polls,
            monotonic=time,
            watch=_HastyWatch() if faults.lapses_while_away else None,
            on_lapsed=ignore if self.shared is None else self.shared.holders.tell_ended,
        )
        self.clock_sync = ClockSync(database)

    def _share(self, world: "World", name: str, rows_here: Signal[Collection[UUID]]) -> Shared:
        database, time = self.database, world.loop.time
        messenger, shards = Messenger(name, b"secret"), TenantShards(database, time)
        coordinator = PostgresCoordinator(database, "cluster", time)
        membership = Membership(messenger, coordinator, database, self.feeder, self.lanes)
        routing = Routing(
            messenger,
            membership,
            shards,
            self.feeder,
            self.lanes,
            Breakers(self.lanes.key_of, database.clock.now_ms, name_of=self.lanes.tenant_name),
            ForcedBreakers(database, ignore),
            woken=rows_here,
            ended=self.feeder.ended,
            records_of=lambda tenants: {},
        )
        forwarding = Forwarding(messenger, membership, routing, shards, self.feeder, self.lanes, self.holders)
        return Shared(membership, routing, forwarding, SharedHolders(messenger, membership, self.holders))

    async def start(self) -> None:
        await self.database.read_clock()
        await self.partitions.make_ahead()
        await self.lanes.load()
        self.clock_sync.loop.start()
        if self.shared is not None:
            await self.shared.membership.join()
        await self.feeder.limit(
            Book(
                type_limits=lambda tenant, type: LIMITS[type] if tenant == LIMITED_TENANT else None,
                typed=frozenset({LIMITED_TENANT}),
            )
        )
        await self.feeder.start()
        await self.firing.start()
        self.liveness.loop.start()
        self.is_ready = True

    @property
    def disturbed_at(self) -> float:
        """When it last stood still, or had too few connections."""
        return max(self.paused_until, self.connections.short_at)

    def low(self, lane: int) -> UUID:
        """Up to where a lane is drained for certain, as this node sees it."""
        hints = self.firing._hints if lane < SCHEDULE_LANES_END else self.feeder._looker.hints
        return hints.low(lane)

    # What the API does

    async def lease(self, ask: Ask, wait_seconds: float) -> Lease:
        """A poll of a worker: `ask` without its holder."""
        arrived_at = self.process.loop.now
        assert ask.tenant is not None
        feeder = self.feeder if self.shared is None else self.shared.forwarding
        holders = self.holders if self.shared is None else self.shared.holders
        holder = await holders.register(ask.tenant, ask.worker)
        asked = Ask(holder, ask.tenant, ask.kind, ask.queues, ask.tags, ask.room, ask.types, ask.worker)
        tasks = await feeder.lease(asked, wait_seconds)
        waited = self.process.loop.now - arrived_at
        if tasks:
            picked_at = min(task.picked_at for task in tasks)
            waited -= max(0.0, (self.database.clock.now() - picked_at).total_seconds())
        return Lease(tasks, max(0.0, waited + BEGIN_WITHIN_SECONDS), holder)

    async def beat(self, tenant: int, name: str, held: Mapping[Attempt, bool], leaves: bool = False) -> object:
        named = [Named(*attempt, started) for attempt, started in held.items()]
        holders = self.holders if self.shared is None else self.shared.holders
        if leaves:
            return await holders.sign_off(tenant, name, named)
        return await holders.beat(tenant, name, named)

    async def steer(self, verb: str, task: UUID, run_at_ms: int) -> None:
        if verb == "reschedule":
            await self.steering.reschedule([task], from_ms(run_at_ms))
        else:
            await getattr(self.steering, verb)([task])


class Node:
    """Several lives under one name."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.life: Life | None = None
        self._lives = 0
        self.paused_until = 0.0

    def __str__(self) -> str:
        return self.name

    @property
    def ready(self) -> Life | None:
        return self.life if self.life is not None and self.life.is_ready else None

    def boot(self) -> None:
        self._lives += 1
        process = Process(self.world.loop, f"{self.name}.{self._lives}")
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        self.life = life = Life(self.world, self.name, process)
        try:
            await life.start()
        except Unavailable as error:
            # As the program that runs it: a node that cannot start is started again.
            self.world.note("%s cannot start: %s", process, error)
            self.world.after(0.5, self._start_again, life)

    def _start_again(self, life: Life) -> None:
        if self.life is life:
            self.crash()
            self.boot()

    def crash(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            life.process.kill()
            self.world.lines.died(life.process)
            self.world.fail_requests(life.process)

    def pause(self, seconds: float) -> None:
        if self.life is not None:
            self.life.process.pause(seconds)
            self.life.paused_until = self.world.now + seconds
