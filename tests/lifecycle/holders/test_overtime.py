"""Attempts that go on beyond their time-out are ended by whoever hears their worker's beats."""

import uuid
from collections.abc import Sequence

import msgspec
import pytest

from duetime.database.pool import Database
from duetime.lifecycle.holders.holders import BeatResult, Holders, Named
from duetime.lifecycle.holders.overtime import GRACE_SECONDS
from duetime.lifecycle.tasks.settle import Report, Settler
from duetime.model.retry import RetryPolicy
from duetime.model.task import DEFAULT_TIMEOUT_SECONDS, LeasedTask, Options, Outcome, Target, TaskState
from engine import Engine

TIMEOUT = 20.0
BRIEF = Options(timeout=TIMEOUT, retry=RetryPolicy(max_attempts=2, min_backoff=0.0))


class Hearing:
    """One node that hears the beats of the worker `w`, with a time of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = 1_000.0
        self.holders = Holders(engine.database, engine.onward, monotonic=lambda: self.now)

    async def beat(self, *attempts: Named) -> BeatResult:
        return await self.holders.beat(self.engine.tenant, "w", attempts)

    async def beat_for(self, seconds: float, *attempts: Named) -> BeatResult:
        """Every three seconds until that time has passed."""
        ends_at = self.now + seconds
        while self.now + 3.0 < ends_at:
            self.now += 3.0
            await self.beat(*attempts)
        self.now = ends_at
        return await self.beat(*attempts)


@pytest.fixture
def hearing(engine: Engine) -> Hearing:
    return Hearing(engine)


async def error_of(engine: Engine, task: uuid.UUID) -> str:
    rows = await engine.database.fetch("SELECT detail FROM attempt WHERE task = $1 ORDER BY number DESC LIMIT 1", task)
    message: str = msgspec.json.decode(rows[0]["detail"])["error"]["message"]
    return message


async def settle(
    hearing: Hearing, tasks: Sequence[LeasedTask], outcome: Outcome = Outcome.SUCCEEDED
) -> list[uuid.UUID]:
    settler = Settler(hearing.engine.database, hearing.holders, hearing.engine.onward)
    answer = await settler.settle(hearing.engine.tenant, "w", [Report(task.id, task.number, outcome) for task in tasks])
    return answer.lost


async def test_an_attempt_that_beats_on_past_its_time_out_is_ended_and_tried_again(
    engine: Engine, hearing: Hearing
) -> None:
    [task] = await engine.submit(options=BRIEF)
    leased = await engine.claim()
    named = Named(task, 1)
    await hearing.beat(named)

    answer = await hearing.beat_for(TIMEOUT + GRACE_SECONDS - 0.1, named)
    assert (answer.lost, await engine.state(task)) == ([], TaskState.RUNNING)
    hearing.now += 0.1
    answer = await hearing.beat(named)

    assert answer.lost == [task]
    assert await engine.outcomes(task) == ["failed"]
    assert await engine.state(task) in (TaskState.READY, TaskState.RETRYING)
    assert "timed out after 20 s" in await error_of(engine, task)
    [row] = await engine.database.fetch("SELECT started_at, picked_at FROM attempt WHERE task = $1", task)
    assert row["started_at"] >= row["picked_at"]
    # A worker that did not hear it is told again, by any node, and its own word comes too late.
    assert (await Hearing(engine).beat(named)).lost == [task]
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
        assert await settle(hearing, leased, outcome) == [task]


async def test_a_time_out_uses_an_attempt_and_the_last_one_is_a_dead_letter(engine: Engine, hearing: Hearing) -> None:
    [task] = await engine.submit(options=BRIEF)
    for number in (1, 2):
        [leased] = await engine.claim()
        assert (leased.number, leased.failures) == (number, number - 1)
        await hearing.beat(Named(task, number))
        await hearing.beat_for(TIMEOUT + GRACE_SECONDS, Named(task, number))

    assert await engine.outcomes(task) == ["failed", "failed"]
    assert await engine.state(task) is TaskState.DEAD


async def test_a_task_without_a_time_out_has_the_default(engine: Engine, hearing: Hearing) -> None:
    [task] = await engine.submit()
    await engine.claim()
    await hearing.beat(Named(task, 1))

    assert (await hearing.beat_for(DEFAULT_TIMEOUT_SECONDS, Named(task, 1))).lost == []
    assert (await hearing.beat_for(GRACE_SECONDS, Named(task, 1))).lost == [task]


async def test_the_time_counts_from_the_beat_that_says_it_is_started(engine: Engine, hearing: Hearing) -> None:
    [task] = await engine.submit(options=BRIEF)
    await engine.claim()
    await hearing.beat(Named(task, 1, started=False))
    await hearing.beat_for(TIMEOUT, Named(task, 1, started=False))
    await hearing.beat(Named(task, 1))

    assert (await hearing.beat_for(TIMEOUT + GRACE_SECONDS - 1, Named(task, 1))).lost == []
    # A worker that takes its word back gains nothing.
    assert (await hearing.beat_for(1, Named(task, 1, started=False))).lost == [task]
    assert await engine.outcomes(task) == ["failed"]


async def test_what_is_not_begun_within_its_time_out_goes_to_somebody_else_at_no_cost(
    engine: Engine, hearing: Hearing
) -> None:
    [task] = await engine.submit(options=BRIEF)
    [once] = await engine.submit(options=Options(timeout=TIMEOUT, delivery="at_most_once"))
    await engine.claim()
    waiting = [Named(task, 1, started=False), Named(once, 1, started=False)]
    await hearing.beat(*waiting)

    answer = await hearing.beat_for(TIMEOUT + GRACE_SECONDS, *waiting)

    assert answer.lost == [task]
    assert (await engine.outcomes(task), await engine.state(task)) == (["released"], TaskState.READY)
    # It may be starting just now, and must not start twice.
    assert await engine.state(once) is TaskState.RUNNING
    [again] = await engine.claim("other")
    assert (again.failures, again.crashes, again.releases) == (0, 0, 0)


async def test_at_most_once_is_over_after_its_time_out(engine: Engine, hearing: Hearing) -> None:
    [task] = await engine.submit(options=Options(timeout=TIMEOUT, delivery="at_most_once"))
    await engine.claim()
    await hearing.beat(Named(task, 1))

    await hearing.beat_for(TIMEOUT + GRACE_SECONDS, Named(task, 1))

    assert (await engine.outcomes(task), await engine.state(task)) == (["failed"], TaskState.DEAD)


async def test_calls_are_ended_by_their_executor(engine: Engine, hearing: Hearing) -> None:
    [task] = await engine.submit(options=Options(timeout=TIMEOUT, target=Target("http://127.0.0.1:1/")))
    await engine.claim()
    await hearing.beat(Named(task, 1))

    assert (await hearing.beat_for(10 * TIMEOUT, Named(task, 1))).lost == []


async def test_another_node_goes_on_from_when_it_was_started(engine: Engine, hearing: Hearing) -> None:
    [task] = await engine.submit(options=BRIEF)
    await engine.claim()
    await hearing.beat(Named(task, 1))
    # As if that was so long ago.
    await engine.database.execute(
        "UPDATE holder SET running_us = ARRAY(SELECT since - $1::bigint FROM unnest(running_us) AS since)",
        int((TIMEOUT + GRACE_SECONDS - 3) * 1e6),
    )
    other = Hearing(engine)

    assert (await other.beat(Named(task, 1))).lost == []
    assert (await other.beat_for(3, Named(task, 1))).lost == [task]


async def test_what_was_begun_while_another_node_heard_it_keeps_its_time(engine: Engine, hearing: Hearing) -> None:
    first, second = await engine.submit(2, options=BRIEF)
    await engine.claim()
    await hearing.beat(Named(first, 1), Named(second, 1, started=False))
    other = Hearing(engine)
    await other.beat(Named(first, 1), Named(second, 1))
    await engine.database.execute(
        "UPDATE holder SET running_us = ARRAY(SELECT since - $1::bigint FROM unnest(running_us) AS since)",
        int((TIMEOUT + GRACE_SECONDS) * 1e6),
    )

    answer = await hearing.beat(Named(first, 1), Named(second, 1))

    assert set(answer.lost) == {first, second}
    [row] = await engine.database.fetch("SELECT beats FROM holder")
    assert row["beats"] == 3


async def test_a_node_that_stood_still_ends_nothing_that_is_over(engine: Engine, hearing: Hearing) -> None:
    """What the beat names may have been settled meanwhile."""
    done, cancelled = await engine.submit(2, options=BRIEF)
    leased = await engine.claim()
    named = [Named(done, 1), Named(cancelled, 1)]
    await hearing.beat(*named)
    await settle(hearing, [task for task in leased if task.id == done])
    await engine.steering.cancel([cancelled])
    hearing.now += 10 * TIMEOUT

    answer = await hearing.beat(*named)

    assert (answer.lost, answer.cancelled) == ([], [cancelled])
    assert await engine.outcomes(done) == ["succeeded"]


async def test_a_beat_whose_answer_was_lost_is_repeated(engine: Engine, database: Database) -> None:
    hearing = Hearing(engine)
    [task] = await engine.submit(options=BRIEF)
    await engine.claim()
    await hearing.beat(Named(task, 1))
    # Raised once more than the node knows.
    await engine.database.execute("UPDATE holder SET beats = beats + 1")

    assert (await hearing.beat(Named(task, 1))).lost == []
    assert (await hearing.beat_for(TIMEOUT + GRACE_SECONDS, Named(task, 1))).lost == [task]
