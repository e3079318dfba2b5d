"""Beats: who is alive, what it holds, and what never reached it."""

import itertools
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from duetime.clock import to_us
from duetime.database.pool import Database
from duetime.ids import EARLIEST, just_after
from duetime.lifecycle.holders import holders as holders_module
from duetime.lifecycle.holders.holders import ALL_AGAIN_SECONDS, LATE_COMMIT, Holders, Look, Named
from duetime.lifecycle.tasks.claim import LaneOrder, claim_due
from duetime.lifecycle.tasks.settle import Report
from duetime.model.task import Options, Outcome, TaskState
from duetime.scheduler.liveness import Liveness
from engine import Engine
from lifecycle.test_races import blocked, held_open
from proxy import proxied


async def test_an_attempt_that_two_beats_do_not_name_is_released(engine: Engine) -> None:
    [task] = await engine.submit()
    await engine.claim()

    await engine.holders.beat(engine.tenant, "w", [])
    assert await engine.state(task) is TaskState.RUNNING
    await engine.holders.beat(engine.tenant, "w", [])

    assert await engine.state(task) is TaskState.READY
    [second] = await engine.claim()
    assert (second.number, second.failures, second.crashes, second.releases) == (2, 0, 0, 1)
    assert second.is_recovered


async def test_a_beat_that_waited_for_the_database_does_not_make_what_it_sees_older(engine: Engine) -> None:
    """It came before the claim that it sees: the next beat may be sent a moment after that."""
    seconds = [0.0]
    holders = Holders(engine.database, engine.onward, monotonic=lambda: seconds[0])
    [task] = await engine.submit()
    for each in (holders, engine.holders):
        await each.register(engine.tenant, "w")
    async with engine.database.connection() as connection, held_open(connection):
        await connection.execute("SELECT FROM holder WHERE name = 'w' FOR NO KEY UPDATE")
        beating = await blocked(engine.database, holders.beat(engine.tenant, "w", []))
        seconds[0] = 2.5
        await engine.claim()
    await beating

    seconds[0] = 3.0
    await holders.beat(engine.tenant, "w", [])
    assert await engine.state(task) is TaskState.RUNNING
    seconds[0] = 5.0
    await holders.beat(engine.tenant, "w", [])
    assert await engine.state(task) is TaskState.READY


async def test_an_attempt_that_is_named_stays(engine: Engine) -> None:
    [task] = await engine.submit()
    await engine.claim()

    for _ in range(4):
        answer = await engine.holders.beat(engine.tenant, "w", [Named(task, 1)])

    assert (answer.lost, answer.cancelled) == ([], [])
    assert await engine.state(task) is TaskState.RUNNING


async def test_a_beat_tells_what_is_lost_and_what_is_cancelled(engine: Engine) -> None:
    lost, cancelled, kept = await engine.submit(3)
    leased = {task.id: task for task in await engine.claim()}
    await engine.settle([leased[lost]], Outcome.RELEASED)
    await engine.steering.cancel([cancelled])
    stranger = uuid.uuid4()

    answer = await engine.holders.beat(
        engine.tenant, "w", [Named(lost, 1), Named(cancelled, 1), Named(kept, 1), Named(stranger, 1)]
    )

    assert answer.lost == [lost, stranger]
    assert answer.cancelled == [cancelled]


async def test_what_the_holder_settled_itself_is_not_lost(engine: Engine) -> None:
    [task] = await engine.submit()
    leased = await engine.claim()
    await engine.settle(leased)

    answer = await engine.holders.beat(engine.tenant, "w", [Named(task, 1)])

    assert answer.lost == []


async def test_two_workers_under_one_name_run_nothing_twice(engine: Engine) -> None:
    """Each beat names only its own half; what the other holds is released and runs under the next number."""
    tasks = await engine.submit(2)
    first = await engine.claim("same", room=1)
    second = await engine.claim("same", room=1)
    for _ in range(2):
        await engine.holders.beat(engine.tenant, "same", [Named(first[0].id, 1)])
        await engine.holders.beat(engine.tenant, "same", [Named(second[0].id, 1)])

    again = await engine.claim("third")

    assert {task.number for task in again} <= {2}
    assert len({(task.id, task.number) for task in [*first, *second, *again]}) == 2 + len(again)
    settled = await engine.settle([*first, *second], worker="same")
    assert set(settled.lost) == {task.id for task in again}
    await engine.settle(again, worker="third")
    for task in tasks:
        assert await engine.state(task) is TaskState.SUCCEEDED


async def test_a_holder_that_was_ended_begins_anew_and_has_lost_what_it_held(engine: Engine) -> None:
    [task] = await engine.submit()
    leased = await engine.claim()
    await engine.lapse()

    answer = await engine.holders.beat(engine.tenant, "w", [Named(task, 1)])

    assert answer.lost == [task]
    assert (await engine.settle(leased)).lost == [task]
    [second] = await engine.claim()
    assert second.holder != leased[0].holder


