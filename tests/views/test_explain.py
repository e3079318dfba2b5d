import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from duetime.clock import from_ms
from duetime.model.retry import RetryPolicy
from duetime.model.task import Kind, Options, Outcome, TaskState
from duetime.views.explain import Explanation, Limitation, explain
from views.arrange import BLOCKED, MINUTE, World


@dataclass(frozen=True)
class Status:
    has_holders: bool = True
    waiting_polls: int = 1
    room: int = 1
    is_known: bool = True
    limited_by: tuple[tuple[Limitation, str, datetime | None], ...] = ()
    workers: int = 0
    handled: tuple[str, ...] | None = None
    unheard: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feeder:
    """A feeder that sees the same of every lane."""

    status: Status = Status()

    async def describe(self, lane: int) -> Status:
        return self.status


class NoNode:
    """Nobody answers for the shard."""

    async def describe(self, lane: int) -> None:
        return None


NOBODY = Feeder(Status(has_holders=False, waiting_polls=0, room=0))
BUSY = Feeder(Status(waiting_polls=0, room=0))


async def explained(world: World, task: uuid.UUID, feeder: Feeder | None = None) -> Explanation:
    told = await explain(world.database, world.lanes, feeder or Feeder(), world.tenant.id, task, now=world.now)
    assert told is not None
    return told


async def test_a_scheduled_task_waits_for_its_time(world: World) -> None:
    await world.waiting(MINUTE)
    task = await world.waiting(2 * MINUTE)

    told = await explained(world, task)

    assert told.state is TaskState.SCHEDULED
    assert told.due_at == from_ms(world.now_ms + 2 * MINUTE)
    assert [(reason.reason, reason.until) for reason in told.waiting_for] == [("time", told.due_at)]
    assert told.position == 1
    assert f"POST /v1/tasks/{task}/run-now" in told.what_would_free_it


async def test_a_retry_tells_what_went_wrong(world: World) -> None:
    task = await world.waiting(-MINUTE, wake_in=MINUTE, failures=1, number=2)
    await world.attempt(task, 1, Outcome.FAILED, detail=b'{"error": {"message": "no such host"}}')

    told = await explained(world, task)

    assert told.state is TaskState.RETRYING
    assert told.due_at == from_ms(world.now_ms + MINUTE)
    retry_at = told.due_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    given_up_at = told.due_at + timedelta(seconds=sum(2**n for n in range(1, 12)) + 7 * 3_600)
    assert told.waiting_for[0].detail == (
        f"it failed once; attempt 2 of 20 is due at {retry_at}; the last error: no such host; "
        f"if every attempt fails, it is a dead letter at about {given_up_at:%Y-%m-%dT%H:%MZ}"
    )


async def test_a_retry_of_which_not_every_attempt_counts_tells_both_numbers(world: World) -> None:
    options = Options(retry=RetryPolicy(max_attempts=4, max_retry_duration=3_600.0))
    task = await world.waiting(-MINUTE, wake_in=MINUTE, failures=2, number=7, options=options)

    detail = (await explained(world, task)).waiting_for[0].detail

    assert detail.startswith("it failed 2 times; attempt 7 (number 3 of 4 that may fail) is due at ")
    assert detail.endswith(", or 1h after its first attempt if that is earlier")


async def test_a_task_whose_worker_died_tells_its_crash_budget(world: World) -> None:
    options = Options(retry=RetryPolicy(max_crashes=5))
    task = await world.waiting(-MINUTE, wake_in=MINUTE, crashes=2, number=3, options=options)

    detail = (await explained(world, task)).waiting_for[0].detail

    assert detail.startswith("it was lost with its holder 2 times (with 5 it is a dead letter); ")


async def test_the_last_attempt_has_none_behind_it(world: World) -> None:
    options = Options(retry=RetryPolicy(max_attempts=2))
    task = await world.waiting(-MINUTE, wake_in=MINUTE, failures=1, number=2, options=options)

    detail = (await explained(world, task)).waiting_for[0].detail

    assert "attempt 2 of 2 is due at" in detail
    assert "if every attempt fails" not in detail


async def test_a_ready_task_without_a_worker_says_which_one_to_start(world: World) -> None:
    task = await world.waiting(lane=await world.lane("email", requires=("gpu", "eu")))

    told = await explained(world, task, NOBODY)

    assert [reason.reason for reason in told.waiting_for] == ["no_worker", "position"]
    assert told.what_would_free_it == "Start a worker for queue 'email' with tags gpu, eu"


async def test_a_worker_whose_beats_do_not_arrive_is_named(world: World) -> None:
    """Also while it still has a claim of the lane; not if there is somebody else."""
    task = await world.waiting()
    await world.running(holder=await world.holder())
    unheard = ("mail-1", "mail-2", "mail-3", "mail-4", "mail-5", "mail-6")

    told = await explained(world, task, Feeder(replace(NOBODY.status, unheard=unheard)))
    served = await explained(world, task, Feeder(Status(unheard=unheard)))

    assert [reason.reason for reason in told.waiting_for] == ["no_beats", "position"]
    assert "mail-1, mail-2, mail-3, mail-4, mail-5 and 1 more for queue 'email'" in told.waiting_for[0].detail
    assert told.what_would_free_it.startswith("Let POST /v1/workers/beat through")
    assert [reason.reason for reason in served.waiting_for] == ["position"]


