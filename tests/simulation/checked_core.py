"""The scheduler's core, watched: its plans keep to what was asked, and nothing that it was told is overlooked."""

import uuid
from typing import TYPE_CHECKING

from duetime.ids import due_ms_of, lane_of
from duetime.model.task import LaneKey
from duetime.scheduler.core import Core
from duetime.scheduler.limits import Governor
from duetime.scheduler.plan import Ask, Plan

if TYPE_CHECKING:
    from simulation.world import World


class CheckedCore(Core):
    def __init__(self, world: "World", name: str, governor: Governor) -> None:
        super().__init__(governor)
        self._world = world
        self._name = name
        #: What it was told of that lies in due, as far as nobody is taking it.
        self.reported: set[uuid.UUID] = set()
        self._asked_at: dict[int, float] = {}
        #: When a claim of a lane failed last.
        self._failed_at: dict[int, float] = {}

    def woke(self, lane: int, key: LaneKey, wake: uuid.UUID) -> bool:
        store = self._world.store
        if wake in store.due and not store.is_locked("due", wake):
            self.reported.add(wake)
        return self._hear(lane, key, wake)

    def _hear(self, lane: int, key: LaneKey, wake: uuid.UUID) -> bool:
        return super().woke(lane, key, wake)

    def drop(self, lane: int) -> None:
        super().drop(lane)
        self.reported = {wake for wake in self.reported if lane_of(wake) != lane}

    def ask(self, number: int, ask: Ask) -> None:
        super().ask(number, ask)
        self._asked_at[number] = self._world.now

    def withdraw(self, number: int) -> None:
        super().withdraw(number)
        self._asked_at.pop(number, None)

    def plan(self, now_ms: int) -> Plan | None:
        plan = super().plan(now_ms)
        if plan is None:
            self._check_nothing_overlooked(now_ms)
        else:
            self._check_plan(plan)
        return plan

    def put_back(self, plan: Plan, now_ms: int = 0) -> None:
        super().put_back(plan, now_ms)
        self._failed_at |= dict.fromkeys([order.lane for order in plan.orders], self._world.now)

    def is_in_air(self, lane: int) -> bool:
        work = self._table.known.get(lane)
        return work is not None and work.is_being_claimed

    def keeps_waiting(self, lane: int, key: LaneKey) -> bool:
        """Somebody has waited here for this lane for a while, and nothing is on its way."""
        now = self._world.now
        if self.is_in_air(lane) or now - self._failed_at.get(lane, 0.0) < 3.0:
            return False
        return any(
            asked.ask.fits(key) and not asked.is_being_served and now - self._asked_at[number] > 3.0
            for number, asked in self._asks.items()
        )

    def _check_plan(self, plan: Plan) -> None:
        room: dict[int, int] = {}
        for order in plan.orders:
            if order.room != sum(rows for _, rows in order.asks):
                self._world.fail(f"{order} promises what it does not ask for")
            for number, rows in order.asks:
                room[number] = room.get(number, 0) + rows
                if not self._asks[number].ask.fits(self._table.known[order.lane].key):
                    self._world.fail(f"{order} is for a holder that cannot serve it")
        for number, rows in room.items():
            if rows > self._asks[number].ask.room:
                self._world.fail(f"ask {number} gets {rows}, and has room for {self._asks[number].ask.room}")

    def _check_nothing_overlooked(self, now_ms: int) -> None:
        """No lost wake: what was reported here is planned as long as somebody waits for it."""
        if not self.reported:
            return
        waiting = [asked.ask for asked in self._asks.values() if not asked.is_being_served]
        for wake in self.reported if waiting else ():
            lane = lane_of(wake)
            key = self._world.store.lane[lane]
            if self.governor.is_limited(key.tenant) or due_ms_of(wake) > now_ms or self.is_in_air(lane):
                continue
            if any(ask.fits(key) for ask in waiting):
                self._world.fail(f"{self._name} was told of {wake}, has somebody for it, and does not claim it")


class DeafCore(CheckedCore):
    """Forgets what is reported while a lane is being claimed."""

    def _hear(self, lane: int, key: LaneKey, wake: uuid.UUID) -> bool:
        return not self.is_in_air(lane) and super()._hear(lane, key, wake)


class StubbornCore(CheckedCore):
    """Does not lower a hint for what is reported behind it."""

    def _hear(self, lane: int, key: LaneKey, wake: uuid.UUID) -> bool:
        work = self._table.known.get(lane)
        hint = None if work is None else work.hint
        woke = super()._hear(lane, key, wake)
        if work is not None and hint is not None:
            work.hint = hint
        return woke
