"""Carry out a plan of the core: claim rows, judge them by their limits, hand them out, park the rest."""

import asyncio
import uuid
from collections.abc import Callable, Collection

import structlog

from duetime import metrics
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import just_after
from duetime.lifecycle.tasks.claim import Claims, LaneOrder, claim_due
from duetime.long_work import LongWork
from duetime.model.task import LeasedTask
from duetime.scheduler.core import Core
from duetime.scheduler.gating import Gatekeeper, GateVerdict
from duetime.scheduler.plan import Plan
from duetime.scheduler.polls import Polls
from duetime.scheduler.returns import Returns

log = structlog.get_logger()


class Claimer:
    def __init__(
        self,
        database: Database,
        core: Core,
        gates: Gatekeeper,
        polls: Polls,
        returns: Returns,
        wake: Callable[[Collection[uuid.UUID]], None],
        changed: Callable[[], None],
        turns: LongWork,
    ) -> None:
        """`changed` starts a new plan."""
        self._database = database
        self._core = core
        self._gates = gates
        self._polls = polls
        self._returns = returns
        self._wake = wake
        self._changed = changed
        self._turns = turns

    async def carry_out(self, plan: Plan) -> None:
        """Claim what was planned; afterwards no poll waits for this plan any more."""
        try:
            until = just_after(self._database.clock.now_ms())
            orders = [
                LaneOrder(order.lane, order.hint, [(plan.holder_of_ask[number], count) for number, count in order.asks])
                for order in plan.orders
            ]
            try:
                claims = await claim_due(self._database, orders, until, turns=self._turns)
            except Unavailable as error:
                # Rows that were claimed in spite of the error are not named by their holders, and so released.
                log.warning("claim failed", error=str(error))
                self._core.put_back(plan, self._database.clock.now_ms())
                await asyncio.sleep(0.2)
                return
            except Exception:
                log.exception("claim failed")
                self._core.put_back(plan, self._database.clock.now_ms())
                await asyncio.sleep(1.0)
                return
            verdict = await self._judge(claims, plan)
            try:
                try:
                    await self._deliver(plan, claims, verdict)
                finally:
                    self._gates.forget(verdict)
                await self._sift(verdict, until)
            finally:
                for lane in verdict.held:
                    self._core.let_go(lane)
        finally:
            self._polls.end_overdue(plan.holder_of_ask)

    async def _deliver(self, plan: Plan, claims: Claims, verdict: GateVerdict) -> None:
        """Hand out the rows that may run, and park the rest."""
        metrics.CLAIMED.inc(sum(len(rows) for rows in claims.taken.values()) - len(verdict.parked))
        answers = self._core.claimed(
            plan,
            {lane: [(wake, len(task.payload)) for wake, task in rows] for lane, rows in claims.taken.items()},
            claims.later,
            verdict.aside,
            self._database.clock.now_ms(),
        )
        for lane, foreign in verdict.foreign.items():
            # More rows that no holder here handles are likely to follow: move them before the lane is read again.
            if foreign.is_most and (hint := self._core.hold(lane)) is not None:
                verdict.held[lane] = hint
        await self._hand_out(
            {number: [claims.taken[lane][place][1] for lane, place in got] for number, got in answers.items()}
        )
        if verdict.parked:
            await self._park(verdict)

    async def _judge(self, claims: Claims, plan: Plan) -> GateVerdict:
        try:
            return await self._gates.judge(claims, plan)
        except Unavailable as error:
            log.warning("limits could not be checked", error=str(error))
        except Exception:
            log.exception("limits could not be checked")
        # It is unknown whether these may run: they are handed to no holder, and two beats release them.
        return GateVerdict({lane: set(range(len(rows))) for lane, rows in claims.taken.items()})

    async def _park(self, verdict: GateVerdict) -> None:
        # The lanes and asks of this plan need not wait until the database has parked these.
        self._changed()
        try:
            self._wake(await self._gates.park(verdict))
        except Unavailable as error:
            # Their holders do not name them, so two beats release them.
            log.warning("claims could not be parked", error=str(error))

    async def _sift(self, verdict: GateVerdict, until: uuid.UUID) -> None:
        """Move more foreign rows out of the way, unless a holder waits for them."""
        for lane, hint in verdict.held.items():
            moves = [move for key, move in verdict.foreign[lane].moves.values() if not self._core.is_wanted(key)]
            if not moves:
                continue
            try:
                self._wake(await self._gates.sift(lane, hint, until, moves))
            except Unavailable as error:
                # They will be claimed and parked instead.
                log.warning("tasks of other types could not be moved", error=str(error))

    async def _hand_out(self, answers: dict[int, list[LeasedTask]]) -> None:
        late: list[LeasedTask] = []
        unwanted: list[LeasedTask] = []
        now = self._database.clock.now()
        for number, tasks in answers.items():
            live = [task for task in tasks if task.expires_at is None or task.expires_at > now]
            if len(live) < len(tasks):
                late += [task for task in tasks if task.expires_at is not None and task.expires_at <= now]
            if self._polls.is_open(number):
                self._polls.answer(number, live)
            else:
                unwanted += live
        self._gates.not_begun([*late, *unwanted])
        if late or unwanted:
            # The lanes and asks of this plan need not wait until the database has taken these back.
            self._changed()
        await self._returns.take_back(unwanted, late)
