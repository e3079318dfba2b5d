"""A holder of the simulation: a worker process that leases, beats, runs and settles.

It keeps the worker protocol, carefully (it begins nothing without a recent
acknowledged beat, as the SDK) or carelessly (it begins at once and reports
whatever it was told).  Its log of what it began is the world's: by it no
attempt may be run by two processes.
"""

from typing import TYPE_CHECKING

from duetime.errors import Unavailable
from duetime.model.attempt import Ended
from duetime.model.task import Kind, Outcome
from duetime.scheduler.plan import Ask
from properties.node_double import Process, Report, Settled, Sleep
from properties.store_double import Attempt, Claim

if TYPE_CHECKING:
    from properties.simulation import World

BEAT_EVERY = 3.0
_FRESH = 2 * BEAT_EVERY


class Holder:
    def __init__(
        self, world: "World", name: str, tenant: int, tags: frozenset[str], *, is_careful: bool, keeps_name: bool
    ) -> None:
        self.world = world
        self.base_name = name
        self.tenant = tenant
        self.tags = tags
        self.is_careful = is_careful
        #: Started again, it calls itself the same, as if it were the same process.
        self.keeps_name = keeps_name
        self.incarnation = 0
        self.is_up = False
        self.paused_until = 0.0
        self.capacity = 40

    def boot(self) -> None:
        self.is_up = True
        #: It is stopping, and begins nothing new.
        self.is_leaving = False
        self.process = self.world.next_process()
        self.name = self.base_name if self.keeps_name else f"{self.base_name}-{self.process}"
        #: What it names in its beats, and whether as started.
        self.held: dict[Attempt, bool] = {}
        self.told: set[Attempt] = set()
        #: Named by a beat that was answered, and not called lost.
        self.confirmed: set[Attempt] = set()
        #: What the server takes it for, by its last beat; and what was handed to somebody else by that name.
        self.holder = 0
        self.unsure: set[Attempt] = set()
        self.acknowledged_at = float("-inf")
        self.world.spawn(self, self._beat_for_ever())
        self.world.spawn(self, self._lease_for_ever())

    def crash(self) -> None:
        self.is_up = False
        self.incarnation += 1

    def leave(self) -> Process[None]:
        """A graceful stop: what has not begun is given back, and the process signs off while the rest still runs."""
        self.is_leaving = True
        unstarted = [attempt for attempt, is_started in self.held.items() if not is_started]
        ended = Ended(Outcome.RELEASED, is_certain=True)
        reports = [Report(attempt, ended, self.process) for attempt in unstarted]
        for attempt in unstarted:
            del self.held[attempt]
        node = self.world.pick_node()
        if node is not None and reports:
            try:
                yield self.world.request(node, node.settle(self.name, reports))
            except Unavailable:
                pass
        node = self.world.pick_node()
        if node is not None:
            try:
                yield self.world.request(node, node.leave(self.name, dict(self.held)))
            except Unavailable:
                pass
        self.crash()

    # Its loops

    def _beat_for_ever(self) -> Process[None]:
        chance = self.world.chance
        while True:
            sent_at = self.world.now
            node = self.world.pick_node()
            named = dict(self.held)
            answer: Settled | None = None
            if node is not None:
                try:
                    answer = yield self.world.request(node, node.beat(self.name, named))
                except Unavailable:
                    pass
            if answer is None:
                yield Sleep(0.5)
                continue
            self.acknowledged_at = sent_at
            if not self.is_careful and chance.random() < 0.1:
                self.world.spawn(self, self._meddle())
            self.told |= {attempt for attempt, is_started in named.items() if is_started}
            self.confirmed |= named.keys()
            if answer.holder != self.holder:
                self.holder = answer.holder
                self.unsure |= self.held.keys()
            for attempt in answer.lost + answer.cancelled:
                if self.is_careful or chance.random() < 0.5:
                    self.held.pop(attempt, None)
            yield Sleep(max(0.0, sent_at + BEAT_EVERY - self.world.now))

    def _lease_for_ever(self) -> Process[None]:
        chance = self.world.chance
        while self.acknowledged_at < 0:
            yield Sleep(0.1)
        while True:
            room = self.capacity - len(self.held)
            node = self.world.pick_node()
            if room <= 0 or node is None:
                yield Sleep(0.3)
                continue
            asked_at = self.world.now
            try:
                claims = yield self.world.request(
                    node, node.lease(self.name, self._ask_of(room), chance.choice((1, 5, 20)))
                )
            except Unavailable:
                yield Sleep(0.3)
                continue
            for claim in claims:
                self.world.log_hand_out(claim, self)
                self.held[claim.task, claim.number] = False
                if claim.holder != self.holder:
                    self.unsure.add((claim.task, claim.number))
                self.world.spawn(self, self._work(claim, asked_at + claims.begin_within))

    def _ask_of(self, room: int) -> "object":
        tenant, tags, queues = self.tenant, self.tags, self.world.chance.choice((None, None, frozenset({"a", "b"})))
        return lambda holder: Ask(holder, tenant, Kind.PULL, queues, tags, room)

    # One attempt

    def _work(self, claim: Claim, begin_by: float) -> Process[None]:
        chance = self.world.chance
        attempt = (claim.task, claim.number)
        if chance.random() < 0.3:
            yield Sleep(chance.expovariate(0.5))
        waiting = claim.waiting
        if waiting.crashes + waiting.releases > 0:
            if not self._declare(attempt):
                return
            while attempt not in self.told:
                yield Sleep(0.5)
                if attempt not in self.held:
                    return
        while self.is_careful and not self._may_begin(attempt, begin_by):
            yield Sleep(0.5)
        if not self._declare(attempt):
            return
        self.world.log_run(attempt, self)
        yield Sleep(chance.choice((0.001, 0.01, 0.05, 0.3, 3.0, 8.0)) * chance.random())
        if attempt not in self.held and self.is_careful:
            return
        yield from self._settle(attempt, self._end(chance.random()))

    def _may_begin(self, attempt: Attempt, begin_by: float) -> bool:
        if self.is_leaving or self.world.now - self.acknowledged_at >= _FRESH:
            return False
        if self.world.faults.begins_late or attempt in self.confirmed:
            return True
        return self.world.now <= begin_by and attempt not in self.unsure

    def _meddle(self) -> Process[None]:
        """Report an attempt that another process has."""
        strangers = [
            (claim.task, claim.number)
            for claim in self.world.store.claim.values()
            if self.world.handed.get((claim.task, claim.number), self.process) != self.process
            and self.world.store.holder[claim.holder].name != self.name
        ]
        node = self.world.pick_node()
        if strangers and node is not None:
            report = Report(self.world.chance.choice(strangers), Ended(Outcome.SUCCEEDED), self.process)
            try:
                yield self.world.request(node, node.settle(self.name, [report]))
            except Unavailable:
                pass

    def _declare(self, attempt: Attempt) -> bool:
        if attempt not in self.held:
            return False
        self.held[attempt] = True
        self.world.declared.add(attempt)
        return True

    def _end(self, draw: float) -> Ended:
        if draw < 0.75 or self.world.is_calm:
            return Ended(Outcome.SUCCEEDED)
        if draw < 0.90:
            return Ended(Outcome.FAILED, retry_after=0.0 if draw < 0.85 else None)
        if draw < 0.92:
            return Ended(Outcome.FAILED, is_permanent=True)
        return Ended(Outcome.SNOOZED, retry_after=0.0 if draw < 0.95 else 4.0)

    def _settle(self, attempt: Attempt, ended: Ended) -> Process[None]:
        """Report until it is acknowledged; sometimes twice, sometimes not the same."""
        chance = self.world.chance
        while True:
            node = self.world.pick_node()
            answer: Settled | None = None
            if node is not None:
                try:
                    answer = yield self.world.request(
                        node, node.settle(self.name, [Report(attempt, ended, self.process)])
                    )
                except Unavailable:
                    pass
            if answer is not None:
                if answer.settled:
                    self.world.log_settled(attempt, self)
                if chance.random() > 0.03:
                    break
                ended = self._end(chance.random())
            yield Sleep(0.2)
        self.held.pop(attempt, None)
