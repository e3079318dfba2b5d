"""The list of all tasks shows the newest first, by what happened."""

import uuid
from datetime import timedelta

import pytest

from duetime.clock import from_ms
from duetime.errors import InvalidInput
from duetime.lifecycle.tasks.steer import Steering
from duetime.model.task import TaskState
from duetime.views.filters import TaskFilter
from duetime.views.scan import task_ids
from duetime.views.tasks import list_tasks
from views.arrange import MINUTE, World

DAY = 24 * 60 * MINUTE


def steering(world: World, at: int = 0) -> Steering:
    """The verbs, at a time so many milliseconds from now."""
    return Steering(world.database, world.partitions, now=from_ms(world.now_ms + at))


async def listed(
    world: World, wanted: TaskFilter | None = None, limit: int = 50, *, now_in: int = 0, passing: int = 0
) -> list[uuid.UUID]:
    """Every page; between two of them some milliseconds pass."""
    ids: list[uuid.UUID] = []
    cursor = None
    while True:
        now = from_ms(world.now_ms + now_in)
        page = await list_tasks(
            world.database, world.lanes, world.tenant.id, "acme", wanted or TaskFilter(), cursor, limit, now=now
        )
        assert page.items or not page.next
        ids += [item.id for item in page.items]
        now_in += passing
        if (cursor := page.next) is None:
            return ids


async def arrange(world: World) -> list[uuid.UUID]:
    """Some that are over, some to come, and between them what was cancelled before its time; in the list's order."""
    over = [await world.over(minutes * MINUTE) for minutes in (-1, -2, -4, -5)]
    coming = [await world.waiting(hours * 60 * MINUTE, lane=await world.lane("other")) for hours in (1, 2, 30)]
    tomorrow = [await world.waiting(DAY + number) for number in range(5)]
    # Two at one time, the others later.
    await steering(world, -3 * MINUTE).cancel(tomorrow[:2])
    for place, task in enumerate(tomorrow[2:]):
        await steering(world, -2 * MINUTE + 1_000 * (place + 1)).cancel([task])
    return [over[0], *tomorrow[:1:-1], over[1], tomorrow[1], tomorrow[0], *over[2:], *coming]


async def test_tomorrows_cancelled_tasks_stand_where_they_were_cancelled(world: World) -> None:
    order = await arrange(world)

    assert await listed(world) == order


@pytest.mark.parametrize("limit", [1, 2, 3, 6])
async def test_pages_give_each_once_also_while_time_passes(world: World, limit: int) -> None:
    order = await arrange(world)

    # What was to come when the list began stays where it was in this list.
    assert await listed(world, limit=limit, passing=20 * 60 * MINUTE) == order


async def test_they_stand_there_also_when_their_day_has_come(world: World) -> None:
    order = await arrange(world)
    coming = order[-3:]

    later = await listed(world, now_in=2 * DAY)

    assert later == [*coming[::-1], *order[:-3]]


async def test_what_was_made_due_before_its_time_stands_at_that_time(world: World) -> None:
    over = await world.over(-MINUTE)
    early, late = await world.waiting(DAY), await world.waiting(2 * DAY)
    await steering(world, -2 * MINUTE).run_now([early])
    assert await listed(world) == [over, early, late]

    await steering(world, -1_000).cancel([early])

    assert await listed(world) == [early, over, late]


async def test_what_was_paused_and_is_cancelled_stands_there_too(world: World) -> None:
    over = await world.over(-MINUTE)
    held = await world.held(DAY)

    await steering(world, -2 * MINUTE).cancel([held])

    assert await listed(world) == [over, held]


async def test_filters_hold_for_what_was_cancelled_before_its_time(world: World) -> None:
    order = await arrange(world)
    other = await world.waiting(DAY + 60, type="other", labels={"team": "a"})
    await steering(world).cancel([other])
    cancelled = [order[1], order[2], order[3], order[5], order[6]]

    assert await listed(world, TaskFilter.of(type="other")) == [other]
    assert await listed(world, TaskFilter.of(labels=["team=a"])) == [other]
    assert await listed(world, TaskFilter.of(from_ms=world.now_ms + DAY, to_ms=world.now_ms + DAY + 60)) == cancelled
    assert await listed(world, TaskFilter.of(to_ms=world.now_ms)) == [order[0], order[4], order[7], order[8]]
    assert await listed(world, TaskFilter.of(from_ms=world.now_ms + DAY + 60)) == [other, order[-1]]


async def test_verbs_by_filter_take_them_all(world: World) -> None:
    order = await arrange(world)

    ids, following = await task_ids(world.database, world.lanes, world.tenant.id, TaskFilter(), None, 100)

    assert sorted(ids) == sorted(order)
    assert following is None


async def test_a_cursor_of_this_list_is_none_of_a_verb_by_filter(world: World) -> None:
    await arrange(world)
    page = await list_tasks(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(), None, 1)
    _, cursor = await task_ids(world.database, world.lanes, world.tenant.id, TaskFilter(), None, 1)

    with pytest.raises(InvalidInput, match="another list"):
        await task_ids(world.database, world.lanes, world.tenant.id, TaskFilter(), page.next, 1)
    with pytest.raises(InvalidInput, match="another list"):
        await list_tasks(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(), cursor, 1)


async def test_what_another_node_made_due_this_moment_is_not_still_to_come(world: World) -> None:
    over = await world.over(-MINUTE)
    ahead = await world.waiting(500)
    coming = await world.waiting(60 * MINUTE)

    found = await list_tasks(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(), now=world.now)

    assert [item.id for item in found.items] == [ahead, over, coming]
    assert next(item.state for item in found.items) is TaskState.SCHEDULED
    assert found.items[0].run_at - world.now == timedelta(milliseconds=500)