async def test_a_claim_for_a_holder_that_has_just_ended_is_swept(engine: Engine) -> None:
    holder = await engine.holders.register(engine.tenant, "w")
    rows = await engine.database.fetch("SELECT beats FROM holder WHERE id = $1", holder)
    await engine.database.execute("UPDATE holder SET ended_at = clock_timestamp() WHERE id = $1", holder)
    [task] = await engine.submit()
    assert len(await engine.claim()) == 1

    await engine.end_silent([(holder, rows[0]["beats"])])

    assert await engine.state(task) is TaskState.READY


async def test_what_a_holder_holds_that_signs_off_is_given_back_at_once_and_at_no_cost(engine: Engine) -> None:
    begun, waiting, unnamed = await engine.submit(3)
    await engine.claim()
    await engine.holders.beat(engine.tenant, "w", [Named(task, 1, False) for task in (begun, waiting, unnamed)])

    assert await engine.holders.sign_off(engine.tenant, "w", [Named(begun, 1), Named(waiting, 1, False)])

    for task in (begun, waiting, unnamed):
        assert await engine.state(task) is TaskState.READY
    again = await engine.claim("other")
    assert {(task.number, task.failures, task.crashes, task.releases) for task in again} == {(2, 0, 0, 0)}
    assert not any(task.is_recovered for task in again)
    assert await engine.holders.sign_off(engine.tenant, "w") is None


async def test_what_may_start_once_is_not_started_again_after_its_holder_has_signed_off(engine: Engine) -> None:
    once_only = Options(delivery="at_most_once")
    said, said_before, waiting = await engine.submit(3, options=once_only)
    await engine.claim()
    await engine.holders.beat(
        engine.tenant, "w", [Named(said_before, 1), Named(said, 1, False), Named(waiting, 1, False)]
    )

    await engine.holders.sign_off(engine.tenant, "w", [Named(said, 1), Named(waiting, 1, False)])

    assert await engine.state(said) is TaskState.DEAD
    assert await engine.state(said_before) is TaskState.DEAD
    assert await engine.outcomes(said) == ["unknown"]
    assert await engine.state(waiting) is TaskState.READY


async def test_a_begun_attempt_is_released_by_a_report_and_the_same_report_again(engine: Engine) -> None:
    [many] = await engine.submit()
    [once] = await engine.submit(options=Options(delivery="at_most_once"))
    leased = await engine.claim()
    reports = [Report(task.id, 1, Outcome.RELEASED, started_us=to_us(task.picked_at)) for task in leased]

    for _ in range(2):
        answer = await engine.settler.settle(engine.tenant, "w", reports)
        assert set(answer.settled) == {many, once}

    assert await engine.state(many) is TaskState.READY
    assert await engine.outcomes(many) == ["released"]
    assert await engine.outcomes(once) == ["unknown"]


async def test_a_claim_for_a_holder_that_has_just_signed_off_costs_nothing(engine: Engine) -> None:
    holder = await engine.holders.register(engine.tenant, "w")
    await engine.holders.sign_off(engine.tenant, "w")
    [task] = await engine.submit(options=Options(delivery="at_most_once"))
    until = just_after(engine.database.clock.now_ms())
    lane = await engine.lanes.ensure(engine.lane_key())
    await claim_due(engine.database, [LaneOrder(lane, EARLIEST, [(holder, 1)])], until)

    await engine.end_silent([])

    assert await engine.state(task) is TaskState.READY
    [again] = await engine.claim("other")
    assert (again.number, again.releases) == (2, 0)


async def test_a_settlement_whose_answer_was_lost_is_settled_once(database_url: str) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through)
        engine = await Engine.open(database)
        await engine.submit(2)
        one, two = await engine.claim()
        await engine.settle([one])

        proxy.swallow = 1
        answer = await engine.settle([two])

        assert answer.settled == [two.id]
        assert await engine.outcomes(two.id) == ["succeeded"]
        await database.close()


async def test_a_cancel_whose_answer_was_lost_is_done_once(database_url: str) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through)
        engine = await Engine.open(database)
        one, two = await engine.submit(2)
        await engine.steering.cancel([one])

        proxy.swallow = 1
        await engine.steering.cancel([two])

        assert await engine.outcomes(two) == ["cancelled"]
        await database.close()


async def test_two_beats_in_quick_succession_release_nothing(engine: Engine) -> None:
    """A holder beats out of turn before it starts a recovered task; a lease may be on its way to it."""
    [task] = await engine.submit()
    await engine.claim()
    holders = Holders(engine.database, engine.onward, monotonic=lambda: 1.0)

    for _ in range(3):
        await holders.beat(engine.tenant, "w", [])

    assert await engine.state(task) is TaskState.RUNNING


async def age_claims(engine: Engine) -> None:
    await engine.database.execute("UPDATE claim SET picked_at = picked_at - interval '1 hour'")


