"""What a schedule does when its turn comes: every policy, on the pure rules."""

import itertools
import uuid
from typing import Any

import pytest
from msgspec import Raw

from duetime.model.firing import (
    AHEAD_MS,
    CANCEL_GRACE_MS,
    MAX_FIRES_AT_ONCE,
    MAX_MISSED_AT_ONCE,
    TURN_STEPS,
    Room,
    Run,
    Situation,
    Turn,
    take_turn,
    take_turn_in_pieces,
)
from duetime.model.schedule import FireOutcome, Misfire, Overlap, ScheduleBody
from duetime.model.task import TaskState
from duetime.recurrence import PIECE_STEPS, SEARCH_STEPS, ExclusionRule, Spec, compile_definition

MINUTE = 60_000
#: A full minute.
NOON = 1_800_000_000_000 // MINUTE * MINUTE


def body(**fields: Any) -> ScheduleBody:
    spec = fields.pop("spec", Spec(every=60.0))
    return ScheduleBody(spec=spec, task=Raw(b"{}"), **fields)


def turn(
    schedule: ScheduleBody,
    now_ms: int,
    *,
    next_ms: int | None = NOON,
    runs: tuple[Run, ...] = (),
    buffer: tuple[int, ...] = (),
    fired: int = 0,
    room: int | None = None,
) -> Turn:
    recurrence = compile_definition(schedule.definition("1/test"), {})
    limited = None if room is None else Room(room, "full")
    return take_turn(schedule, recurrence, Situation(next_ms, fired, buffer, runs), now_ms, limited)


def run(state: TaskState | None, ended_ms: int | None = None) -> Run:
    return Run(uuid.UUID(int=7), state, ended_ms)


def nominal(found: Turn) -> list[int]:
    return [each.nominal_ms for each in found.planned]


def outcomes(found: Turn) -> list[tuple[int, FireOutcome]]:
    return [(each.nominal_ms, each.outcome) for each in found.noted]


def test_a_fire_is_planned_ahead_for_its_own_time() -> None:
    found = turn(body(), NOON - AHEAD_MS)

    assert [(each.nominal_ms, each.due_ms) for each in found.planned] == [(NOON, NOON)]
    assert (found.next_ms, found.wake_ms) == (NOON + MINUTE, NOON + MINUTE - AHEAD_MS)


def test_what_is_further_ahead_waits() -> None:
    found = turn(body(), NOON - AHEAD_MS - 1)

    assert found.planned == []
    assert (found.next_ms, found.wake_ms) == (NOON, NOON - AHEAD_MS)


def test_a_run_that_is_not_over_puts_the_decision_off_until_the_time_has_come() -> None:
    found = turn(body(), NOON - AHEAD_MS, runs=(run(TaskState.RUNNING),))

    assert (found.planned, found.noted) == ([], [])
    assert (found.next_ms, found.wake_ms) == (NOON, NOON)


@pytest.mark.parametrize("state", [TaskState.RUNNING, TaskState.READY, TaskState.RETRYING, TaskState.PAUSED])
def test_skip_leaves_a_time_out_while_a_run_is_not_over(state: TaskState) -> None:
    found = turn(body(), NOON, runs=(run(state),))

    assert found.planned == []
    assert outcomes(found) == [(NOON, FireOutcome.SKIPPED)]
    assert str(state) in (found.noted[0].reason or "")
    assert found.next_ms == NOON + MINUTE


@pytest.mark.parametrize("state", [TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELLED, TaskState.EXPIRED, None])
def test_a_run_that_is_over_holds_nothing_up(state: TaskState | None) -> None:
    assert nominal(turn(body(), NOON, runs=(run(state),))) == [NOON]


def test_allow_does_not_look_at_other_runs() -> None:
    found = turn(body(overlap=Overlap.ALLOW), NOON - AHEAD_MS, runs=(run(TaskState.RUNNING),))

    assert nominal(found) == [NOON]


def test_allow_plans_all_that_is_near() -> None:
    found = turn(body(overlap=Overlap.ALLOW, spec=Spec(every=1.0)), NOON - AHEAD_MS, next_ms=NOON - 1000)

    assert nominal(found) == [NOON - 1000, NOON]


def test_without_allow_a_second_time_waits_for_the_first() -> None:
    found = turn(body(spec=Spec(every=1.0)), NOON - AHEAD_MS, next_ms=NOON - 1000)

    assert nominal(found) == [NOON - 1000]
    assert (found.next_ms, found.wake_ms) == (NOON, NOON)


