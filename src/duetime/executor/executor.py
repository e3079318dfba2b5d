"""The executor: takes due push tasks that it has room for, calls their targets, settles.

It is a holder like any worker: it sends beats, and names what it holds until the
end of each attempt is acknowledged.  It begins no call after a task has expired,
nor later than `BEGIN_WITHIN_SECONDS` after the task was picked (by then a scheduler
may have released it) unless a recent beat has confirmed the attempt.  A task that a
former holder lost begins only after a beat that announces it was acknowledged.
"""

import asyncio
import secrets
import uuid
from collections.abc import Callable, Iterable, Sequence

import structlog

from duetime.clock import DatabaseClock
from duetime.errors import Unavailable
from duetime.executor.call_slots import CallSlots
from duetime.executor.exchange import host_of_task, report_release
from duetime.executor.held import GiveBack, Held, Phase, backoff_of
from duetime.executor.hosts import SWEEP_SECONDS
from duetime.executor.http import HttpClient
from duetime.executor.resending import Resender
from duetime.executor.slots import Slot
from duetime.executor.target_caller import EgressOf, KeyOf, SecretOf, TargetCaller
from duetime.executor.target_health import ABANDONED, RETURNED
from duetime.lifecycle.holders.holders import BEAT_EVERY_SECONDS, BEGIN_WITHIN_SECONDS, Holders, Named
from duetime.lifecycle.tasks.settle import Report, Settler
from duetime.model.breaker_status import Ending
from duetime.model.task import Kind, LeasedTask
from duetime.model.vault import Vault
from duetime.scheduler.feed import Ask, Feeder

#: For this long after an acknowledged beat, the tasks it named may begin: a holder may be silent for at least 6 s.
CONFIRMED_SECONDS = 4.0
_WAIT_FOR_HOST_SECONDS = 4.0
_LEASE_WAIT_SECONDS = 20.0
# Room that comes in small pieces is gathered this long, so that a claim is worth its statement.
_GATHER_ROOM_SECONDS = 0.01
_GATHER_ANNOUNCEMENTS_SECONDS = 0.02
_AWAY_SECONDS = 0.5
_FLUSH_SECONDS = 5.0
_TENANT = 0

#: Called once for every task that was taken, when it is over: the ending, `Retry-After`, and what happened.
TellHealth = Callable[[LeasedTask, Ending, float | None, str], None]

log = structlog.get_logger(__name__)


