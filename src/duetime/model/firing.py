"""What a schedule does when its turn comes: pure rules, no I/O.

A fire is planned a little ahead, so that its task waits for its own time to the
millisecond.  If a run before it is not over at the time of planning, nothing is
planned: the decision is made when the fire's time has come, by the state of that
run then.  A fire that is later than the schedule's threshold is a misfire, and the
misfire policy decides.  A fire for which the tenant's quotas leave no room is
skipped; buffered fires stay buffered.
"""

import uuid
from collections.abc import Generator
from dataclasses import dataclass, field

from duetime.model.schedule import MAX_BUFFERED, FireOutcome, Misfire, Overlap, ScheduleBody
from duetime.model.task import TaskState
from duetime.recurrence import PIECE_STEPS, Fire, Recurrence, finish

#: How long before its time a fire becomes a task.
AHEAD_MS = 2_000
#: How often to look whether the run that others wait for is over.
WATCH_MS = 500
_LONGEST_WATCH_MS = 10_000
#: How long a cancelled run may take to learn of it: its holder beats every 3 seconds.
CANCEL_GRACE_MS = 5_000
#: One turn is bounded: the next turn does the rest.
MAX_FIRES_AT_ONCE = 100
MAX_MISSED_AT_ONCE = 10_000
#: The same bound in steps of the recurrence.
TURN_STEPS = 200_000

_OVER = frozenset({TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELLED, TaskState.EXPIRED})