def test_buffer_one_puts_one_time_aside_and_skips_the_others() -> None:
    schedule = body(overlap=Overlap.BUFFER_ONE)
    first = turn(schedule, NOON, runs=(run(TaskState.RUNNING),))
    second = turn(
        schedule, NOON + MINUTE, next_ms=NOON + MINUTE, runs=(run(TaskState.RUNNING),), buffer=tuple(first.buffer)
    )

    assert (first.buffer, outcomes(first)) == ([NOON], [(NOON, FireOutcome.BUFFERED)])
    assert (second.buffer, outcomes(second)) == ([NOON], [(NOON + MINUTE, FireOutcome.SKIPPED)])
    assert first.wake_ms is not None
    assert first.wake_ms < NOON + 1000


def test_what_is_buffered_starts_when_the_run_before_it_is_over() -> None:
    found = turn(
        body(overlap=Overlap.BUFFER_ALL),
        NOON + 10_000,
        next_ms=NOON + MINUTE,
        runs=(run(TaskState.SUCCEEDED),),
        buffer=(NOON - MINUTE, NOON),
    )

    assert nominal(found) == [NOON - MINUTE]
    assert found.buffer == [NOON]
    assert found.next_ms == NOON + MINUTE


def test_buffer_all_keeps_a_thousand() -> None:
    found = turn(
        body(overlap=Overlap.BUFFER_ALL),
        NOON,
        runs=(run(TaskState.RUNNING),),
        buffer=tuple(range(1_000)),
    )

    assert len(found.buffer) == 1_000
    assert outcomes(found) == [(NOON, FireOutcome.SKIPPED)]


@pytest.mark.parametrize(
    ("overlap", "state", "grace_ms"),
    [
        (Overlap.CANCEL_OTHER, TaskState.RUNNING, CANCEL_GRACE_MS),
        (Overlap.CANCEL_OTHER, TaskState.READY, 0),
        (Overlap.TERMINATE_OTHER, TaskState.RUNNING, 0),
    ],
)
def test_a_run_is_cancelled_for_the_next_one(overlap: Overlap, state: TaskState, grace_ms: int) -> None:
    found = turn(body(overlap=overlap), NOON, runs=(run(state),))

    assert found.cancel == [uuid.UUID(int=7)]
    assert [(each.nominal_ms, each.due_ms) for each in found.planned] == [(NOON, NOON + grace_ms)]


@pytest.mark.parametrize(("fields", "late_ms"), [({}, 10_000), ({"misfire_threshold": 1.5}, 1_500)])
def test_a_little_late_is_no_misfire(fields: Any, late_ms: int) -> None:
    schedule = body(misfire=Misfire.SKIP, **fields)

    in_time, too_late = turn(schedule, NOON + late_ms), turn(schedule, NOON + late_ms + 1)

    assert [(each.nominal_ms, each.due_ms) for each in in_time.planned] == [(NOON, NOON + late_ms)]
    assert in_time.missed == 0
    assert (too_late.planned, too_late.missed) == ([], 1)


@pytest.mark.parametrize("misfire", list(Misfire))
def test_with_a_long_threshold_every_time_of_an_outage_is_fired(misfire: Misfire) -> None:
    found = turn(body(misfire=misfire, misfire_threshold=3_600.0, overlap=Overlap.ALLOW), OUTAGE_END)

    assert nominal(found) == [NOON + minute * MINUTE for minute in range(11)]
    assert {each.reason for each in found.planned} == {None}
    assert found.missed == 0


def test_a_turn_notes_so_many_times_and_leaves_the_rest_to_the_next_one() -> None:
    schedule = body(spec=Spec(every=1.0), misfire_threshold=86_400.0)
    now_ms = NOON + 1_000_000

    found = turn(schedule, now_ms, runs=(run(TaskState.RUNNING),))

    assert len(found.noted) == MAX_FIRES_AT_ONCE
    assert (found.next_ms, found.wake_ms) == (NOON + MAX_FIRES_AT_ONCE * 1_000, now_ms)


#: Ten minutes without anybody who fires: 10 times went by, the last of them a moment ago.
OUTAGE_END = NOON + 10 * MINUTE + 5_000


