"""What a feeder has to check to keep its limits right: shared budgets, places, ends that were not reported to it."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from duetime.budgets.contract import Budgets
from duetime.database.pool import Database
from duetime.lifecycle.lanes import Lanes
from duetime.scheduler.core import Core
from duetime.scheduler.gating import Gatekeeper
from duetime.scheduler.meter import DRAW_EVERY_MS
from duetime.scheduler.polls import Polls
from duetime.service import Loop

NOTICE_EVERY = timedelta(seconds=1)
_DRAW_EVERY = timedelta(milliseconds=DRAW_EVERY_MS)
_LOOK_FOR_PLACES_EVERY = timedelta(milliseconds=50)
_LOOK_FOR_SHARED_EVERY = timedelta(seconds=1)


class LimitWatch:
    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        core: Core,
        gates: Gatekeeper,
        polls: Polls,
        budgets: Budgets | None,
        meet: Callable[[frozenset[int]], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        """`meet` reads what has to be known of shards before they are fed; `changed` starts a new plan."""
        self._database = database
        self._lanes = lanes
        self._core = core
        self._gates = gates
        self._polls = polls
        self._budgets = budgets
        self._meet = meet
        self._changed = changed
        self.loops = (
            Loop("limits", self.notice_ended, jitter=0.0),
            Loop("budgets", self.draw, jitter=0.0),
        )

    async def draw(self) -> timedelta:
        """Draw tokens for the rates of tenants that several nodes feed, and look for places under their caps."""
        governor = self._core.governor
        has_places = await self._gates.look_for_places()
        wanted = governor.wants() if self._budgets is not None else {}
        if self._budgets is not None and wanted:
            governor.grant(await self._budgets.take(wanted))
        if has_places or wanted:
            self._core.open_lanes()
            self._changed()
        if governor.refused():
            return _LOOK_FOR_PLACES_EVERY
        return _DRAW_EVERY if governor.is_shared else _LOOK_FOR_SHARED_EVERY

    async def notice_ended(self) -> timedelta:
        """Find ends of attempts that were not reported to this node, and forget meters at rest."""
        self._polls.recent_asks()
        governor = self._core.governor
        governor.forget_idle(self._database.clock.now_ms())
        if governor.uncounted:
            # The database was away when these shards came here.
            await self._lanes.load()
            await self._meet(governor.uncounted)
            self._changed()
        opened = await self._gates.notice_ended()
        opened |= governor.take_opened(self._database.clock.now_ms())
        if opened:
            self._core.open_lanes(opened)
            self._changed()
        return NOTICE_EVERY
