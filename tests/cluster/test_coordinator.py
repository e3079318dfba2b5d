"""What every coordinator must keep, driven against real stores."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable

import pytest

from duetime.cluster.contract import SILENCE_SECONDS, Coordinator, Member
from duetime.cluster.postgres import LONGEST_GAP_SECONDS, PostgresCoordinator
from duetime.database.pool import Database

PATIENCE_SECONDS = 30.0


class Clock:
    """Monotonic time in the test's hands."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A coordinator with a store connection of its own, so that it can die alone."""

    def __init__(self, coordinator: Coordinator, database: Database, clock: Clock) -> None:
        self.coordinator = coordinator
        self.database = database
        self.clock = clock
        self.changes = 0
        coordinator.on_change(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def join(self, name: str) -> Member:
        member = Member(name, secrets.randbits(62), f"127.0.0.1:{secrets.randbelow(10_000) + 10_000}")
        await self.coordinator.join(member)
        return member

    async def die(self) -> None:
        """No beat any more, and no goodbye."""
        await self.database.close()

    async def pass_time(self, seconds: float) -> None:
        """Look every second of its own time."""
        for _ in range(int(seconds)):
            self.clock.now += 1.0
            await self.coordinator.look()

    def names(self) -> list[str]:
        return [member.name for member in self.coordinator.members()]


Make = Callable[..., "asyncio.Future[Node]"]


@pytest.fixture
async def make(database_url: str) -> AsyncIterator[Make]:
    nodes: list[Node] = []

    async def make_one(cluster: str = "one") -> Node:
        database, clock = await Database.open(database_url, size=2), Clock()
        nodes.append(Node(PostgresCoordinator(database, cluster, clock), database, clock))
        return nodes[-1]

    yield make_one  # type: ignore[misc]
    for node in nodes:
        await node.coordinator.leave()
        await node.database.close()


async def seen(node: Node, *names: str) -> None:
    """Wait for the node's own beats to show it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while node.names() != list(names):
            await asyncio.sleep(0.01)


async def test_members_see_each_other_by_name_with_their_addresses(make: Make) -> None:
    first, second = await make(), await make()

    members = [await first.join("b"), await second.join("a")]

    assert second.coordinator.members() == (members[1], members[0])
    await seen(first, "a", "b")
    assert first.changes == 2


async def test_clusters_do_not_see_each_other(make: Make) -> None:
    ours, theirs = await make("ours"), await make("theirs")
    await ours.join("a")
    await theirs.join("b")

    await ours.coordinator.look()

    assert ours.names() == ["a"]
    assert theirs.names() == ["b"]


async def test_one_that_leaves_is_gone_at_the_next_look(make: Make) -> None:
    first, second = await make(), await make()
    await first.join("a")
    await second.join("b")
    await first.coordinator.look()

    await second.coordinator.leave()
    await first.coordinator.look()

    assert first.names() == ["a"]


async def test_one_that_falls_silent_is_gone_by_the_observer_s_own_time(make: Make) -> None:
    first, second = await make(), await make()
    await first.join("a")
    await second.join("b")
    await second.die()
    await first.coordinator.look()
    assert first.names() == ["a", "b"]

    await first.pass_time(SILENCE_SECONDS - 1)
    assert first.names() == ["a", "b"]
    await first.pass_time(2)

    assert first.names() == ["a"]


async def test_an_observer_that_stood_still_gives_nobody_up(make: Make) -> None:
    first, second = await make(), await make()
    await first.join("a")
    await second.join("b")
    await second.die()
    await first.coordinator.look()

    first.clock.now += LONGEST_GAP_SECONDS + 1000.0
    await first.coordinator.look()

    assert first.names() == ["a", "b"], "the watch begins anew"


async def test_one_in_doubt_is_gone_until_its_counter_moves(make: Make) -> None:
    first, second = await make(), await make()
    await first.join("a")
    await second.join("b")
    await first.coordinator.look()
    [_, doubted] = first.coordinator.members()

    first.coordinator.doubt(doubted)
    at_once = first.names()
    await seen(first, "a", "b")

    assert at_once == ["a"]


async def test_one_in_doubt_that_is_dead_stays_gone(make: Make) -> None:
    first, second = await make(), await make()
    await first.join("a")
    await second.join("b")
    await second.die()
    await first.coordinator.look()

    first.coordinator.doubt(first.coordinator.members()[1])
    await first.pass_time(3)

    assert first.names() == ["a"]


async def test_a_new_start_takes_the_place_of_the_former_at_once(make: Make) -> None:
    first, former, later = await make(), await make(), await make()
    await first.join("a")
    await former.join("b")
    await former.die()

    started = await later.join("b")
    await first.coordinator.look()

    assert first.coordinator.members()[1] == started


async def test_one_whose_name_was_taken_sees_itself_as_gone(make: Make) -> None:
    former, later = await make(), await make()
    replaced = await former.join("a")
    started = await later.join("a")

    await former.coordinator.look()

    assert former.coordinator.members() == (started,)
    assert replaced not in former.coordinator.members()


async def test_one_whose_entry_was_lost_joins_again(make: Make) -> None:
    first = await make()
    member = await first.join("a")
    await first.database.execute("DELETE FROM node")

    await first.coordinator.look()

    assert first.coordinator.members() == (member,)
    assert [row["name"] for row in await first.database.fetch("SELECT name FROM node")] == ["a"]


async def test_a_view_stays_while_the_store_is_away(make: Make) -> None:
    first, second = await make(), await make()
    await first.join("a")
    await second.join("b")
    await first.coordinator.look()

    await first.database.close()
    first.clock.now += 1000.0

    assert first.names() == ["a", "b"]
    await first.coordinator.leave()