async def test_a_holder_whose_beats_go_to_several_nodes_at_a_time_has_not_ended(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counter is raised by none of them for once; its polls go on."""
    ended: set[int] = set()
    engine.left.listen(ended.update)
    holder = await engine.holders.register(engine.tenant, "w")
    monkeypatch.setattr(holders_module, "_MOST_RECALLS", 0)

    missed = await engine.holders.beat(engine.tenant, "w", [])
    monkeypatch.undo()
    assert ended == set()
    await engine.database.execute("UPDATE holder SET ended_at = clock_timestamp() WHERE id = $1", holder)
    renewed = await engine.holders.beat(engine.tenant, "w", [])

    assert missed.holder == holder
    assert renewed.holder != holder
    assert ended == {holder}
    rows = await engine.database.fetch("SELECT beats FROM holder WHERE id = $1", renewed.holder)
    assert rows[0]["beats"] > 0


async def test_what_a_beat_names_is_its_own_however_long_ago_it_was_picked(engine: Engine) -> None:
    first, second = await engine.submit(2)
    await engine.claim()
    named = [Named(first, 1), Named(second, 1)]
    await engine.holders.beat(engine.tenant, "w", named)
    await age_claims(engine)
    await engine.steering.cancel([second])

    answer = await engine.holders.beat(engine.tenant, "w", named)

    assert (answer.lost, answer.cancelled) == ([], [second])


async def test_what_no_beat_names_is_released_also_when_it_is_no_longer_among_the_latest(engine: Engine) -> None:
    [task] = await engine.submit()
    await engine.claim()
    await engine.holders.beat(engine.tenant, "w", [])
    await age_claims(engine)

    await engine.holders.beat(engine.tenant, "w", [])

    assert await engine.state(task) is TaskState.READY


async def test_a_claim_that_is_seen_too_late_is_found_when_all_are_read_again(engine: Engine) -> None:
    now = [0.0]
    holders = Holders(engine.database, engine.onward, monotonic=lambda: now[0])
    await holders.beat(engine.tenant, "w", [])
    [task] = await engine.submit()
    await engine.claim()
    await age_claims(engine)

    for now[0] in (3.0, 6.0):
        await holders.beat(engine.tenant, "w", [])
    assert await engine.state(task) is TaskState.RUNNING
    for now[0] in (ALL_AGAIN_SECONDS, ALL_AGAIN_SECONDS + 3.0):
        await holders.beat(engine.tenant, "w", [])

    assert await engine.state(task) is TaskState.READY


async def test_beats_that_went_elsewhere_meanwhile_make_a_node_read_all_again(engine: Engine) -> None:
    """The other node may have seen what it did not name, and died."""
    here = Holders(engine.database, engine.onward, monotonic=itertools.count(0.0, 3.0).__next__)
    await here.beat(engine.tenant, "w", [])
    [task] = await engine.submit()
    await engine.claim()
    await engine.holders.beat(engine.tenant, "w", [])
    await age_claims(engine)

    for _ in range(2):
        await here.beat(engine.tenant, "w", [])

    assert await engine.state(task) is TaskState.READY


def test_a_clock_that_went_back_makes_a_node_read_all_again() -> None:
    looked_at = datetime(2026, 1, 1, tzinfo=UTC)
    first = Look().after(looked_at, 10.0)
    assert first == Look(looked_at - LATE_COMMIT, 10.0 + ALL_AGAIN_SECONDS)

    second = first.after(looked_at + timedelta(seconds=3), 13.0)
    assert second == Look(looked_at + timedelta(seconds=3) - LATE_COMMIT, 10.0 + ALL_AGAIN_SECONDS)

    assert second.after(looked_at, 16.0) == Look()


async def test_a_worker_that_may_be_silent_for_longer_keeps_its_tasks_on_every_node(engine: Engine) -> None:
    now = [1_000.0]
    await engine.submit(2)
    [first] = await engine.claim("patient", room=1)
    [second] = await engine.claim("usual", room=1)
    await engine.holders.allow_silence(first.holder, 30.0)
    # Of another node, which has heard nothing of it.
    there = Holders(engine.database, engine.onward)
    liveness = Liveness(engine.database, there, engine.onward, monotonic=lambda: now[0])
    seen = {}
    for _ in range(35):
        await liveness.step()
        now[0] += 1.0
        for task in (first.id, second.id):
            if task not in seen and await engine.state(task) is TaskState.READY:
                seen[task] = now[0] - 1_000.0

    assert seen == {second.id: 10.0, first.id: 31.0}


async def test_how_long_a_holder_may_be_silent_is_written_again_after_another_node_wrote_it(engine: Engine) -> None:
    async def stored() -> float | None:
        [row] = await engine.database.fetch("SELECT max_silence FROM holder")
        seconds: float | None = row["max_silence"]
        return seconds

    here = engine.holders
    there = Holders(engine.database, engine.onward)
    holder = await here.register(engine.tenant, "w")
    await here.allow_silence(holder, 30.0)
    await there.allow_silence(holder, 60.0)
    assert await stored() == 60.0

    # What a node took for stored is looked at every second.
    await Liveness(engine.database, here, engine.onward).step()
    await here.allow_silence(holder, 30.0)
    assert await stored() == 30.0
    await here.allow_silence(holder, None)
    assert await stored() is None