@dataclass(frozen=True, slots=True)
class Run:
    """A task that the schedule made; `state` is None if it is past its retention."""

    task: uuid.UUID
    state: TaskState | None
    ended_ms: int | None = None

    @property
    def is_open(self) -> bool:
        return self.state is not None and self.state not in _OVER


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of a schedule when its turn comes."""

    next_ms: int | None
    fired: int
    #: Nominal times that wait for the run before them.
    buffer: tuple[int, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """A task to be made: for the nominal time, to run at `run_at_ms`, not before `due_ms`."""

    nominal_ms: int
    run_at_ms: int
    due_ms: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """A time for which no task was made, and why."""

    nominal_ms: int
    outcome: FireOutcome
    reason: str | None
    #: Missed times without a line of their own are counted in the line of the first.
    times: int = 1


@dataclass
class Turn:
    """What the schedule does now, and when its next turn is."""

    planned: list[Planned] = field(default_factory=list)
    noted: list[Noted] = field(default_factory=list)
    cancel: list[uuid.UUID] = field(default_factory=list)
    buffer: list[int] = field(default_factory=list)
    next_ms: int | None = None
    #: None: there is no next turn, the schedule has ended.
    wake_ms: int | None = None
    #: It pauses instead of waiting for a next turn, for this reason.
    pause: str | None = None
    #: How many of the noted times were skipped because there was no room.
    refused: int = 0
    #: How many steps of the recurrence the decision took.
    steps: int = 0

    @property
    def skipped(self) -> list[Noted]:
        return [each for each in self.noted if each.outcome is FireOutcome.SKIPPED]

    @property
    def missed(self) -> int:
        return sum(each.times for each in self.noted if each.outcome is FireOutcome.MISSED)


@dataclass(frozen=True, slots=True)
class Room:
    """The most tasks that may be made, and why not more."""

    most: int
    why: str


def take_turn(
    body: ScheduleBody, recurrence: Recurrence, situation: Situation, now_ms: int, room: Room | None = None
) -> Turn:
    """Decide everything that is due by now or a little later. `room` None: there is room for all of it."""
    return finish(take_turn_in_pieces(body, recurrence, situation, now_ms, room))


def take_turn_in_pieces(
    body: ScheduleBody, recurrence: Recurrence, situation: Situation, now_ms: int, room: Room | None = None
) -> Generator[None, None, Turn]:
    """Like `take_turn`, in pieces: a caller that decides many turns lets other work run between two pieces."""
    if body.pause_on_failure and any(run.state is TaskState.DEAD for run in situation.runs):
        return Turn(
            pause="the last run failed for good, and the schedule pauses on failure",
            next_ms=situation.next_ms,
            buffer=list(situation.buffer),
        )
    taking = _Taking(body, recurrence, situation, now_ms, room)
    if body.spec.after is not None:
        turn = taking.after_completion()
    else:
        turn = yield from taking.by_the_clock()
    turn.steps = taking.steps
    return turn


def put_off(situation: Situation, until_ms: int) -> Turn:
    """Do nothing now; the next turn of the schedule is at that time."""
    return Turn(buffer=list(situation.buffer), next_ms=situation.next_ms, wake_ms=until_ms)


class _Taking:
    def __init__(
        self, body: ScheduleBody, recurrence: Recurrence, situation: Situation, now_ms: int, room: Room | None
    ) -> None:
        self.room = room
        self.body = body
        self.recurrence = recurrence
        self.now_ms = now_ms
        self.threshold_ms = int(body.misfire_threshold * 1000)
        self.open = [run for run in situation.runs if run.is_open]
        self.runs = situation.runs
        # What is buffered counts as fired, because it will be.
        self.fired = situation.fired + len(situation.buffer)
        self.next_ms = situation.next_ms
        self.turn = Turn(buffer=list(situation.buffer))
        self.steps = 0
        self._piece = 0

    def _find(self, after_ms: int) -> Fire | None:
        """The next fire after this time."""
        # Other callers may use the same recurrence between two pieces.
        before = self.recurrence.spent
        fire = self.recurrence.next(after_ms)
        self.steps += self.recurrence.spent - before
        return fire

    def _find_after_completion(self, ended_ms: int) -> Fire | None:
        before = self.recurrence.spent
        fire = self.recurrence.next_after_completion(ended_ms)
        self.steps += self.recurrence.spent - before
        return fire

    def _is_piece_over(self) -> bool:
        if self.steps - self._piece < PIECE_STEPS:
            return False
        self._piece = self.steps
        return True

    # The end of a run decides

    def after_completion(self) -> Turn:
        turn, after_ms = self.turn, int((self.body.spec.after or 0.0) * 1000)
        if self.open:
            # The next time is counted from the end, so a look once in that time is early enough.
            turn.wake_ms = self.now_ms + max(1, min(max(after_ms // 2, WATCH_MS), _LONGEST_WATCH_MS))
            return turn
        if self._is_used_up():
            return turn
        if self.next_ms is None:
            ended_ms = max((run.ended_ms for run in self.runs if run.ended_ms is not None), default=self.now_ms)
            fire = self._find_after_completion(ended_ms)
        else:
            fire = Fire(self.next_ms, self.next_ms)
        if fire is None:
            return turn
        if fire.at_ms > self.now_ms + AHEAD_MS:
            turn.next_ms, turn.wake_ms = fire.nominal_ms, fire.at_ms - AHEAD_MS
            return turn
        if not self._has_room():
            self._refuse(fire)
            # As if a run had ended now: the next time is just as far away.
            following = self._find_after_completion(max(fire.at_ms, self.now_ms))
            if following is not None:
                turn.next_ms, turn.wake_ms = following.nominal_ms, max(following.at_ms - AHEAD_MS, self.now_ms)
            return turn
        self._plan(fire)
        turn.wake_ms = max(fire.at_ms, self.now_ms) + min(max(after_ms // 2, WATCH_MS), _LONGEST_WATCH_MS)
        return turn

    # The clock decides

    def by_the_clock(self) -> Generator[None, None, Turn]:
        turn = self.turn
        self._start_buffered()
        fire = None if self.next_ms is None else self._find(self.next_ms - 1)
        pause_until: int | None = None
        while fire is not None and pause_until is None and not self._is_used_up():
            # A long threshold may contain any number of times, all of which are skipped.
            if fire.at_ms > self.now_ms + AHEAD_MS or len(turn.planned) + len(turn.noted) >= MAX_FIRES_AT_ONCE:
                break
            if self.steps > TURN_STEPS:
                break
            if self._is_piece_over():
                yield
            if self.now_ms - fire.at_ms > self.threshold_ms:
                fire, pause_until = yield from self._misfire(fire)
                continue
            if fire.at_ms > self.now_ms and self._must_wait():
                pause_until = fire.at_ms
                break
            self._fire_or_not(fire)
            fire = self._find(fire.nominal_ms)
        if self._is_used_up():
            fire = None
        turn.next_ms = None if fire is None else fire.nominal_ms
        wakes = [self.now_ms + WATCH_MS] if turn.buffer else []
        if pause_until is not None:
            wakes.append(pause_until)
        elif fire is not None:
            wakes.append(max(fire.at_ms - AHEAD_MS, self.now_ms))
        turn.wake_ms = min(wakes, default=None)
        return turn

    def _start_buffered(self) -> None:
        turn = self.turn
        while turn.buffer and self._has_room() and (not self.open or self.body.overlap is Overlap.ALLOW):
            nominal_ms = turn.buffer.pop(0)
            self._plan(Fire(nominal_ms, nominal_ms), "waited for the run before it")
            # It was counted already.
            self.fired -= 1

    def _must_wait(self) -> bool:
        """Whether what happens now depends on a run that is not over."""
        return self.body.overlap is not Overlap.ALLOW and bool(self.open or self.turn.buffer)

    def _fire_or_not(self, fire: Fire, reason: str | None = None) -> None:
        if not self._must_wait():
            self._plan_or_refuse(fire, reason)
            return
        match self.body.overlap:
            case Overlap.SKIP:
                self._note(fire, FireOutcome.SKIPPED, self._why_busy())
            case Overlap.BUFFER_ONE | Overlap.BUFFER_ALL:
                most = 1 if self.body.overlap is Overlap.BUFFER_ONE else MAX_BUFFERED
                if len(self.turn.buffer) < most:
                    self.turn.buffer.append(fire.nominal_ms)
                    self._note(fire, FireOutcome.BUFFERED, self._why_busy())
                    self.fired += 1
                else:
                    self._note(fire, FireOutcome.SKIPPED, f"{most} buffered already; {self._why_busy()}")
            case Overlap.CANCEL_OTHER | Overlap.TERMINATE_OTHER if not self._has_room():
                # The run before goes on: nothing could take its place.
                self._refuse(fire)
            case Overlap.CANCEL_OTHER | Overlap.TERMINATE_OTHER:
                is_gentle = self.body.overlap is Overlap.CANCEL_OTHER
                is_running = any(run.state is TaskState.RUNNING for run in self.open)
                self.turn.cancel += [run.task for run in self.open if run.task.int]
                self.open.clear()
                grace_ms = self._grace_ms(fire) if is_gentle and is_running else 0
                self._plan(fire, reason or "took the place of the run before it", grace_ms)
            case Overlap.ALLOW:
                self._plan_or_refuse(fire, reason)

    def _grace_ms(self, fire: Fire) -> int:
        """Time for the cancelled run to learn of it; the new run gets at least as much before the next fire."""
        following = self._find(fire.nominal_ms)
        if following is None:
            return CANCEL_GRACE_MS
        return max(0, min(CANCEL_GRACE_MS, (following.at_ms - self.now_ms) // 2))

    def _why_busy(self) -> str:
        if not self.open:
            return "the run before it is buffered"
        return f"the run before it is still {self.open[-1].state}"

    def _misfire(self, fire: Fire) -> Generator[None, None, tuple[Fire | None, int | None]]:
        """Make up for missed fires, or not. Return the next fire, and until when to wait for it."""
        oldest_ms = self.now_ms - int(self.body.catchup_window * 1000)
        if self.body.misfire is Misfire.FIRE_ALL and fire.at_ms >= oldest_ms:
            return (yield from self._catch_up(fire))
        first, last, count = fire, fire, 0
        next_fire: Fire | None = fire
        while next_fire is not None and self._is_missed(next_fire, oldest_ms) and count < MAX_MISSED_AT_ONCE:
            last, count = next_fire, count + 1
            next_fire = self._find(last.nominal_ms)
            if self.steps > TURN_STEPS:
                break
            if self._is_piece_over():
                yield
        is_all = next_fire is None or not self._is_missed(next_fire, oldest_ms)
        makes_up = self.body.misfire is Misfire.FIRE_LATEST and is_all and last.at_ms >= oldest_ms
        self._miss(first, count - makes_up)
        if makes_up:
            self._fire_or_not(last, "late" if count == 1 else f"the latest of {count} that were missed")
        # The next turn, which follows at once, does the rest.
        return next_fire, None if is_all else self.now_ms

    def _is_missed(self, fire: Fire, oldest_ms: int) -> bool:
        """Whether the fire gets no run of its own: it is too late, or too long ago to make up for."""
        if self.body.misfire is Misfire.FIRE_ALL:
            return fire.at_ms < oldest_ms
        return self.now_ms - fire.at_ms > self.threshold_ms

    def _catch_up(self, fire: Fire) -> Generator[None, None, tuple[Fire | None, int | None]]:
        step_ms = 1000.0 / self.body.catchup_rate
        if self.body.overlap is not Overlap.ALLOW:
            # The run before it decides each fire.
            self._fire_or_not(fire, "late")
            return self._find(fire.nominal_ms), self.now_ms + max(1, int(step_ms))
        count = 0
        next_fire: Fire | None = fire
        most = min(MAX_FIRES_AT_ONCE, max(1, int(self.body.catchup_rate)))
        while next_fire is not None and self.now_ms - next_fire.at_ms > self.threshold_ms and count < most:
            if self._is_used_up():
                return None, None
            self._plan_or_refuse(next_fire, "late", int(count * step_ms))
            count += 1
            next_fire = self._find(next_fire.nominal_ms)
            if self.steps > TURN_STEPS:
                break
            if self._is_piece_over():
                yield
        return next_fire, self.now_ms + max(1, int(count * step_ms))

    def _miss(self, first: Fire, count: int) -> None:
        if count <= 0:
            return
        times = "its time" if count == 1 else f"this time and {count - 1} after it"
        reason = f"{times} went by unserved (misfire {self.body.misfire})"
        self.turn.noted.append(Noted(first.nominal_ms, FireOutcome.MISSED, reason, count))

    def _is_used_up(self) -> bool:
        return self.body.max_fires is not None and self.fired >= self.body.max_fires

    def _has_room(self) -> bool:
        return self.room is None or len(self.turn.planned) < self.room.most

    def _plan_or_refuse(self, fire: Fire, reason: str | None, wait_ms: int = 0) -> None:
        if self._has_room():
            self._plan(fire, reason, wait_ms)
        else:
            self._refuse(fire)

    def _refuse(self, fire: Fire) -> None:
        self.turn.refused += 1
        self._note(fire, FireOutcome.SKIPPED, None if self.room is None else self.room.why)

    def _plan(self, fire: Fire, reason: str | None = None, wait_ms: int = 0) -> None:
        due_ms = max(fire.at_ms, self.now_ms + wait_ms)
        self.turn.planned.append(Planned(fire.nominal_ms, fire.at_ms, due_ms, reason or fire.note))
        self.fired += 1
        # It has no id yet, and it is not over.
        self.open.append(Run(uuid.UUID(int=0), TaskState.SCHEDULED))

    def _note(self, fire: Fire, outcome: FireOutcome, reason: str | None) -> None:
        self.turn.noted.append(Noted(fire.nominal_ms, outcome, reason))
