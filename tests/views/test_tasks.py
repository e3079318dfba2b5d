import uuid
from datetime import timedelta

import msgspec
import pytest

from duetime.clock import from_ms
from duetime.errors import InvalidInput
from duetime.ids import make_id
from duetime.lifecycle.tasks.state import read_states
from duetime.model.retry import RetryPolicy
from duetime.model.task import Kind, Options, Outcome, PriorityClass, Target, TaskState
from duetime.views.filters import TaskFilter
from duetime.views.scan import task_ids
from duetime.views.tasks import TaskView, get_task, list_tasks
from views.arrange import BLOCKED, MINUTE, PAUSED, World


async def get(world: World, task: uuid.UUID) -> TaskView:
    view = await get_task(world.database, world.lanes, world.tenant.id, "acme", task, now=world.now)
    assert view is not None
    return view


async def listed(world: World, wanted: TaskFilter, limit: int = 50) -> list[uuid.UUID]:
    """Every page of a list, one after the other."""
    ids: list[uuid.UUID] = []
    cursor = None
    while True:
        page = await list_tasks(
            world.database, world.lanes, world.tenant.id, "acme", wanted, cursor, limit, now=world.now
        )
        assert len(page.items) <= limit
        ids += [item.id for item in page.items]
        cursor = page.next
        if cursor is None:
            return ids


async def one_of_each(world: World) -> dict[TaskState, uuid.UUID]:
    holder = await world.holder()
    return {
        TaskState.SCHEDULED: await world.waiting(9 * MINUTE),
        TaskState.RETRYING: await world.waiting(-1 * MINUTE, wake_in=8 * MINUTE, failures=1, number=2),
        TaskState.READY: await world.waiting(-2 * MINUTE),
        TaskState.RUNNING: await world.running(-3 * MINUTE, holder=holder),
        TaskState.PAUSED: await world.held(-4 * MINUTE, reason=PAUSED),
        TaskState.BLOCKED: await world.held(-5 * MINUTE, reason=BLOCKED),
        TaskState.DEAD: await world.dead(-6 * MINUTE),
        TaskState.SUCCEEDED: await world.over(-7 * MINUTE),
        TaskState.CANCELLED: await world.over(-8 * MINUTE, outcome=Outcome.CANCELLED),
        TaskState.EXPIRED: await world.over(-9 * MINUTE, outcome=Outcome.EXPIRED),
    }


async def test_every_state_is_told_by_get_by_list_and_by_read_states(world: World) -> None:
    tasks = await one_of_each(world)

    told = await read_states(world.database, list(tasks.values()), now=world.now)

    assert told == {task: state for state, task in tasks.items()}
    for state, task in tasks.items():
        assert (await get(world, task)).state is state
        assert await listed(world, TaskFilter(state=state)) == [task]


async def test_a_list_without_a_state_has_them_all_and_last_what_is_to_come(world: World) -> None:
    tasks = await one_of_each(world)
    tasks[TaskState.SCHEDULED] = tasks.pop(TaskState.SCHEDULED)

    page = await list_tasks(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(), now=world.now)

    assert [item.id for item in page.items] == list(tasks.values())
    assert [item.state for item in page.items] == list(tasks)
    assert page.next is None


async def test_a_task_is_due_in_its_millisecond_and_not_before(world: World) -> None:
    due, early = await world.waiting(0), await world.waiting(1)

    assert await listed(world, TaskFilter(state=TaskState.READY)) == [due]
    assert await listed(world, TaskFilter(state=TaskState.SCHEDULED)) == [early]
    assert (await get(world, due)).state is TaskState.READY
    assert (await get(world, early)).state is TaskState.SCHEDULED


async def test_a_waiting_row_counts_more_than_a_final_failure_before_it(world: World) -> None:
    redriven = await world.waiting(0, wake_in=-1, number=2)
    await world.attempt(redriven, 1, Outcome.FAILED, final=True)
    forgotten = await world.asked(0)
    await world.attempt(forgotten, 1, Outcome.UNKNOWN, final=True)

    states = await read_states(world.database, [redriven, forgotten], now=world.now)

    assert states == {redriven: TaskState.READY, forgotten: TaskState.DEAD}
    assert (await get(world, redriven)).state is TaskState.READY
    assert (await get(world, forgotten)).state is TaskState.DEAD