def test_after_an_outage_skip_goes_on_with_the_next() -> None:
    found = turn(body(misfire=Misfire.SKIP), OUTAGE_END)

    # The tenth minute is only 5 s late.
    assert nominal(found) == [NOON + 10 * MINUTE]
    assert (found.missed, outcomes(found)) == (10, [(NOON, FireOutcome.MISSED)])
    assert found.next_ms == NOON + 11 * MINUTE


def test_after_an_outage_fire_latest_makes_up_for_one() -> None:
    found = turn(body(misfire=Misfire.FIRE_LATEST, overlap=Overlap.ALLOW), OUTAGE_END)

    assert nominal(found) == [NOON + 9 * MINUTE, NOON + 10 * MINUTE]
    assert found.missed == 9


def fire_all(schedule: ScheduleBody, now_ms: int) -> tuple[list[int], list[int], int]:
    """Turn after turn until nothing is late: the nominal times, when each was due, and how many were missed."""
    times: list[int] = []
    due: list[int] = []
    missed = 0
    next_ms: int | None = NOON
    while next_ms is not None and next_ms <= now_ms:
        found = turn(schedule, now_ms, next_ms=next_ms)
        times += nominal(found)
        due += [each.due_ms for each in found.planned]
        missed += found.missed
        next_ms = found.next_ms
        assert found.wake_ms is not None
        now_ms = max(now_ms, found.wake_ms)
    return times, due, missed


def test_after_an_outage_fire_all_makes_up_for_each_once() -> None:
    for overlap in (Overlap.ALLOW, Overlap.SKIP):
        times, _, missed = fire_all(body(misfire=Misfire.FIRE_ALL, overlap=overlap), OUTAGE_END)

        assert times == [NOON + minute * MINUTE for minute in range(11)]
        assert missed == 0


def test_catching_up_keeps_its_rate() -> None:
    _, due, _ = fire_all(body(misfire=Misfire.FIRE_ALL, overlap=Overlap.ALLOW, catchup_rate=2.0), OUTAGE_END)

    late = due[:10]
    assert min(after - before for before, after in itertools.pairwise(late)) >= 500


def test_what_is_older_than_the_window_is_missed() -> None:
    times, _, missed = fire_all(
        body(misfire=Misfire.FIRE_ALL, overlap=Overlap.ALLOW, catchup_window=3 * 60.0), OUTAGE_END
    )

    assert (times[0], missed) == (NOON + 8 * MINUTE, 8)

    latest = turn(body(misfire=Misfire.FIRE_LATEST, catchup_window=10.0, overlap=Overlap.ALLOW), OUTAGE_END + 20_000)
    assert (nominal(latest), latest.missed) == ([], 11)


def test_a_long_outage_of_a_short_rhythm_takes_bounded_turns() -> None:
    schedule = body(
        spec=Spec(every=1.0), misfire=Misfire.FIRE_LATEST, overlap=Overlap.ALLOW, catchup_window=366 * 86_400.0
    )
    first = turn(schedule, NOON + 86_400_000)
    times, _, missed = fire_all(schedule, NOON + 86_400_000)

    assert (first.missed, first.planned, first.wake_ms) == (MAX_MISSED_AT_ONCE, [], NOON + 86_400_000)
    # The last ten seconds are not late, and two more are planned ahead.
    assert missed + len(times) == 86_403
    assert times == [NOON + 86_400_000 - second * 1000 for second in range(11, -3, -1)]


def test_the_last_of_max_fires_ends_the_schedule() -> None:
    found = turn(body(max_fires=5), NOON, fired=4)

    assert nominal(found) == [NOON]
    assert (found.next_ms, found.wake_ms) == (None, None)
    assert turn(body(max_fires=5), NOON, fired=5).planned == []


def test_a_failure_pauses_a_schedule_that_asks_for_it() -> None:
    assert turn(body(pause_on_failure=True), NOON, runs=(run(TaskState.DEAD),)).pause is not None
    assert turn(body(pause_on_failure=True), NOON, runs=(run(TaskState.SUCCEEDED),)).pause is None
    assert turn(body(), NOON, runs=(run(TaskState.DEAD),)).pause is None


AFTER = body(spec=Spec(after=300.0))


