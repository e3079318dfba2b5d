"""An answer from a row that was there waits for a synchronous standby, as the commit that made the row does.

The server breaks off the wait of a commit: its row can be seen, and no standby
has it.  The node repeats what it got no answer for, and finds the row.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

import services
from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.errors import Unknown
from duetime.ids import lane_of
from duetime.lifecycle.submission.batch import Submitted
from duetime.lifecycle.tasks.steer import SQL
from duetime.model.task import TaskState
from duetime.sdk.uuid7 import make_uuid7
from engine import Engine
from services import Postgres15, Server
from standby import Standby

_WAITING = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE wait_event = 'SyncRep' AND datname = current_database() AND pid <> ALL ($1::int[])"
)


Servers = tuple[Server, Standby, Iterator[str]]
#: Databases are made before there is a standby that has to follow.
_TESTS = 5


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """A primary with a synchronous standby, and a database for each test."""
    with services.private_folder() as folder:
        for name in ("primary", "standby"):
            (folder / name).mkdir()
        primary = Postgres15(folder / "primary", is_durable=True)
        primary.start()
        server = Server.at(primary.dsn_of("postgres"))
        server.make_template()
        names = [server.make_database() for _ in range(_TESTS)]
        standby = Standby(folder / "standby", primary)
        standby.start()
        yield server, standby, iter(names)
        server.admin.close()
        primary.stop()
        standby.stop()


@pytest.fixture
async def engine(servers: Servers) -> AsyncIterator[Engine]:
    server, standby, names = servers
    database = await Database.open(server.url_of(next(names)), size=2)
    yield await Engine.open(database)
    await database.close()
    if not standby.is_there:
        # A test that failed: the next one's database would wait for it.
        standby.start()


@pytest.fixture
async def watch(engine: Engine) -> AsyncIterator[Database]:
    """A second way to the same database."""
    [row] = await engine.database.fetch("SELECT current_database() AS name, inet_server_port() AS port")
    database = await Database.open(f"postgresql://duetime:test@127.0.0.1:{row['port']}/{row['name']}?sslmode=disable")
    yield database
    await database.close()


async def waiting(watch: Database, *known: int) -> int:
    """The process of a commit that waits for the standby."""
    async with asyncio.timeout(30):
        while not (rows := await watch.fetch(_WAITING, list(known))):
            await asyncio.sleep(0.01)
    pid: int = rows[0]["pid"]
    return pid


async def submit_named(engine: Engine, request: object) -> Submitted:
    [answer] = await engine.submitter.submit([engine.new_task()], request, b"same")  # type: ignore[arg-type]
    assert isinstance(answer, Submitted), answer
    return answer


async def through_the_gap(
    engine: Engine, watch: Database, standby: Standby, act: Callable[[], Awaitable[object]]
) -> object:
    """Do it while the standby is away and the first wait is broken off; the answer comes with the standby."""
    standby.stop()
    acting = asyncio.ensure_future(act())
    first = await waiting(watch)
    await watch.fetch("SELECT pg_terminate_backend($1)", first)

    again = await waiting(watch, first)

    assert again != first
    assert not acting.done()
    standby.start()
    return await acting


async def test_a_submission_is_not_confirmed_before_the_standby_has_it(
    engine: Engine, watch: Database, servers: Servers
) -> None:
    request = make_uuid7()
    await submit_named(engine, make_uuid7())

    answer = await through_the_gap(engine, watch, servers[1], lambda: submit_named(engine, request))

    assert isinstance(answer, Submitted)
    assert answer.is_new
    [row] = await watch.fetch("SELECT count(*) AS tasks FROM task")
    assert row["tasks"] == 2


async def test_a_report_is_not_confirmed_before_the_standby_has_it(
    engine: Engine, watch: Database, servers: Servers
) -> None:
    [task] = await engine.submit()
    leased = await engine.claim()

    await through_the_gap(engine, watch, servers[1], lambda: engine.settle(leased))

    assert await engine.outcomes(task) == ["succeeded"]


async def test_a_verb_is_not_confirmed_before_the_standby_has_it(
    engine: Engine, watch: Database, servers: Servers
) -> None:
    [task] = await engine.submit(delay=3600)

    verdicts = await through_the_gap(engine, watch, servers[1], lambda: engine.steering.pause([task]))

    assert isinstance(verdicts, dict)
    assert verdicts[task].changed
    assert await engine.state(task) is TaskState.PAUSED


async def test_a_call_that_is_asked_again_waits_for_the_standby(
    engine: Engine, watch: Database, servers: Servers
) -> None:
    """The node that made the row is not the one that is asked again."""
    standby = servers[1]
    request, (task,) = make_uuid7(), await engine.submit(delay=3600)
    answer = await submit_named(engine, request)
    await engine.steering.pause([task])
    standby.stop()

    submitting = asyncio.create_task(submit_named(engine, request))
    first = await waiting(watch)
    pausing = asyncio.create_task(engine.steering.pause([task]))
    await waiting(watch, first)

    assert not submitting.done()
    assert not pausing.done()
    standby.start()
    assert (await submitting).id == answer.id
    assert not (await pausing)[task].changed


async def test_what_no_standby_has_in_time_is_unknown(engine: Engine, servers: Servers) -> None:
    standby = servers[1]
    [task] = await engine.submit(delay=3600)
    standby.stop()

    with pytest.raises(Unknown):
        await run_once(engine.database, SQL["pause"], lanes=[lane_of(task)], tasks=[task], timeout=1.0)

    standby.start()
    assert await engine.state(task) is TaskState.PAUSED