async def test_a_task_that_was_handed_out_and_never_begun_says_to_whom(world: World) -> None:
    task = await world.waiting(-MINUTE, wake_in=MINUTE, releases=5, number=6)
    await world.attempt(task, 5, Outcome.RELEASED, holder=await world.holder("deaf-1"))
    early = await world.waiting(-MINUTE, wake_in=MINUTE, releases=2, number=3)

    told, earlier = await explained(world, task), await explained(world, early)

    assert told.waiting_for[0].detail.startswith("it was handed out 5 times and never begun, last to deaf-1")
    assert "handed out" not in earlier.waiting_for[0].detail


async def test_a_scheduled_task_without_a_worker_waits_for_both(world: World) -> None:
    told = await explained(world, await world.waiting(MINUTE), NOBODY)

    assert [reason.reason for reason in told.waiting_for] == ["time", "no_worker"]
    assert "Start a worker for queue 'email'" in told.what_would_free_it


async def test_a_task_whose_shard_nobody_feeds_says_so(world: World) -> None:
    task = await world.waiting()

    told = await explain(world.database, world.lanes, NoNode(), world.tenant.id, task, now=world.now)

    assert told is not None
    assert [reason.reason for reason in told.waiting_for] == ["no_node", "position"]
    assert "takes the shard over" in told.what_would_free_it


async def test_a_ready_push_task_without_an_executor_says_so(world: World) -> None:
    told = await explained(world, await world.waiting(lane=await world.lane(kind=Kind.PUSH)), NOBODY)

    assert told.what_would_free_it == "Start a node with the executor role"


async def test_a_ready_task_behind_others_tells_its_position(world: World) -> None:
    await world.waiting(-2 * MINUTE)
    await world.waiting(-3 * MINUTE)
    task = await world.waiting(-MINUTE)

    told = await explained(world, task, BUSY)

    assert told.position == 2
    assert [reason.reason for reason in told.waiting_for] == ["position"]
    assert told.waiting_for[0].detail.startswith("2 tasks are before it in its lane; ")
    assert "no room" in told.waiting_for[0].detail


async def test_a_worker_that_is_busy_with_the_lane_is_a_worker(world: World) -> None:
    await world.running(holder=await world.holder())

    told = await explained(world, await world.waiting(), NOBODY)

    assert [reason.reason for reason in told.waiting_for] == ["position"]


async def test_a_position_is_counted_up_to_a_thousand(world: World) -> None:
    lane = await world.lane()
    await world.crowd(lane, 1_001)

    told = await explained(world, await world.waiting(MINUTE, lane=lane))

    assert told.position == "1000+"


async def test_a_paused_task_says_how_to_resume_it(world: World) -> None:
    task = await world.held()

    told = await explained(world, task)

    assert [reason.reason for reason in told.waiting_for] == ["paused"]
    assert told.what_would_free_it == f"POST /v1/tasks/{task}/resume"


async def test_a_blocked_task_waits_for_its_dependencies(world: World) -> None:
    told = await explained(world, await world.held(reason=BLOCKED))

    assert [reason.reason for reason in told.waiting_for] == ["dependency"]


async def test_a_running_task_tells_with_whom_and_until_when(world: World) -> None:
    task = await world.running(holder=await world.holder("worker-7"), options=Options(timeout=30.0))

    (reason,) = (await explained(world, task)).waiting_for

    assert reason.reason == "running"
    assert reason.detail.startswith("attempt 1 of 20 was handed to worker-7 since ")
    assert reason.until == world.now + timedelta(seconds=30)


async def test_a_dead_task_tells_reason_and_last_error(world: World) -> None:
    task = await world.dead(reason="attempts")

    told = await explained(world, task)

    assert told.waiting_for[0].detail == "its attempts are used up; the last error: no such host"
    assert f"POST /v1/tasks/{task}/retry" in told.what_would_free_it


async def test_a_task_that_is_over_waits_for_nothing(world: World) -> None:
    told = await explained(world, await world.over())

    assert [reason.reason for reason in told.waiting_for] == ["over"]
    assert told.position is None


async def test_another_tenants_task_is_not_explained(world: World) -> None:
    theirs = await world.waiting(lane=await world.lane(tenant=world.stranger.id))

    assert await explain(world.database, world.lanes, Feeder(), world.tenant.id, theirs) is None
    assert await explain(world.database, world.lanes, Feeder(), world.tenant.id, uuid.uuid4()) is None


async def test_a_node_without_a_feeder_can_explain_too(world: World) -> None:
    task = await world.waiting()

    told = await explain(world.database, world.lanes, None, world.tenant.id, task, now=world.now)

    assert told is not None
    assert [reason.reason for reason in told.waiting_for] == ["position"]
