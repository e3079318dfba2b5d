"""Connections are lent to one caller at a time, and whoever waits gets the next one."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from duetime.database.connections import Connections
from duetime.database.driver import hasten_arrays
from duetime.database.pool import Database
from duetime.parts import _DATA_PATH


class Server:
    """Connects to a real server, and counts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.made: list[asyncpg.Connection] = []
        self.is_away = False

    async def connect(self, timeout: float) -> asyncpg.Connection:
        if self.is_away:
            raise ConnectionRefusedError
        self.made.append(await asyncpg.connect(self.url, timeout=timeout))
        return self.made[-1]


@pytest.fixture
def server(database_url: str) -> Server:
    return Server(database_url)


@pytest.fixture
async def connections(server: Server) -> AsyncIterator[Connections]:
    made = Connections(server.connect, 2)
    yield made
    await made.close(1.0)


async def test_connects_only_when_all_are_lent(server: Server, connections: Connections) -> None:
    first = await connections.take(1.0)
    connections.give_back(first)
    assert await connections.take(1.0) is first
    second = await connections.take(1.0)
    assert server.made == [first, second]


async def test_who_waits_gets_them_in_turn(connections: Connections) -> None:
    first, _ = await connections.take(1.0), await connections.take(1.0)
    waiting = [asyncio.ensure_future(connections.take(5.0)) for _ in range(2)]
    await asyncio.sleep(0)

    connections.give_back(first)
    late = asyncio.ensure_future(connections.take(5.0))
    await asyncio.wait(waiting[:1])

    assert waiting[0].result() is first
    connections.give_back(first)
    assert await waiting[1] is first
    connections.give_back(first)
    assert await late is first


async def test_a_wait_that_ends_leaves_the_connection_to_others(connections: Connections) -> None:
    first, _ = await connections.take(1.0), await connections.take(1.0)
    given_up = asyncio.ensure_future(connections.take(5.0))
    await asyncio.sleep(0)

    # Given and cancelled in the same round of the loop.
    connections.give_back(first)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up

    assert await connections.take(1.0) is first


async def test_waiting_has_a_limit(connections: Connections) -> None:
    first, _ = await connections.take(1.0), await connections.take(1.0)
    with pytest.raises(TimeoutError):
        await connections.take(0.01)
    connections.give_back(first)
    assert await connections.take(1.0) is first


async def test_one_that_broke_makes_room_for_a_new_one(server: Server, connections: Connections) -> None:
    first, _ = await connections.take(1.0), await connections.take(1.0)
    waiting = asyncio.ensure_future(connections.take(5.0))
    await asyncio.sleep(0)

    first.terminate()
    connections.give_back(first)

    assert await waiting is server.made[2]
    assert await server.made[2].fetchval("SELECT 1") == 1


async def test_one_that_broke_while_idle_is_not_lent(server: Server, connections: Connections) -> None:
    first = await connections.take(1.0)
    connections.give_back(first)
    first.terminate()
    assert await connections.take(1.0) is server.made[1]


async def test_a_server_that_refuses_costs_no_room(server: Server, connections: Connections) -> None:
    server.is_away = True
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await connections.take(1.0)
    server.is_away = False
    assert len({await connections.take(1.0), await connections.take(1.0)}) == 2


async def test_each_is_warmed_once_and_opened_ahead_of_need(server: Server, connections: Connections) -> None:
    warmed: list[asyncpg.Connection] = []

    async def warm(connection: asyncpg.Connection) -> None:
        warmed.append(connection)

    opened = await connections.take(1.0)
    connections.give_back(opened)

    assert [await connections.warm_one(warm, 1.0) for _ in range(4)] == [True, True, False, False]
    assert warmed == server.made == [opened, server.made[1]]


async def test_one_that_follows_a_broken_one_is_warmed_again(server: Server, connections: Connections) -> None:
    async def warm(connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT 1")

    while await connections.warm_one(warm, 1.0):
        pass
    server.made[0].terminate()
    server.made[1].terminate()

    # The two are found to be closed when somebody wants one, and one is opened for it.
    connections.give_back(await connections.take(1.0))
    assert [await connections.warm_one(warm, 1.0) for _ in range(3)] == [True, True, False]
    assert len(server.made) == 4


async def test_one_that_breaks_while_it_is_warmed_makes_room(server: Server, connections: Connections) -> None:
    async def warm(connection: asyncpg.Connection) -> None:
        connection.terminate()
        raise ConnectionResetError

    for _ in range(3):
        with pytest.raises(ConnectionResetError):
            await connections.warm_one(warm, 1.0)

    assert (await connections.take(1.0)).is_closed() is False


async def test_nobody_waits_behind_one_that_is_being_warmed(server: Server, connections: Connections) -> None:
    go_on = asyncio.Event()
    warming = asyncio.create_task(connections.warm_one(lambda _: go_on.wait(), 5.0))
    async with asyncio.timeout(5):
        while not server.made:
            await asyncio.sleep(0.01)

    other = await connections.take(1.0)

    assert other is not server.made[0]
    go_on.set()
    assert await warming


async def test_the_data_path_runs_with_nothing_to_do(database: Database) -> None:
    assert await database.warm_one(_DATA_PATH)
    for table in ("task", "due", "claim", "attempt"):
        assert await database.fetch(f"SELECT 1 FROM {table}") == []


async def test_closing_ends_waits_and_lends_no_more(server: Server) -> None:
    connections = Connections(server.connect, 1)
    lent = await connections.take(1.0)
    waiting = asyncio.ensure_future(connections.take(5.0))
    await asyncio.sleep(0)

    await connections.close(1.0)

    with pytest.raises(asyncpg.InterfaceError):
        await waiting
    with pytest.raises(asyncpg.InterfaceError):
        await connections.take(1.0)
    assert lent.is_closed()
    connections.give_back(lent)


async def test_the_driver_takes_our_arrays_without_asking_abstract_classes(database_url: str) -> None:
    hasten_arrays()
    assert asyncpg.protocol.protocol.IterableABC == (list, tuple)
    connection = await asyncpg.connect(database_url)
    try:
        for kind, values in (("text[]", ["a", None]), ("bytea[]", [b"{}", b""]), ("int[]", [1, 2]), ("uuid[]", [])):
            assert await connection.fetchval(f"SELECT $1::{kind}", values) == values
        assert await connection.fetchval("SELECT $1::int[]", [[1, 2], [3, 4]]) == [[1, 2], [3, 4]]
    finally:
        await connection.close()


async def test_what_is_discarded_is_closed_when_it_comes_back(server: Server, connections: Connections) -> None:
    idle, lent = await connections.take(1.0), await connections.take(1.0)
    connections.give_back(idle)

    connections.discard_all()

    assert idle.is_closed()
    assert not lent.is_closed()
    connections.give_back(lent)
    assert lent.is_closed()
    fresh = [await connections.take(1.0), await connections.take(1.0)]
    assert server.made == [idle, lent, *fresh]
