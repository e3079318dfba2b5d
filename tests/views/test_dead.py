import msgspec
import pytest

from duetime.errors import InvalidInput
from duetime.model.task import TaskState
from duetime.views.dead import dead_ids, list_dead
from duetime.views.filters import TaskFilter
from views.arrange import MINUTE, World


async def test_a_dead_letter_tells_why_and_with_which_error(world: World) -> None:
    task = await world.dead(-MINUTE, reason="attempts used up", labels={"team": "a"})

    page = await list_dead(world.database, world.lanes, world.tenant.id, "acme", TaskFilter())

    (told,) = msgspec.json.decode(msgspec.json.encode(page))["items"]
    assert told == {
        "id": str(task),
        "tenant": "acme",
        "type": "email.send",
        "queue": "email",
        "priority": "normal",
        "state": "dead",
        "labels": {"team": "a"},
        "run_at": msgspec.to_builtins(page.items[0].run_at),
        "created_at": msgspec.to_builtins(world.now),
        "reason": "attempts used up",
        "died_at": msgspec.to_builtins(world.now),
        "attempts": 1,
        "worker": None,
        "status": None,
        "error": {"message": "no such host", "kind": "transient"},
    }
    assert page.next is None


async def test_dead_letters_come_latest_first_in_pages(world: World) -> None:
    sms = await world.lane("sms")
    dead = [await world.dead(-number * MINUTE, lane=sms if number % 2 else None) for number in range(1, 6)]
    await world.waiting()

    first = await list_dead(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(), None, 3)
    second = await list_dead(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(), first.next, 3)

    assert [item.id for item in first.items] == dead[:3]
    assert [item.id for item in second.items] == dead[3:]
    assert second.next is None


async def test_ids_of_dead_letters_go_on_from_the_cursor(world: World) -> None:
    wanted = TaskFilter.of(type="email.send")
    dead = [await world.dead(-number * MINUTE) for number in range(1, 6)]
    await world.dead(type="other")
    await world.dead(lane=await world.lane(tenant=world.stranger.id))

    first, cursor = await dead_ids(world.database, world.lanes, world.tenant.id, wanted, None, 2)
    rest, end = await dead_ids(world.database, world.lanes, world.tenant.id, wanted, cursor, 100)

    assert first == dead[:2]
    assert rest == dead[2:]
    assert end is None


async def test_dead_letters_of_another_state_are_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="state"):
        await list_dead(world.database, world.lanes, world.tenant.id, "acme", TaskFilter(state=TaskState.READY))