async def test_a_task_tells_all_of_itself(world: World) -> None:
    lane = await world.lane("calls", PriorityClass.HIGH, Kind.PUSH, ("gpu",))
    options = Options(
        target=Target("http://127.0.0.1/x"),
        retry=RetryPolicy(max_attempts=2),
        timeout=30.0,
        sla=60.0,
        delivery="at_most_once",
        idempotency_key="order-7",
        schedule="nightly",
        concurrency_key="customer-42",
        rate_key="shop",
    )
    task = await world.asked(
        0, lane=lane, options=options, labels={"team": "a"}, payload=b'{"big":12345678901234567890}'
    )
    holder = await world.holder("executor-1")
    response = b'{"status":503,"headers":{},"body":"busy","body_truncated":false,"timings":{}}'
    await world.attempt(
        task, 1, Outcome.FAILED, holder=holder, detail=b'{"error":{"message":"busy"},"response":' + response + b"}"
    )
    await world.attempt(task, 2, Outcome.SUCCEEDED, final=True, holder=holder, result=b'{"ok":1}', completed_in=500)

    view = await get(world, task)

    told = msgspec.json.decode(msgspec.json.encode(view))
    moment = msgspec.to_builtins(world.now)
    assert told == {
        "id": str(task),
        "tenant": "acme",
        "type": "email.send",
        "queue": "calls",
        "priority": "high",
        "state": "succeeded",
        "payload": {"big": 12345678901234567890},
        "labels": {"team": "a"},
        "run_at": moment,
        "first_run_at": None,
        "created_at": moment,
        "expires_at": None,
        "schedule": "nightly",
        "result": {"ok": 1},
        "attempts": [
            {
                "number": 1,
                "outcome": "failed",
                "worker": "executor-1",
                "picked_at": moment,
                "started_at": moment,
                "completed_at": moment,
                "status": 503,
                "response": msgspec.json.decode(response),
                "error": {"message": "busy"},
                "reason": None,
            },
            {
                "number": 2,
                "outcome": "succeeded",
                "worker": "executor-1",
                "picked_at": moment,
                "started_at": moment,
                "completed_at": msgspec.to_builtins(from_ms(world.now_ms + 500)),
                "status": None,
                "response": None,
                "error": None,
                "reason": None,
            },
        ],
        "next_run_at": None,
        "attempts_left": 0,
        "sla": 60.0,
        "sla_met": True,
        "target": {
            "url": "http://127.0.0.1/x",
            "method": "POST",
            "headers": {},
            "secret_headers": [],
            "timeout": None,
            "retry_on": [],
        },
        "retry": {
            "max_attempts": 2,
            "min_backoff": 1.0,
            "max_backoff": 3600.0,
            "max_doublings": 16,
            "max_retry_duration": None,
            "max_crashes": 3,
        },
        "timeout": 30.0,
        "delivery": "at_most_once",
        "requires": ["gpu"],
        "idempotency_key": "order-7",
        "concurrency_key": "customer-42",
        "rate_key": "shop",
        "dead_reason": None,
        "died_at": None,
        "ended_at": msgspec.to_builtins(from_ms(world.now_ms + 500)),
        "end_reason": None,
    }


async def test_a_running_attempt_is_the_last_one_and_has_no_outcome(world: World) -> None:
    holder = await world.holder("worker-7")
    task = await world.running(holder=holder, number=2)
    await world.attempt(task, 1, Outcome.LAPSED, holder=holder)

    first, second = (await get(world, task)).attempts

    assert (first.number, first.outcome) == (1, "lapsed")
    assert (second.number, second.outcome, second.worker) == (2, None, "worker-7")
    assert second.picked_at == world.now
    assert second.completed_at is None


async def test_a_waiting_task_tells_when_it_runs_next_and_how_many_attempts_are_left(world: World) -> None:
    task = await world.waiting(-MINUTE, wake_in=MINUTE, failures=1, number=2)

    told = await get(world, task)

    assert told.next_run_at == from_ms(world.now_ms + MINUTE)
    assert (told.attempts_left, told.retry.max_attempts) == (19, 20)


async def test_the_running_attempt_is_not_left(world: World) -> None:
    task = await world.running(holder=await world.holder(), options=Options(retry=RetryPolicy(max_attempts=4)))

    assert (await get(world, task)).attempts_left == 3


@pytest.mark.parametrize(
    ("due_in", "completed_in", "is_met"),
    [(-1_000, 0, True), (-10_000, 1, False)],
)
async def test_an_sla_is_met_when_the_task_is_done_in_time(
    world: World, due_in: int, completed_in: int, is_met: bool
) -> None:
    task = await world.asked(due_in, options=Options(sla=10.0))
    await world.attempt(task, 1, Outcome.SUCCEEDED, final=True, completed_in=completed_in)

    assert (await get(world, task)).sla_met is is_met


async def test_a_rescheduled_task_shows_both_times_and_its_sla_counts_from_the_new_one(world: World) -> None:
    task, plain = [await world.asked(-60_000, options=Options(sla=10.0)) for _ in range(2)]
    moved_at = world.now - timedelta(seconds=5)
    await world.reschedule(task, moved_at)
    for each in (task, plain):
        await world.attempt(each, 1, Outcome.SUCCEEDED, final=True)

    moved, late = await get(world, task), await get(world, plain)

    assert (moved.run_at, moved.first_run_at, moved.sla_met) == (moved_at, from_ms(world.now_ms - 60_000), True)
    assert (late.run_at, late.first_run_at, late.sla_met) == (from_ms(world.now_ms - 60_000), None, False)


