"""One task through every move, on a real database."""

import itertools
from datetime import timedelta

from duetime.lifecycle.holders.holders import Named
from duetime.model.retry import FREE_RELEASES, RetryPolicy
from duetime.model.task import Options, Outcome, TaskState
from engine import Engine


async def test_a_task_is_submitted_claimed_and_settled(engine: Engine) -> None:
    [task] = await engine.submit(payload=b'{"n": 1}')
    assert await engine.state(task) is TaskState.READY

    [leased] = await engine.claim()
    assert (leased.id, leased.number, leased.payload) == (task, 1, b'{"n": 1}')
    assert await engine.state(task) is TaskState.RUNNING

    settled = await engine.settle([leased], result=b"42")

    assert settled.settled == [task]
    assert await engine.state(task) is TaskState.SUCCEEDED
    assert await engine.outcomes(task) == ["succeeded"]


async def test_a_future_task_is_not_claimed_early(engine: Engine) -> None:
    [task] = await engine.submit(delay=60.0)

    assert await engine.claim() == []
    assert await engine.state(task) is TaskState.SCHEDULED


async def test_a_failed_attempt_is_tried_again_until_its_attempts_are_used_up(engine: Engine) -> None:
    options = Options(retry=RetryPolicy(max_attempts=2, min_backoff=0.0))
    [task] = await engine.submit(options=options)

    await engine.settle(await engine.claim(), Outcome.FAILED)
    [second] = await engine.claim()
    assert (second.number, second.failures) == (2, 1)
    await engine.settle([second], Outcome.FAILED)

    assert await engine.state(task) is TaskState.DEAD
    assert await engine.outcomes(task) == ["failed", "failed"]


async def test_a_permanent_failure_is_a_dead_letter_at_once(engine: Engine) -> None:
    [task] = await engine.submit()

    await engine.settle(await engine.claim(), Outcome.FAILED, is_permanent=True)

    assert await engine.state(task) is TaskState.DEAD


async def test_a_snooze_uses_up_no_attempt(engine: Engine) -> None:
    [task] = await engine.submit(options=Options(retry=RetryPolicy(max_attempts=1)))

    await engine.settle(await engine.claim(), Outcome.SNOOZED, retry_after=0.0)
    [second] = await engine.claim()
    assert (second.number, second.failures) == (2, 0)
    await engine.settle([second])

    assert await engine.state(task) is TaskState.SUCCEEDED


async def test_a_failure_waits_for_its_backoff(engine: Engine) -> None:
    [task] = await engine.submit(options=Options(retry=RetryPolicy(min_backoff=60.0)))

    await engine.settle(await engine.claim(), Outcome.FAILED)

    assert await engine.claim() == []
    assert await engine.state(task) is TaskState.RETRYING


async def test_a_report_is_answered_with_what_is_dead_by_it_also_when_it_is_repeated(engine: Engine) -> None:
    once = Options(retry=RetryPolicy(max_attempts=1))
    [dying] = await engine.submit(options=once)
    [failing] = await engine.submit(options=Options(retry=RetryPolicy(max_attempts=2)))
    leased = await engine.claim()

    first = await engine.settle(leased, Outcome.FAILED)
    again = await engine.settle(leased, Outcome.FAILED)

    assert set(first.settled) == set(again.settled) == {dying, failing}
    assert first.dead == again.dead == [dying]


async def test_a_task_s_own_crash_budget_counts(engine: Engine) -> None:
    [task] = await engine.submit(options=Options(retry=RetryPolicy(max_crashes=1)))
    await engine.claim()
    await engine.holders.beat(engine.tenant, "w", [Named(task, 1, started=True)])

    await engine.lapse()

    assert await engine.state(task) is TaskState.DEAD


async def test_started_attempts_of_a_dead_holder_cost_the_crash_budget(engine: Engine) -> None:
    [task] = await engine.submit()
    for number in (1, 2, 3):
        [leased] = await engine.claim()
        assert (leased.number, leased.crashes) == (number, number - 1)
        await engine.holders.beat(engine.tenant, "w", [Named(task, number, started=True)])
        await engine.lapse()

    assert await engine.state(task) is TaskState.DEAD
    assert await engine.outcomes(task) == ["lapsed", "lapsed", "lapsed"]


async def test_attempts_that_never_started_cost_nothing_when_their_holder_dies(engine: Engine) -> None:
    [task] = await engine.submit()
    for number in range(1, FREE_RELEASES + 1):
        [leased] = await engine.claim()
        assert (leased.number, leased.crashes, leased.releases) == (number, 0, number - 1)
        await engine.holders.beat(engine.tenant, "w", [Named(task, number, started=False)])
        await engine.lapse()

    assert await engine.state(task) is TaskState.READY
    assert await engine.outcomes(task) == ["released"] * FREE_RELEASES


async def test_a_task_that_is_released_again_and_again_waits_longer_and_longer(engine: Engine) -> None:
    [task] = await engine.submit()
    for _ in range(FREE_RELEASES + 1):
        assert len(await engine.claim()) == 1
        await engine.lapse()

    assert await engine.claim() == []
    assert await engine.state(task) is TaskState.SCHEDULED


async def test_at_most_once_is_never_run_again_after_its_holder_died(engine: Engine) -> None:
    [task] = await engine.submit(options=Options(delivery="at_most_once"))
    await engine.claim()

    await engine.lapse()

    assert await engine.state(task) is TaskState.DEAD
    assert await engine.outcomes(task) == ["unknown"]