class Executor:
    def __init__(
        self,
        feeder: Feeder,
        holders: Holders,
        settler: Settler,
        client: HttpClient,
        *,
        clock: DatabaseClock,
        secret_of: SecretOf,
        key_of: KeyOf,
        node: str,
        max_calls: int = 512,
        max_calls_per_host: int = 64,
        beat_every_seconds: float = BEAT_EVERY_SECONDS,
        tell_health: TellHealth | None = None,
        vault: Vault | None = None,
        egress_of: EgressOf = lambda _: None,
        beside: Callable[[], int] = lambda: 0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._feeder = feeder
        self._holders = holders
        self._settler = settler
        self._clock = clock
        self._caller = TargetCaller(client, clock, secret_of, key_of, self._over, vault or Vault(), egress_of)
        self._key_of = key_of
        self._max_calls = max_calls
        #: Counts the calls of executors that are being retired; all executors together stay within `max_calls`.
        self._beside = beside
        self._beat_every_seconds = beat_every_seconds
        self._tell_health = tell_health
        self.name = f"executor-{node}-{secrets.token_hex(8)}"
        self._held: dict[uuid.UUID, Held] = {}
        self._slots: CallSlots[Held] = CallSlots(max_calls, max_calls_per_host, self._weight_of, self._loop.time)
        self._announcing: list[Held] = []
        self._must_announce = asyncio.Event()
        self._has_room = asyncio.Event()
        self._settling: Resender[tuple[Held, Report]] = Resender(self._settle, lambda item: self._forget(item[0]))
        self._returning: Resender[tuple[Held, GiveBack]] = Resender(self._return, lambda item: self._forget(item[0]))
        self._sweeper: asyncio.TimerHandle | None = None
        self._teller: asyncio.TimerHandle | None = None
        self._leasing: asyncio.Task[object] | None = None
        self._has_no_calls = asyncio.Event()
        self._is_stopping = False
        self._is_retired = False
        self._is_stopped = asyncio.Event()

    @property
    def calls(self) -> int:
        """How many calls are under way."""
        return self._slots.running

    def forget_secrets(self) -> None:
        """Forget the signing secrets, so that they are read again: one was rotated."""
        self._caller.forget_secrets()

    async def run(self) -> None:
        """Run until stopped; raises the error that ended a loop."""
        if self._is_stopping:
            return
        self._leasing = asyncio.create_task(self._lease_for_ever())
        everything: list[asyncio.Task[object]] = [
            asyncio.create_task(loop)
            for loop in (self._settling.run(), self._returning.run(), self._beat_for_ever(), self._is_stopped.wait())
        ]
        everything.append(self._leasing)
        try:
            watched = set(everything)
            while not self._is_stopped.is_set():
                ended, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    if not task.cancelled():
                        task.result()
        finally:
            for held in self._held.values():
                self._tell_end(held)
                if isinstance(held.call, asyncio.Task):
                    everything.append(held.call)
                elif held.call is not None:
                    held.call.cancel()
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            for timer in (self._sweeper, self._teller):
                if timer is not None:
                    timer.cancel()

    def retire(self) -> None:
        """Begin no more calls, and let those under way go on: the history of writes of these tasks has ended.

        Beats no longer name the tasks that were not begun, so those are released where the claim still exists.
        `report_to` says where the others are reported, and `stop` waits for them.
        """
        self._is_stopping = self._is_retired = True
        self._tell_health = None
        if self._leasing is not None:
            self._leasing.cancel()
        # Waiting tasks leave first: otherwise a slot that comes free would let one of them begin.
        for phase in (Phase.WAITING, Phase.ANNOUNCING, Phase.CALLING):
            for held in [held for held in self._held.values() if held.phase is phase and not held.is_started]:
                self._drop(held)

    def report_to(self, feeder: Feeder, holders: Holders, settler: Settler, clock: DatabaseClock) -> None:
        """Send beats and reports of the calls under way to these from now on, in the history that goes on."""
        self._feeder, self._holders, self._settler, self._clock = feeder, holders, settler, clock
        self._key_of = lambda lane: None
        self._caller.go_by(clock)

    async def stop(self, deadline_seconds: float | None) -> None:
        """Take no more tasks, let calls end until the deadline, then release or report the rest.

        Telling the database may take up to 5 s more, or without a deadline as long as it needs.
        """
        self._is_stopping = True
        if self._leasing is not None:
            self._leasing.cancel()
            await asyncio.wait([self._leasing])
        # Waiting tasks leave first: otherwise a slot that comes free would let one of them begin.
        for phase in (Phase.WAITING, Phase.ANNOUNCING):
            for held in [held for held in self._held.values() if held.phase is phase]:
                self._leave_line(held)
                self._end(held, GiveBack(0.0))
        try:
            async with asyncio.timeout(deadline_seconds):
                while self._slots.running:
                    self._has_no_calls.clear()
                    await self._has_no_calls.wait()
        except TimeoutError:
            pass
        for held in list(self._held.values()):
            if held.phase is Phase.CALLING:
                self._abort(held)
        try:
            async with asyncio.timeout(None if deadline_seconds is None else _FLUSH_SECONDS):
                await self._settling.emptied()
                await self._returning.emptied()
                await self._holders.sign_off(_TENANT, self.name)
        except (TimeoutError, Unavailable) as error:
            log.warning("stopped without the database's word", held=len(self._held), error=str(error))
        self._is_stopped.set()

    # Taking tasks.

    async def _lease_for_ever(self) -> None:
        while True:
            room = self._room()
            if room < self._slots.worthwhile:
                self._has_room.clear()
                # No event tells this executor when a call of a retiring executor ends.
                is_full = room <= 0 and not self._beside()
                await (self._has_room.wait() if is_full else asyncio.sleep(_GATHER_ROOM_SECONDS))
                room = self._room()
            if room <= 0:
                continue
            try:
                holder = await self._holders.register(_TENANT, self.name)
                ask = Ask(
                    holder, None, Kind.PUSH, None, tags=frozenset(), room=room, worker=self.name, slots=self._slots
                )
                tasks = await self._feeder.lease(ask, _LEASE_WAIT_SECONDS)
                is_alive = holder == await self._holders.register(_TENANT, self.name)
            except Unavailable as error:
                log.warning("no tasks to be had", error=str(error))
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            except Exception:
                # Whatever the error is, calls under way go on and the next request for tasks may work.
                log.exception("asking for tasks failed")
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            self._take(tasks, is_alive)
            if not tasks:
                # A feeder that has stopped answers at once, so pause.
                await asyncio.sleep(_GATHER_ROOM_SECONDS)

    def _room(self) -> int:
        limit = self._max_calls
        # Ends that are not acknowledged count as well: they must not pile up while the database is away.
        running = self._slots.running + self._beside()
        return min(limit - running, limit - self._slots.waiting, 2 * limit - len(self._held))

    def _weight_of(self, tenant: int) -> int:
        return self._feeder.weight_of(tenant)

    def _take(self, tasks: Iterable[LeasedTask], is_alive: bool) -> None:
        now, database_now = self._loop.time(), self._clock.now()
        for task in tasks:
            former = self._held.get(task.id)
            if former is not None:
                # The task was lost and comes back under a new number.
                self._drop(former)
            age_seconds = max(0.0, (database_now - task.picked_at).total_seconds())
            key = self._key_of(task.lane)
            host = self._slots.host(0 if key is None else key.tenant, host_of_task(task), now)
            held = Held(task, host, now + BEGIN_WITHIN_SECONDS - age_seconds)
            self._held[task.id] = held
            if not is_alive:
                # It was claimed for our former holder, which lapsed: the database would not accept our reports.
                self._end(held, GiveBack(0.0))
            elif (slot := self._slots.take(host, now)) is not None:
                self._prepare(held, slot)
            elif not self._slots.wait(host, held, now + _WAIT_FOR_HOST_SECONDS - age_seconds, now):
                self._turn_away(held)
        self._feeder.taken()
        self._tell_of_room()
        self._sweep_soon()

    def _turn_away(self, held: Held) -> None:
        """Release a task that has no slot here; next time it waits at the gate of its host."""
        self._feeder.turned_away(held.host.tenant.number, held.host.name)
        self._end(held, GiveBack(backoff_of(held.task)))

    def _prepare(self, held: Held, slot: Slot) -> None:
        """Begin a task that has a slot, or announce it first if it needs that."""
        held.slot = slot
        if held.task.is_recovered or held.begin_by < self._loop.time():
            held.phase = Phase.ANNOUNCING
            self._announcing.append(held)
            self._must_announce.set()
        else:
            self._begin(held)

    def _sweep_soon(self) -> None:
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        swept, following = self._slots.sweep(self._loop.time())
        for held, slot in following:
            self._prepare(held, slot)
        for held in swept:
            self._turn_away(held)
        if self._slots.waiting or self._slots.running:
            self._sweep_soon()
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        """Tell the feeder that there may be room, if it waits for that; soon, and once for many slots."""
        if self._teller is None and self._feeder.waits_for_room:
            self._teller = self._loop.call_later(_GATHER_ROOM_SECONDS, self._told_of_room)

    def _told_of_room(self) -> None:
        self._teller = None
        self._feeder.room_came()

    # Calling.

    def _begin(self, held: Held) -> None:
        held.phase = Phase.CALLING
        self._caller.begin(held)

    def _over(self, held: Held, end: Report | GiveBack) -> None:
        """End an attempt whose call ended by itself."""
        held.call = None
        self._end(held, end)
        self._free(held)

    def _break_off(self, held: Held) -> None:
        """Stop its call; the caller decides what becomes of the task."""
        held.phase = Phase.OVER
        if held.call is not None:
            held.call.cancel()
            held.call = None
        self._free(held)

    def _free(self, held: Held) -> None:
        """Free its slot for another call."""
        if held.slot is None:
            return
        slot, held.slot = held.slot, None
        for following, given in self._slots.free(slot, self._loop.time()):
            self._prepare(following, given)
        if not self._slots.running:
            self._has_no_calls.set()
        self._has_room.set()
        self._tell_of_room()

    def _abort(self, held: Held) -> None:
        """Stop a call because the executor stops: another executor gets the task, and no attempt is used."""
        self._break_off(held)
        report = report_release(
            held.task.id,
            held.task.number,
            "the executor is shutting down",
            reason="shutdown",
            started_at=held.started_at,
            completed_at=self._clock.now(),
        )
        self._end(held, report if held.is_started else GiveBack(0.0))

    # Ending.

    def _end(self, held: Held, end: Report | GiveBack) -> None:
        held.phase = Phase.ENDING
        self._tell_end(held)
        if isinstance(end, GiveBack):
            self._returning.add((held, end))
        else:
            self._settling.add((held, end))

    def _tell_end(self, held: Held) -> None:
        """Report what its end means for the health of its target."""
        if self._tell_health is not None and not held.is_told:
            held.is_told = True
            health = held.health or (ABANDONED if held.is_started else RETURNED)
            self._tell_health(held.task, health.ending, health.retry_after, health.detail)

    async def _settle(self, ended: Sequence[tuple[Held, Report]]) -> None:
        # Lost and cancelled tasks are over for this executor as well.
        await self._settler.settle(_TENANT, self.name, [report for _, report in ended])

    async def _return(self, returned: Sequence[tuple[Held, GiveBack]]) -> None:
        if self._is_retired:
            return
        by_delay: dict[float, list[LeasedTask]] = {}
        for held, give_back in returned:
            by_delay.setdefault(give_back.delay_seconds, []).append(held.task)
        for delay_seconds, tasks in by_delay.items():
            await self._feeder.give_back(tasks, delay_seconds)

    def _forget(self, held: Held) -> None:
        held.phase = Phase.OVER
        if self._held.get(held.task.id) is held:
            del self._held[held.task.id]
        self._has_room.set()

    def _drop(self, held: Held) -> None:
        """Stop a task that this executor no longer holds, and report nothing."""
        if held.phase is Phase.ENDING:
            # Its end is being sent; the answer removes it.
            return
        self._leave_line(held)
        if held.phase is Phase.CALLING:
            self._break_off(held)
        self._tell_end(held)
        self._forget(held)

    def _leave_line(self, held: Held) -> None:
        if held.phase is Phase.WAITING:
            self._slots.leave(held.host, held)
        elif held.phase is Phase.ANNOUNCING:
            held.phase = Phase.OVER
            self._free(held)

    # Beating.

    async def _beat_for_ever(self) -> None:
        loop = self._loop
        beat_at = loop.time() + self._beat_every_seconds
        while True:
            try:
                async with asyncio.timeout_at(beat_at):
                    await self._must_announce.wait()
                # One beat announces several tasks.
                await asyncio.sleep(_GATHER_ANNOUNCEMENTS_SECONDS)
            except TimeoutError:
                pass
            beat_at = loop.time() + (self._beat_every_seconds if await self._beat() else _AWAY_SECONDS)

    async def _beat(self) -> bool:
        """Name what this executor holds, stop what the answer ends, then begin what was announced."""
        announced, self._announcing = self._announcing, []
        self._must_announce.clear()
        beaten_at = self._loop.time()
        held_now = list(self._held.values())
        named = [Named(held.task.id, held.task.number, _counts_as_started(held)) for held in held_now]
        try:
            answer = await self._holders.beat(_TENANT, self.name, named)
        except Exception as error:
            # Whatever the error is, go on: a holder that stops beating loses all it holds.
            log.warning("a beat was not heard", error=str(error), exc_info=not isinstance(error, Unavailable))
            self._announcing = announced + self._announcing
            self._give_back_late_announcements()
            return False
        gone = {*answer.lost_attempts, *answer.cancelled_attempts}
        for held in held_now:
            if (held.task.id, held.task.number) not in gone:
                held.begin_by = max(held.begin_by, beaten_at + CONFIRMED_SECONDS)
            elif self._held.get(held.task.id) is held:
                self._drop(held)
        for held in announced:
            if held.phase is Phase.ANNOUNCING:
                self._begin(held)
        return True

    def _give_back_late_announcements(self) -> None:
        now = self._loop.time()
        late = [held for held in self._announcing if held.begin_by <= now and held.phase is Phase.ANNOUNCING]
        self._announcing = [held for held in self._announcing if held not in late]
        for held in late:
            self._leave_line(held)
            self._end(held, GiveBack(0.0))


def _counts_as_started(held: Held) -> bool:
    """Whether it is named as running; a task that a former holder lost is, even before its call begins."""
    return held.is_started or (held.phase is Phase.ANNOUNCING and held.task.is_recovered)