async def test_an_open_sla_is_neither_met_nor_missed_until_its_time_is_over(world: World) -> None:
    open_task = await world.waiting(-9_000, options=Options(sla=10.0))
    late_task = await world.waiting(-11_000, options=Options(sla=10.0))

    assert (await get(world, open_task)).sla_met is None
    assert (await get(world, late_task)).sla_met is False


async def test_another_tenants_task_is_not_found_or_listed(world: World) -> None:
    theirs = await world.waiting(lane=await world.lane(tenant=world.stranger.id))

    assert await get_task(world.database, world.lanes, world.tenant.id, "acme", theirs) is None
    assert await listed(world, TaskFilter()) == []
    assert await listed(world, TaskFilter(state=TaskState.READY)) == []


async def test_an_id_that_is_no_task_is_not_found(world: World) -> None:
    lane = await world.lane()
    await world.partitions.ensure([world.now_ms])

    for unknown in (uuid.uuid4(), uuid.UUID(int=2**128 - 1), uuid.UUID(int=0), make_id(world.now_ms, 99, lane)):
        assert await get_task(world.database, world.lanes, world.tenant.id, "acme", unknown) is None
        assert await read_states(world.database, [unknown]) == {}


@pytest.mark.parametrize("state", [None, "scheduled", "retrying", "succeeded", "dead", "paused"])
async def test_pages_over_many_lanes_give_everything_once_and_in_order(world: World, state: str | None) -> None:
    lanes = [await world.lane(f"queue-{number}") for number in range(4)]
    tasks = []
    for number in range(20):
        # One lane has most of the tasks, one has none.
        lane, due_in = lanes[0 if number % 3 else number % 2 + 1], (number * 7 % 20 + 1) * MINUTE
        match state:
            case None | "scheduled":
                tasks.append(await world.waiting(due_in, lane=lane))
            case "retrying":
                tasks.append(await world.waiting(due_in, wake_in=(number + 1) * 3_000 * MINUTE, failures=1, lane=lane))
            case "dead":
                tasks.append(await world.dead(due_in, lane=lane))
            case "paused":
                tasks.append(await world.held(due_in, lane=lane))
            case _:
                tasks.append(await world.over(due_in, lane=lane))

    pages = {limit: await listed(world, TaskFilter.of(state=state), limit) for limit in (1, 3, 7, 50)}

    in_order = sorted(tasks, reverse=state not in (None, "scheduled"))
    assert pages == dict.fromkeys(pages, in_order)


async def test_filters_hold_together(world: World) -> None:
    high = await world.lane("email", PriorityClass.HIGH)
    wanted = await world.waiting(5 * MINUTE, lane=high, type="a", labels={"team": "x", "city": "y"})
    await world.waiting(5 * MINUTE, lane=high, type="b", labels={"team": "x"})
    await world.waiting(5 * MINUTE, lane=high, type="a", labels={"team": "z"})
    await world.waiting(5 * MINUTE, lane=high, type="a")
    await world.waiting(5 * MINUTE, type="a", labels={"team": "x"})
    await world.waiting(9 * MINUTE, lane=high, type="a", labels={"team": "x"})
    await world.waiting(5 * MINUTE, lane=await world.lane("sms", PriorityClass.HIGH), type="a", labels={"team": "x"})

    for state in ("scheduled", None):
        asked = TaskFilter.of(
            state=state,
            type="a",
            queue="email",
            priority="high",
            labels=["team=x"],
            from_ms=world.now_ms + 5 * MINUTE,
            to_ms=world.now_ms + 9 * MINUTE,
        )
        assert await listed(world, asked) == [wanted]


async def test_a_page_is_cut_where_its_payloads_are_too_large(world: World) -> None:
    payload = b'"' + b"x" * (1024 * 1024) + b'"'
    tasks = [await world.waiting(number * MINUTE, payload=payload) for number in range(1, 10)]

    first = await list_tasks(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(), now=world.now)

    assert len(first.items) == 3
    assert await listed(world, TaskFilter()) == tasks


async def test_a_cursor_from_elsewhere_is_refused(world: World) -> None:
    for number in range(3):
        await world.waiting(number * MINUTE)
    page = await list_tasks(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(), None, 1)

    with pytest.raises(InvalidInput) as refused:
        await list_tasks(
            world.database, world.lanes, world.tenant.id, "acme", TaskFilter(state=TaskState.DEAD), page.next, 1
        )

    assert refused.value.errors[0].path == "cursor"


async def test_ids_by_filter_leave_out_what_a_verb_has_moved_to_its_time(world: World) -> None:
    moved = await world.waiting(1 * MINUTE, wake_in=5 * MINUTE)
    other = await world.waiting(2 * MINUTE)

    ids, following = await task_ids(
        world.database,
        world.lanes,
        world.tenant.id,
        TaskFilter(state=TaskState.SCHEDULED),
        None,
        100,
        except_ms=world.now_ms + 5 * MINUTE,
        now=world.now,
    )

    assert ids == [other]
    assert moved not in ids
    assert following is None