async def test_at_most_once_fails_for_good(engine: Engine) -> None:
    [task] = await engine.submit(options=Options(delivery="at_most_once"))

    await engine.settle(await engine.claim(), Outcome.FAILED)

    assert await engine.state(task) is TaskState.DEAD


async def test_pause_and_resume_keep_the_time(engine: Engine) -> None:
    [task] = await engine.submit(delay=60.0)

    assert (await engine.steering.pause([task]))[task].state is TaskState.PAUSED
    assert (await engine.steering.resume([task]))[task].state is TaskState.SCHEDULED

    rows = await engine.database.fetch("SELECT wake = task AS is_first FROM due")
    assert rows[0]["is_first"]


async def test_a_paused_task_is_not_claimed_and_runs_at_once_when_resumed_late(engine: Engine) -> None:
    [task] = await engine.submit()
    await engine.steering.pause([task])
    assert await engine.claim() == []

    await engine.steering.resume([task])

    assert [leased.id for leased in await engine.claim()] == [task]


async def test_reschedule_moves_the_time_both_ways(engine: Engine) -> None:
    [task] = await engine.submit()
    later = engine.database.clock.now() + timedelta(days=400)

    assert (await engine.steering.reschedule([task], later))[task].state is TaskState.SCHEDULED
    assert await engine.claim() == []
    assert (await engine.steering.run_now([task]))[task].changed

    assert [leased.id for leased in await engine.claim()] == [task]


async def test_every_attempt_of_a_rescheduled_task_has_its_new_time(engine: Engine) -> None:
    clock = engine.database.clock
    first_at = (clock.now() + timedelta(days=3)).replace(microsecond=0)
    [task, untouched] = await engine.submit(2, run_at=first_at)
    await engine.steering.run_now([untouched])
    await engine.database.read_clock()
    before = clock.now()

    # Never before now: what lies in the past is now.
    await engine.steering.reschedule([task], before - timedelta(days=1))
    leased = {each.id: each for each in await engine.claim()}
    moved_at = leased[task].run_at
    assert before - timedelta(seconds=1) < moved_at < before + timedelta(minutes=1)
    assert leased[untouched].run_at == first_at
    await engine.settle([leased[task]], Outcome.FAILED, retry_after=0.0)
    [second] = await engine.claim()
    assert (second.number, second.run_at) == (2, moved_at)
    await engine.settle([second], Outcome.FAILED, retry_after=60.0)

    again_at = (clock.now() + timedelta(hours=1)).replace(microsecond=123_456)
    await engine.steering.reschedule([task], again_at)
    await engine.steering.run_now([task])
    [third] = await engine.claim()

    assert (third.number, third.run_at) == (3, again_at)


async def test_a_paused_task_that_is_rescheduled_has_its_new_time_when_it_runs(engine: Engine) -> None:
    [task] = await engine.submit()
    await engine.steering.pause([task])
    later = (engine.database.clock.now() + timedelta(minutes=5)).replace(microsecond=0)
    await engine.steering.reschedule([task], later)

    await engine.steering.run_now([task])

    [leased] = await engine.claim()
    assert leased.run_at == later


async def test_a_paused_task_that_is_rescheduled_stays_paused(engine: Engine) -> None:
    [task] = await engine.submit()
    await engine.steering.pause([task])
    later = engine.database.clock.now() + timedelta(minutes=5)

    assert (await engine.steering.reschedule([task], later))[task].state is TaskState.PAUSED
    assert (await engine.steering.resume([task]))[task].state is TaskState.SCHEDULED


async def test_cancel_from_every_place(engine: Engine) -> None:
    waiting, paused, retrying, running, dead = await engine.submit(5)
    await engine.steering.pause([waiting, paused])
    leased = {task.id: task for task in await engine.claim()}
    await engine.settle([leased[retrying]], Outcome.FAILED)
    await engine.settle([leased[dead]], Outcome.FAILED, is_permanent=True)
    await engine.steering.resume([waiting])

    verdicts = await engine.steering.cancel([waiting, paused, retrying, running, dead])

    assert {verdict.changed for verdict in verdicts.values()} == {True}
    assert {verdict.state for verdict in verdicts.values()} == {TaskState.CANCELLED}
    assert (await engine.settle([leased[running]])).cancelled == [running]
    again = await engine.steering.cancel([waiting])
    assert (again[waiting].changed, again[waiting].state) == (False, TaskState.CANCELLED)


async def test_a_dead_letter_is_redriven_with_fresh_budgets(engine: Engine) -> None:
    [task] = await engine.submit(options=Options(retry=RetryPolicy(max_attempts=1)))
    await engine.settle(await engine.claim(), Outcome.FAILED)

    assert (await engine.steering.redrive([task]))[task].changed

    [leased] = await engine.claim()
    assert (leased.number, leased.failures) == (2, 0)


async def test_redriving_at_a_rate_spreads_the_tasks(engine: Engine) -> None:
    tasks = await engine.submit(5)
    await engine.settle(await engine.claim(), Outcome.FAILED, is_permanent=True)

    await engine.steering.redrive(tasks, rate=2.0)

    rows = await engine.database.fetch("SELECT due_ms(wake) AS ms FROM due ORDER BY wake")
    gaps = [later["ms"] - earlier["ms"] for earlier, later in itertools.pairwise(rows)]
    assert gaps == [500, 500, 500, 500]


async def test_a_dropped_dead_letter_is_over(engine: Engine) -> None:
    [task] = await engine.submit()
    await engine.settle(await engine.claim(), Outcome.FAILED, is_permanent=True)

    await engine.steering.drop([task])

    assert await engine.state(task) is TaskState.CANCELLED
    assert not (await engine.steering.redrive([task]))[task].changed