def test_after_counts_from_the_end_of_the_run() -> None:
    ended = run(TaskState.SUCCEEDED, NOON)
    waiting = turn(AFTER, NOON + 1_000, next_ms=None, runs=(ended,))
    firing = turn(AFTER, NOON + 300_000 - AHEAD_MS, next_ms=waiting.next_ms, runs=(ended,))

    assert (waiting.planned, waiting.next_ms) == ([], NOON + 300_000)
    assert [(each.nominal_ms, each.due_ms) for each in firing.planned] == [(NOON + 300_000, NOON + 300_000)]
    assert firing.next_ms is None


def test_after_looks_again_while_the_run_is_under_way() -> None:
    found = turn(AFTER, NOON, next_ms=None, runs=(run(TaskState.RUNNING),))

    assert found.planned == []
    assert found.wake_ms is not None
    assert NOON < found.wake_ms <= NOON + 10_000


# Quotas


def test_a_fire_without_room_is_skipped_and_the_next_one_goes_on() -> None:
    found = turn(body(max_fires=1), NOON - AHEAD_MS, room=0)

    assert (found.planned, found.refused) == ([], 1)
    assert [(each.nominal_ms, each.outcome, each.reason) for each in found.noted] == [
        (NOON, FireOutcome.SKIPPED, "full")
    ]
    assert (found.next_ms, found.wake_ms) == (NOON + MINUTE, NOON + MINUTE - AHEAD_MS)


def test_of_a_catch_up_as_many_are_made_as_there_is_room_for() -> None:
    schedule = body(misfire=Misfire.FIRE_ALL, overlap=Overlap.ALLOW, catchup_rate=100.0)

    found = turn(schedule, NOON + 4 * MINUTE + 30_000, room=2)

    assert nominal(found) == [NOON, NOON + MINUTE]
    assert outcomes(found) == [(NOON + place * MINUTE, FireOutcome.SKIPPED) for place in (2, 3, 4)]
    assert found.next_ms == NOON + 5 * MINUTE


def test_what_is_buffered_waits_for_room() -> None:
    found = turn(body(overlap=Overlap.BUFFER_ALL), NOON + 1, next_ms=NOON + MINUTE, buffer=(NOON,), room=0)

    assert (found.planned, found.noted, found.buffer) == ([], [], [NOON])
    assert found.wake_ms is not None
    assert found.wake_ms < NOON + 1000


@pytest.mark.parametrize("overlap", [Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER])
def test_no_run_is_cancelled_for_one_that_finds_no_room(overlap: Overlap) -> None:
    found = turn(body(overlap=overlap), NOON, runs=(run(TaskState.RUNNING),), room=0)

    assert (found.planned, found.cancel) == ([], [])
    assert outcomes(found) == [(NOON, FireOutcome.SKIPPED)]


def test_after_a_run_that_found_no_room_the_next_time_is_as_far_away_as_after_any() -> None:
    schedule = body(spec=Spec(after=60.0))

    found = turn(schedule, NOON, next_ms=NOON, room=0)

    assert outcomes(found) == [(NOON, FireOutcome.SKIPPED)]
    assert (found.next_ms, found.wake_ms) == (NOON + MINUTE, NOON + MINUTE - AHEAD_MS)


def test_a_turn_ends_within_its_steps_and_the_rest_is_another_one() -> None:
    # Each time is found behind 59 that are left out: some 600 steps.
    spec = Spec(cron=("* * * * *",), exclude=(ExclusionRule(cron="1-59 * * * *"),))
    schedule = ScheduleBody(spec=spec, task=Raw(b"{}"), misfire=Misfire.SKIP)
    recurrence = compile_definition(schedule.definition("1/test"), {})
    hour_ms = 3_600_000
    first_ms = 450_000 * hour_ms
    now_ms = first_ms + 2_000 * hour_ms

    next_ms: int | None = first_ms
    missed = 0
    turns: list[Turn] = []
    while next_ms is not None and next_ms <= now_ms:
        found = take_turn(schedule, recurrence, Situation(next_ms, 0, (), ()), now_ms)
        turns.append(found)
        missed, next_ms = missed + found.missed, found.next_ms
    anew = compile_definition(schedule.definition("1/test"), {})
    pieces = list(take_turn_in_pieces(schedule, anew, Situation(first_ms, 0, (), ()), now_ms))

    assert missed == 2_000
    assert 4 <= len(turns) <= 20
    assert all(each.steps <= TURN_STEPS + SEARCH_STEPS for each in turns)
    assert [each.wake_ms for each in turns[:-1]] == [now_ms] * (len(turns) - 1)
    assert len(pieces) >= TURN_STEPS // PIECE_STEPS // 2
