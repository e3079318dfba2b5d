"""Fire schedules when their turn comes: the loop around `lifecycle/fire`.

Memory holds, for each schedule lane that is fed here, the first known turn: nothing
grows with the number of schedules, and a pass reads only lanes whose first turn has
come, from that turn on.  Once a second a look finds turns that were not reported.  A
sweep repairs schedules that lost their row.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta

import asyncpg
import structlog

from duetime.clock import Monotonic
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import SCHEDULE_LANES_END, due_ms_of, just_after, lane_of
from duetime.lifecycle.admission.room import BOUNDLESS
from duetime.lifecycle.admission.room import Room as TaskRoom
from duetime.lifecycle.schedules.backfill import Backfills
from duetime.lifecycle.schedules.changes import Schedules, key_of
from duetime.lifecycle.schedules.evaluations import Loops
from duetime.lifecycle.schedules.fire import SQL, DueSchedule, DueSchedules, fire, read_due, read_situations
from duetime.lifecycle.schedules.recurrences import SQL as SCHEDULES_SQL
from duetime.lifecycle.schedules.recurrences import Recurrences
from duetime.lifecycle.submission.storing import MINT_TOLERANCE_MS
from duetime.lifecycle.tasks.claim import note, peek
from duetime.lifecycle.tasks.onward import Wake
from duetime.lifecycle.tasks.steer import Steering
from duetime.model.firing import Room, Situation, Turn, put_off, take_turn_in_pieces
from duetime.recurrence import PIECE_STEPS, SEARCH_STEPS, SpecError
from duetime.scheduler.hints import Hints
from duetime.scheduler.refusals import Refusals, TurnsRefused, reason_of, try_apart
from duetime.service import Background, Loop, Service, Services

log = structlog.get_logger()
BATCH = 500
LOOK_EVERY = timedelta(seconds=1)
SWEEP_EVERY = timedelta(seconds=10)
SWEEP_BATCH = 2_000
_LANES_EVERY_SECONDS = 30.0
_DECIDED_AT_ONCE = 50
#: The budget for the turns of one tenant in a batch; the others are put off.
TENANT_STEPS = 100_000
#: Storing the result of a time takes about as long as this many steps.
TIME_STEPS = 100
_PUT_OFF_MS = 500
#: How soon to return to a schedule that was being changed.
_AGAIN_MS = 100


Decided = tuple[DueSchedule, Situation, Turn]


class Firing:
    def __init__(
        self,
        database: Database,
        partitions: Partitions,
        schedules: Schedules,
        backfills: Backfills,
        recurrences: Recurrences,
        steering: Steering,
        wake: Wake,
        *,
        feeds: Callable[[int], bool] = lambda lane: True,
        has_duty: Callable[[str], bool] = lambda duty: True,
        room: TaskRoom = BOUNDLESS,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._room = room
        self._evaluating = Loops()
        self._counted_steps = 0
        self._database = database
        self._partitions = partitions
        self._schedules = schedules
        self._backfills = backfills
        self._recurrences = recurrences
        self._steering = steering
        self._wake_others = wake
        self._feeds = feeds
        self._has_duty = has_duty
        self._hints = Hints(MINT_TOLERANCE_MS)
        self._refusals = Refusals(monotonic)
        #: The first known turn of each lane.
        self._first: dict[int, uuid.UUID] = {}
        self._lanes: set[int] = set()
        self._lanes_at = 0.0
        #: The batch that the database is executing.
        self._under_way: tuple[list[Decided], asyncio.Task[list[DueSchedule]]] | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False
        database.clock.jumped.listen(self._clock_jumped)
        # No turns were taken meanwhile.
        database.clock.settled.listen(self._changed.set)
        self._firing = Background("fire", self._run)
        self._services = Services(
            [
                Service("schedules", start=self.look),
                self._firing,
                Loop("look at schedules", self.look, jitter=0.0),
                Loop("backfill", self.backfill, jitter=0.0),
                Loop("sweep schedules", self.sweep),
            ]
        )
        self._swept_to = 0
        #: How many schedules had lost their row in due; it should stay 0.
        self.healed = 0

    async def start(self) -> None:
        await self._services.start()

    @property
    def trouble(self) -> str | None:
        """Why firing is disturbed; None if it is not."""
        return self._firing.trouble

    async def stop(self) -> None:
        self._is_stopping = True
        self._changed.set()
        await self._services.stop()

    def wake(self, wakes: Iterable[uuid.UUID]) -> None:
        """Note rows that were put into due; those of schedules are in lanes of their own."""
        for wake in wakes:
            lane = lane_of(wake)
            if lane >= SCHEDULE_LANES_END:
                continue
            # Also for a shard that this node is about to get: the next look finds it.
            self._lanes.add(lane)
            if self._feeds(lane):
                self._know(lane, wake)

    def _clock_jumped(self, jump_us: int) -> None:
        """Forget what is drained if the database's clock went back: it is not certain any more."""
        if jump_us < 0:
            self._hints.forget()
        self._changed.set()

    def _know(self, lane: int, wake: uuid.UUID) -> None:
        if lane not in self._first or wake < self._first[lane]:
            self._first[lane] = wake
            self._changed.set()

    async def _run(self) -> None:
        failures = 0
        while not self._is_stopping:
            self._changed.clear()
            try:
                pause = await self.step()
                failures = 0
            except (Unavailable, asyncpg.PostgresError) as error:
                failures += 1
                # Refused turns have been logged already.
                if not isinstance(error, TurnsRefused) and (failures in (1, 5) or failures % 20 == 0):
                    log.warning("firing waits for the database", failures=failures, error=str(error))
                pause = min(0.1 * 2.0 ** min(failures, 10), 5.0)
            except Exception:
                failures += 1
                # Whatever the error is, go on: a loop that ends would leave every schedule waiting.
                log.exception("firing failed")
                pause = min(1.0 * failures, 5.0)
            if failures:
                # A turn that was put back is not a new one.
                self._changed.clear()
            if (pause is None or pause > 0) and not self._is_stopping:
                await self._pause(pause)

    async def _pause(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def step(self) -> float | None:
        """Fire the due schedules; returns the seconds until the next known turn."""
        if self._database.clock.is_held:
            # It is uncertain whether anything is due.
            await self._finish_batch()
            return None
        now_ms = self._database.clock.now_ms()
        until = just_after(now_ms)
        since = {lane: first for lane, first in self._first.items() if first < until and self._feeds(lane)}
        if not since:
            await self._finish_batch()
            return self._until_next()
        # Removed before the read: the read may not see a turn that is reported from here on.
        for lane in since:
            del self._first[lane]
        try:
            await self._take_turns(since, until)
        except BaseException:
            for lane, first in since.items():
                self._know(lane, first)
            raise
        return self._until_next()

    async def _take_turns(self, since: dict[int, uuid.UUID], until: uuid.UUID) -> None:
        found = await read_due(self._database, since, until, BATCH)
        turns = await self._decide_all(found)
        # While the database executes one batch, the next one is read and decided.
        await self._finish_batch()
        self._under_way = (turns, asyncio.create_task(self._carry_out(turns)))
        if found.is_full:
            last = found.last_of_lanes()
            for lane, first in since.items():
                # Only a part of the lane was read, or nothing is due in it.
                self._know(lane, uuid.UUID(int=last[lane].int + 1) if lane in last else first)
        else:
            await self._finish_batch()
            await self._look_behind(since, until)

    async def _finish_batch(self) -> None:
        """Wait for the batch under way; turns that were not executed come again."""
        if self._under_way is None:
            return
        turns, execution = self._under_way
        try:
            missed = await execution
        except BaseException:
            for schedule, _, _ in turns:
                self._know(schedule.lane, schedule.wake)
            raise
        finally:
            self._under_way = None
        if missed:
            await asyncio.sleep(_AGAIN_MS / 1000)
            for schedule in missed:
                self._know(schedule.lane, schedule.wake)

    def _until_next(self) -> float | None:
        first = min((due_ms_of(wake) for lane, wake in self._first.items() if self._feeds(lane)), default=None)
        return None if first is None else max((first * 1000 - self._database.clock.now_us()) / 1e6, 0.0)

    async def _look_behind(self, since: dict[int, uuid.UUID], until: uuid.UUID) -> None:
        """The first turn of each lane that is not due yet."""
        look = await peek(self._database, {lane: uuid.UUID(int=until.int - 1) for lane in since})
        for lane, first in look.first.items():
            if first is not None:
                self._know(lane, first)

    async def _decide_all(self, found: DueSchedules) -> list[Decided]:
        """Decide what each schedule does in its turn; runs that have to make room for the next one are cancelled."""
        if found.orphans:
            lanes = [lane_of(wake) for wake in found.orphans]
            await self._database.run(SQL["forget"], lanes=lanes, wakes=found.orphans)
        under_way = set() if self._under_way is None else {schedule.wake for schedule, _, _ in self._under_way[0]}
        is_held = self._refusals.is_held
        schedules = [each for each in found.schedules if each.wake not in under_way and not is_held(each.id)]
        if not schedules:
            return []
        situations = await read_situations(self._database, schedules)
        turns: list[Decided] = []
        spent: dict[int, int] = {}
        now_ms = self._database.clock.now_ms()
        for place, schedule in enumerate(schedules):
            situation = situations[schedule.id]
            turn: Turn | None
            if spent.get(schedule.tenant, 0) > TENANT_STEPS:
                # A tenant whose schedules take long to evaluate, or have years to make up for, delays no other tenant.
                turn = put_off(situation, now_ms + _PUT_OFF_MS)
            else:
                turn = await self._decide(schedule, situation, now_ms)
            # A schedule that cannot be decided has used a whole search, and is paused.
            steps = max(self._count_steps(), SEARCH_STEPS if turn is None else turn.steps)
            times = 0 if turn is None else len(turn.planned) + len(turn.noted)
            spent[schedule.tenant] = spent.get(schedule.tenant, 0) + steps + times * TIME_STEPS
            if turn is not None:
                turns.append((schedule, situation, turn))
            if place % _DECIDED_AT_ONCE == 0 or steps > PIECE_STEPS:
                # Many turns are decided in pieces, so that requests are answered in between.
                await asyncio.sleep(0)
        turns = await self._fit(turns, now_ms)
        cancelled = [task for _, _, turn in turns for task in turn.cancel]
        if cancelled:
            await self._steering.cancel(cancelled, "its schedule's next run takes its place")
        return turns

    async def _fit(self, turns: list[Decided], now_ms: int) -> list[Decided]:
        """The turns, with as many tasks as the quotas of their tenants allow."""
        sizes: dict[int, list[int]] = {}
        for schedule, _, turn in turns:
            if turn.planned:
                sizes.setdefault(schedule.tenant, []).extend([schedule.size] * len(turn.planned))
        rooms: dict[int, Room] = {}
        for tenant, wanted in sizes.items():
            granted = await self._room.make_room(tenant, wanted)
            if granted.refusal is not None:
                rooms[tenant] = Room(granted.most, granted.refusal.reason)
        if not rooms:
            return turns
        fitting: list[Decided] = []
        for decided in turns:
            schedule, situation, turn = decided
            room = rooms.get(schedule.tenant)
            if room is not None:
                if len(turn.planned) > room.most:
                    fits = await self._decide(schedule, situation, now_ms, room)
                    if fits is None:
                        continue
                    decided = (schedule, situation, fits)
                rooms[schedule.tenant] = Room(room.most - len(decided[2].planned), room.why)
            fitting.append(decided)
        for tenant, left in rooms.items():
            self._room.give_back(tenant, left.most)
        return fitting

    async def _carry_out(self, turns: list[Decided]) -> list[DueSchedule]:
        """Give each schedule its turn; returns those that did not get it and may still be due."""
        missed: list[DueSchedule] = []

        async def give_turns(some: list[Decided]) -> None:
            fired = await fire(self._database, self._partitions, some)
            self._refusals.fired(fired.schedules, has_tasks=bool(fired.tasks))
            self._wake_others(fired.tasks)
            for wake in fired.wakes:
                self._know(lane_of(wake), wake)
            missed.extend(schedule for schedule, _, _ in some if schedule.id not in fired.schedules)

        began_at = self._refusals.now()
        refused = await try_apart(turns, give_turns)
        for (schedule, _, turn), _ in refused:
            self._room.give_back(schedule.tenant, len(turn.planned))
        errors = [(schedule.id, error) for (schedule, _, _), error in refused]
        paused = self._refusals.judge(errors, began_at, are_all=len(refused) == len(turns))
        for (schedule, _, _), error in refused:
            if schedule.id in paused:
                await self._stop_schedule(schedule, reason_of(error))
        return missed

    async def _decide(
        self, schedule: DueSchedule, situation: Situation, now_ms: int, room: Room | None = None
    ) -> Turn | None:
        try:
            body, recurrence = await self._recurrences.of(
                schedule.tenant,
                (schedule.id, schedule.version),
                key_of(schedule.tenant, schedule.name),
                schedule.definition,
                schedule.calendars,
                self._evaluating,
            )
            work = take_turn_in_pieces(body, recurrence, situation, now_ms, room)
            turn = await self._evaluating.run(schedule.tenant, work)
        except SpecError as error:
            # The zone or a calendar was removed after the schedule was made, or it takes too long to evaluate.
            await self._stop_schedule(schedule, f"paused: {error.path}: {error.message}")
            return None
        except (Unavailable, asyncpg.PostgresError):
            raise
        except Exception:
            # Whatever the error is, it concerns this schedule only.
            name = self._schedules.tenant_name(schedule.tenant)
            log.exception("a schedule cannot be fired", tenant=name, schedule=schedule.name)
            await self._stop_schedule(schedule, "paused: a fault of the server; its log has more")
            return None
        if turn.pause is not None:
            await self._stop_schedule(schedule, f"paused: {turn.pause}")
            return None
        return turn

    def _count_steps(self) -> int:
        """The seconds spent on pieces since the last call; less than a piece counts as nothing."""
        steps = self._evaluating.steps - self._counted_steps
        self._counted_steps = self._evaluating.steps
        return steps

    async def _stop_schedule(self, schedule: DueSchedule, reason: str) -> None:
        name = self._schedules.tenant_name(schedule.tenant)
        log.error("a schedule was paused", tenant=name, schedule=schedule.name, reason=reason)
        await self._schedules.pause(schedule.tenant, schedule.name, reason)

    # Turns that were not reported

    async def look(self) -> timedelta:
        """Find the first turn of every lane here, from where it is drained for certain."""
        await self._read_lanes()
        lanes = [lane for lane in self._lanes if self._feeds(lane)]
        if not lanes:
            return LOOK_EVERY
        around = await note(self._database)
        self._hints.note(around.now_us // 1000, around.oldest_open, around.next_new)
        began = self._monotonic()
        look = await peek(self._database, {lane: self._hints.low(lane) for lane in lanes})
        self._hints.note(look.now_us // 1000, look.oldest_open, look.next_new)
        for lane, first in look.first.items():
            self._hints.seen(lane, first)
            if first is not None:
                self._know(lane, first)
        # The firing loop has to compute its sleep again: the clock may have jumped, a shard may have come.
        self._changed.set()
        # Look less often if looking is costly.
        took = self._monotonic() - began
        return max(LOOK_EVERY, timedelta(seconds=min(took * 50, 10.0)))

    async def _read_lanes(self) -> None:
        if self._monotonic() >= self._lanes_at:
            rows = await self._database.run(SCHEDULES_SQL["read_shards"])
            # Lanes with a turn reported meanwhile are not in the answer.
            self._lanes.update(row["shard"] for row in rows)
            self._lanes_at = self._monotonic() + _LANES_EVERY_SECONDS

    async def backfill(self) -> timedelta:
        """Continue the backfills of the lanes here with a second's worth of work."""
        lanes = [lane for lane in self._lanes if self._feeds(lane)]
        if lanes:
            tasks = await self._backfills.step(lanes, 1.0)
            if tasks:
                self._wake_others(tasks)
        return timedelta(seconds=1)

    async def sweep(self) -> timedelta:
        """Check some schedules in turn: each active one must have its row in due."""
        if not self._has_duty("sweep schedules"):
            return SWEEP_EVERY
        [row] = await self._database.run(SQL["sweep"], after=self._swept_to, batch=SWEEP_BATCH)
        self._swept_to = row["last"] if row["seen"] == SWEEP_BATCH else 0
        if row["healed"]:
            self.healed += len(row["healed"])
            log.error("schedules had lost their turn, and have it again", count=len(row["healed"]))
            self._wake_others(row["healed"])
        return SWEEP_EVERY
