"""A holder of the simulation: a worker process that leases, beats, runs and settles.

It keeps the worker protocol, carefully (it begins nothing without a recent
acknowledged beat, as the SDK) or carelessly (it begins at once and reports
whatever it was told).  Its log of what it began is the world's: by it no
attempt may be run by two processes.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from duetime.errors import Unavailable
from duetime.lifecycle.holders.holders import BeatResult
from duetime.lifecycle.tasks.settle import Report, Settled
from duetime.model.task import Kind, LeasedTask, Outcome
from duetime.scheduler.plan import Ask
from simulation.loop import Process
from simulation.node import Lease
from simulation.tables import Attempt

if TYPE_CHECKING:
    from simulation.world import World

BEAT_EVERY = 3.0
_FRESH = 2 * BEAT_EVERY


class Holder:
    def __init__(
        self,
        world: "World",
        name: str,
        tenant: int,
        tags: frozenset[str],
        *,
        is_careful: bool,
        keeps_name: bool,
        types: frozenset[str] | None = None,
    ) -> None:
        self.world = world
        self.base_name = name
        self.tenant = tenant
        self.tags = tags
        #: What it handles; None: every type.
        self.types = types
        self.is_careful = is_careful
        #: Started again, it calls itself the same, as if it were the same process.
        self.keeps_name = keeps_name
        self.process: Process | None = None
        self.capacity = 40

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def boot(self) -> None:
        #: It is stopping, and begins nothing new.
        self.is_leaving = False
        self.number = self.world.next_process()
        self.name = self.base_name if self.keeps_name else f"{self.base_name}-{self.number}"
        #: What it names in its beats, and whether as started.
        self.held: dict[Attempt, bool] = {}
        self.told: set[Attempt] = set()
        #: Named by a beat that was answered, and not called lost.
        self.confirmed: set[Attempt] = set()
        #: What the server takes it for, by its last beat; and what was handed to somebody else by that name.
        self.holder = 0
        self.unsure: set[Attempt] = set()
        self.acknowledged_at = float("-inf")
        self.process = Process(self.world.loop, self.name)
        self.process.spawn(self._beat_for_ever())
        self.process.spawn(self._lease_for_ever())

    def crash(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()

    def pause(self, seconds: float) -> None:
        if self.process is not None:
            self.process.pause(seconds)

    def leave(self) -> None:
        if self.process is not None:
            self.process.spawn(self._leave(self.process))

    async def _leave(self, process: Process) -> None:
        """A graceful stop: what has not begun is given back, and the process signs off while the rest still runs."""
        self.is_leaving = True
        unstarted = [attempt for attempt, is_started in self.held.items() if not is_started]
        reports = [self._report(attempt, (Outcome.RELEASED, None, False)) for attempt in unstarted]
        for attempt in unstarted:
            del self.held[attempt]
        try:
            if reports:
                await self.world.request(lambda life: life.settler.settle(self.tenant, self.name, reports))
        except Unavailable:
            pass
        held = dict(self.held)
        try:
            await self.world.request(lambda life: life.beat(self.tenant, self.name, held, leaves=True))
        except Unavailable:
            pass
        if self.process is process:
            self.crash()

    # Its loops

    async def _beat_for_ever(self) -> None:
        world, chance = self.world, self.world.chance
        while True:
            sent_at = world.now
            named = dict(self.held)
            try:
                heard = await world.request(lambda life, named=named: life.beat(self.tenant, self.name, named))
            except Unavailable:
                await asyncio.sleep(0.5)
                continue
            answer = cast(BeatResult, heard)
            self.acknowledged_at = sent_at
            if not self.is_careful and chance.random() < 0.1:
                self._spawn(self._meddle())
            self.told |= {attempt for attempt, is_started in named.items() if is_started}
            self.confirmed |= named.keys()
            if answer.holder != self.holder:
                self.holder = answer.holder or 0
                self.unsure |= self.held.keys()
            for attempt in answer.lost_attempts + answer.cancelled_attempts:
                if self.is_careful or chance.random() < 0.5:
                    self.held.pop(attempt, None)
            await asyncio.sleep(max(0.0, sent_at + BEAT_EVERY - world.now))

    def _spawn(self, work: object) -> None:
        if self.process is not None:
            self.process.spawn(work)  # type: ignore[arg-type]

    async def _lease_for_ever(self) -> None:
        world, chance = self.world, self.world.chance
        while self.acknowledged_at < 0:
            await asyncio.sleep(0.1)
        while True:
            room = self.capacity - len(self.held)
            if room <= 0:
                await asyncio.sleep(0.3)
                continue
            asked_at = world.now
            queues = chance.choice((None, None, frozenset({"a", "b"})))
            ask = Ask(0, self.tenant, Kind.PULL, queues, self.tags, room, self.types, self.name)
            wait = chance.choice((1.0, 5.0, 20.0))
            try:
                leased = await world.request(lambda life, ask=ask, wait=wait: life.lease(ask, wait), limit=wait + 8.0)
            except Unavailable:
                await asyncio.sleep(0.3)
                continue
            lease = cast(Lease, leased)
            for task in lease.tasks:
                attempt = (task.id, task.number)
                world.log_hand_out(task, self)
                if self.types is not None and task.type not in self.types:
                    world.fail(f"{self.name} was given {task.id} of type {task.type}, which it does not handle")
                self.held[attempt] = False
                if lease.holder != self.holder:
                    self.unsure.add(attempt)
                self._spawn(self._work(task, asked_at + lease.begin_within))

    # One attempt

    async def _work(self, task: LeasedTask, begin_by: float) -> None:
        chance = self.world.chance
        attempt = (task.id, task.number)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.expovariate(0.5))
        if task.is_recovered:
            if not self._declare(attempt):
                return
            while attempt not in self.told:
                await asyncio.sleep(0.5)
                if attempt not in self.held:
                    return
        while self.is_careful and not self._may_begin(attempt, begin_by):
            await asyncio.sleep(0.5)
        if not self._declare(attempt):
            return
        self.world.log_run(attempt, self)
        await asyncio.sleep(chance.choice((0.001, 0.01, 0.05, 0.3, 3.0, 8.0)) * chance.random())
        if attempt not in self.held and self.is_careful:
            return
        await self._settle(attempt, self._end(chance.random()))

    def _may_begin(self, attempt: Attempt, begin_by: float) -> bool:
        if self.is_leaving or self.world.now - self.acknowledged_at >= _FRESH:
            return False
        if self.world.faults.begins_late or attempt in self.confirmed:
            return True
        return self.world.now <= begin_by and attempt not in self.unsure

    async def _meddle(self) -> None:
        """Report an attempt that another process has."""
        store = self.world.store
        strangers = [
            (claim.task, claim.number)
            for claim in store.claim.values()
            if self.world.handed.get((claim.task, claim.number), self.number) != self.number
            and store.holder[claim.holder].name != self.name
        ]
        if strangers:
            report = self._report(self.world.chance.choice(strangers), (Outcome.SUCCEEDED, None, False))
            try:
                await self.world.request(lambda life: life.settler.settle(self.tenant, self.name, [report]))
            except Unavailable:
                pass

    def _declare(self, attempt: Attempt) -> bool:
        if attempt not in self.held:
            return False
        self.held[attempt] = True
        self.world.declared.add(attempt)
        return True

    def _end(self, draw: float) -> tuple[Outcome, float | None, bool]:
        if draw < 0.75 or self.world.is_calm:
            return Outcome.SUCCEEDED, None, False
        if draw < 0.90:
            return Outcome.FAILED, 0.0 if draw < 0.85 else None, False
        if draw < 0.92:
            return Outcome.FAILED, None, True
        return Outcome.SNOOZED, 0.0 if draw < 0.95 else 4.0, False

    def _report(self, attempt: Attempt, end: tuple[Outcome, float | None, bool]) -> Report:
        outcome, retry_after, is_permanent = end
        # The result says whose report it is.
        result = b"%d" % self.number
        return Report(*attempt, outcome, result, is_permanent=is_permanent, retry_after=retry_after)

    async def _settle(self, attempt: Attempt, end: tuple[Outcome, float | None, bool]) -> None:
        """Report until it is acknowledged; sometimes twice, sometimes not the same."""
        chance = self.world.chance
        while True:
            report = self._report(attempt, end)
            try:
                answer = await self.world.request(
                    lambda life, report=report: life.settler.settle(self.tenant, self.name, [report])
                )
            except Unavailable:
                await asyncio.sleep(0.2)
                continue
            if cast(Settled, answer).settled:
                self.world.log_settled(attempt, self)
            if chance.random() > 0.03:
                break
            end = self._end(chance.random())
            await asyncio.sleep(0.2)
        self.held.pop(attempt, None)
