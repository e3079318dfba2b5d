"""A filter that matches next to nothing finds it: a page is empty only at the end."""

import asyncio
import itertools
import uuid
from typing import Any

import pytest

from duetime.errors import SearchIncomplete
from duetime.model.task import Outcome, TaskState
from duetime.views.dead import list_dead
from duetime.views.filters import TaskFilter
from duetime.views.patience import FIRST_ROWS, MOST_ROWS, Patience
from duetime.views.scan import task_ids
from duetime.views.tasks import list_tasks
from views.arrange import MINUTE, World

OTHERS = 5_000
NO_TIME = {"found_seconds": 0.0, "empty_seconds": 0.0}


async def page(
    world: World, wanted: TaskFilter, cursor: str | None = None, limit: int = 50, **options: Any
) -> tuple[list[uuid.UUID], str | None]:
    found = await list_tasks(
        world.database, world.lanes, world.tenant.id, "acme", wanted, cursor, limit, now=world.now, **options
    )
    return [item.id for item in found.items], found.next


@pytest.mark.parametrize("state", [None, "scheduled"])
@pytest.mark.parametrize("wanted", [{"type": "needle"}, {"labels": ["team=a"]}], ids=["type", "label"])
async def test_one_task_among_thousands_is_on_the_first_page(
    world: World, state: str | None, wanted: dict[str, Any]
) -> None:
    lane = await world.lane()
    await world.crowd(lane, OTHERS)
    # Of either order, the last that is met.
    last = 10 * MINUTE if state == "scheduled" else -MINUTE
    needle = await world.waiting(last, lane=lane, type="needle", labels={"team": "a"})

    ids, following = await page(world, TaskFilter.of(state=state, **wanted))

    assert ids == [needle]
    assert following is None


async def test_among_what_is_over_running_paused_or_dead_it_is_found_too(world: World) -> None:
    lane = await world.lane()
    await world.history(lane, OTHERS)
    needle = await world.over(-60 * MINUTE, lane=lane, type="needle")
    lost = await world.over(-61 * MINUTE, lane=lane, outcome=Outcome.CANCELLED)
    dead = await world.dead(-62 * MINUTE, lane=lane, type="needle")

    assert await page(world, TaskFilter(state=TaskState.SUCCEEDED, type="needle")) == ([needle], None)
    assert await page(world, TaskFilter(state=TaskState.CANCELLED)) == ([lost], None)
    assert await page(world, TaskFilter(type="needle")) == ([needle, dead], None)
    letters = await list_dead(
        world.database, world.lanes, world.tenant.id, "acme", TaskFilter(type="needle"), patience=Patience(**NO_TIME)
    )
    assert [letter.id for letter in letters.items] == [dead]


async def test_a_verb_by_filter_finds_what_matches(world: World) -> None:
    lane = await world.lane()
    needle = await world.waiting(-MINUTE, lane=lane, type="needle")
    await world.crowd(lane, OTHERS)

    found = await task_ids(
        world.database, world.lanes, world.tenant.id, TaskFilter(type="needle"), None, 10, now=world.now
    )

    assert found == ([needle], None)


async def test_a_search_whose_time_is_up_says_where_to_go_on(world: World) -> None:
    lane = await world.lane()
    needle = await world.waiting(10 * MINUTE, lane=lane, type="needle")
    await world.crowd(lane, OTHERS)
    wanted = TaskFilter(state=TaskState.SCHEDULED, type="needle")
    cursor, steps = None, 0

    while True:
        try:
            ids, cursor = await page(world, wanted, cursor, 200, patience=Patience(**NO_TIME))
            break
        except SearchIncomplete as incomplete:
            cursor, steps = incomplete.next, steps + 1

    assert ids == [needle]
    # Each looked at another 201.
    assert steps == OTHERS // 201


async def test_a_page_that_has_something_does_not_wait_for_more(world: World) -> None:
    lane = await world.lane()
    near = await world.waiting(2, lane=lane, type="needle")
    await world.crowd(lane, OTHERS)
    far = await world.waiting(10 * MINUTE, lane=lane, type="needle")
    wanted = TaskFilter(state=TaskState.SCHEDULED, type="needle")

    ids, following = await page(world, wanted, patience=Patience(found_seconds=0.0))

    assert ids == [near]
    assert await page(world, wanted, following) == ([far], None)


async def test_the_time_of_a_request_is_bounded(world: World) -> None:
    lane = await world.lane()
    await world.crowd(lane, OTHERS)
    seconds = itertools.count(step=3)

    with pytest.raises(SearchIncomplete) as raised:
        await page(world, TaskFilter(type="needle"), patience=Patience(monotonic=lambda: float(next(seconds))))

    assert raised.value.code == "search_incomplete"
    assert raised.value.status == 503
    # It is looked at between pieces.
    assert next(seconds) <= 24


async def test_lanes_of_all_sizes_and_times_are_merged_in_order(world: World) -> None:
    """The one that holds the others back is read on, not all."""
    dense = await world.lane("dense")
    await world.crowd(dense, OTHERS)
    needles = [
        await world.waiting(hours * 60 * MINUTE, lane=await world.lane(f"queue-{place % 3}"), type="needle")
        for place, hours in enumerate(range(-30, 0))
    ]
    needles.append(await world.waiting(2, lane=dense, type="needle"))

    ids: list[uuid.UUID] = []
    cursor = None
    while True:
        some, cursor = await page(world, TaskFilter(type="needle"), cursor, 7, patience=Patience(found_seconds=0.0))
        assert some
        ids += some
        if cursor is None:
            break

    assert ids == needles[::-1]


async def test_searches_take_turns_and_a_tenant_has_one_turn() -> None:
    patience = Patience()
    order: list[int] = []

    async def search(tenant: int) -> None:
        look = patience.begin(tenant)
        for _ in range(3):

            async def read() -> list[int]:
                order.append(tenant)
                await asyncio.sleep(0)
                return [tenant]

            assert await look.read(FIRST_ROWS + 1, read) == [tenant]

    await asyncio.gather(*[search(tenant) for tenant in (1, 1, 1, 2)])

    # Each first piece is read at once; then whoever asks little is served in every second turn.
    assert sorted(order[:4]) == [1, 1, 1, 2]
    assert [place for place, tenant in enumerate(order[4:]) if tenant == 2][-1] <= 4


async def test_who_does_not_get_a_turn_in_time_is_told_where_to_go_on(world: World) -> None:
    lane = await world.lane()
    await world.crowd(lane, OTHERS)
    patience = Patience(empty_seconds=0.05, monotonic=lambda: 0.0)

    async with patience.turn(world.stranger.id):
        with pytest.raises(SearchIncomplete) as raised:
            await page(world, TaskFilter(state=TaskState.SCHEDULED, type="needle"), patience=patience)

    assert raised.value.next


async def test_pieces_grow_where_they_are_quick_and_shrink_where_they_are_slow() -> None:
    seconds = 0.0
    patience = Patience(monotonic=lambda: seconds)
    look = patience.begin(1)
    pieces = []

    async def read_in(took: float) -> list[int]:
        nonlocal seconds
        seconds += took
        return []

    await look.read(FIRST_ROWS, lambda: read_in(0.0))
    for took in (0.01, 0.01, 0.01, 0.01, 0.3, 0.3, 0.3, 0.3):
        await look.read(look.piece, lambda took=took: read_in(took))
        pieces.append(look.piece)

    assert max(pieces) == MOST_ROWS
    assert pieces[-1] == FIRST_ROWS
