"""`duetime.outbox` on a real PostgreSQL, with every driver it knows."""

import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duetime import Submission, outbox
from duetime.sdk.errors import InvalidRequest, NotInTransaction

MADE_TENANT = "INSERT INTO duetime.tenant (name, shard, signing_secret) VALUES ('default', 0, ''), ('other', 0, '')"


@pytest.fixture
def url(database_url: str) -> str:
    with psycopg.connect(database_url) as connection:
        connection.execute(MADE_TENANT)
    return database_url


@pytest.fixture
def engine(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(_with_driver(url, "psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_engine(url: str, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(_with_driver(url, request.param))
    yield engine
    await engine.dispose()


def _with_driver(url: str, driver: str) -> sqlalchemy.URL:
    # asyncpg does not know the words of libpq.
    return sqlalchemy.make_url(url).set(drivername=f"postgresql+{driver}", query={})


def written(url: str, tenant: str = "default") -> list[tuple[int, Any]]:
    """Numbers and bodies in the outbox, as everybody sees them."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT outbox.id, body FROM duetime.outbox JOIN duetime.tenant ON tenant.id = tenant"
            " WHERE name = %s ORDER BY 1",
            (tenant,),
        ).fetchall()
    return [(number, json.loads(body)) for number, body in rows]


def test_psycopg_writes_in_its_transaction(url: str) -> None:
    with psycopg.connect(url, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as connection:
        outbox.submit(connection, "email.send", {"to": "nobody"})
        connection.rollback()
        number = outbox.submit(connection, "email.send", {"to": "ada"}, delay=timedelta(minutes=5), queue="mail")
        assert written(url) == []

    assert written(url) == [
        (number, {"type": "email.send", "payload": {"to": "ada"}, "delay": 300.0, "queue": "mail"}),
    ]


def test_many_keep_their_order_over_several_statements(url: str) -> None:
    with psycopg.connect(url) as connection:
        numbers = outbox.submit_many(
            connection,
            [Submission("a", place) if place % 2 else {"type": "a", "payload": place} for place in range(2500)],
            tenant="other",
        )
        assert outbox.submit_many(connection, []) == []

    assert [(number, body["payload"]) for number, body in written(url, "other")] == list(
        zip(numbers, range(2500), strict=True)
    )


def test_psycopg_without_a_transaction_is_refused(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(NotInTransaction, match=r"outbox\.submit\(\) needs a transaction.*connection\.transaction"):
            outbox.submit(connection, "a")
        with connection.transaction():
            outbox.submit(connection, "a")

    assert len(written(url)) == 1


async def test_psycopg_async(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, row_factory=dict_row) as connection:
        await outbox.submit(connection, "a", "nothing")
        await connection.rollback()
        numbers = [await outbox.submit(connection, "a", 1), *await outbox.submit_many(connection, [Submission("a", 2)])]
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        with pytest.raises(NotInTransaction):
            await outbox.submit(connection, "a")

    assert [(number, body["payload"]) for number, body in written(url)] == list(zip(numbers, [1, 2], strict=True))


async def test_asyncpg_also_where_json_has_a_codec_of_the_applications_own(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    try:
        with pytest.raises(NotInTransaction, match=r"async with connection\.transaction"):
            await outbox.submit(connection, "a")
        transaction = connection.transaction()
        await transaction.start()
        await outbox.submit(connection, "a", "nothing")
        await transaction.rollback()
        async with connection.transaction():
            number = await outbox.submit(connection, "a", {"b": [1.0]})
    finally:
        await connection.close()

    assert written(url) == [(number, {"type": "a", "payload": {"b": [1.0]}})]


async def test_asyncpg_from_a_pool(url: str) -> None:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        numbers = await outbox.submit_many(connection, [{"type": "a"}, {"type": "b"}])

    assert written(url) == list(zip(numbers, [{"type": "a"}, {"type": "b"}], strict=True))


def test_sqlalchemy_connection(engine: sqlalchemy.Engine, url: str) -> None:
    with engine.connect() as connection:
        outbox.submit(connection, "a", "nothing")
        connection.rollback()
    with engine.begin() as connection:
        number = outbox.submit(connection, "a", {"text": ":name %s"})
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, pytest.raises(NotInTransaction):
        outbox.submit(connection, "a")

    assert written(url) == [(number, {"type": "a", "payload": {"text": ":name %s"}})]


def test_sqlalchemy_sessions(engine: sqlalchemy.Engine, url: str) -> None:
    with Session(engine) as session:
        outbox.submit(session, "a", "nothing")
    with Session(engine) as session, session.begin():
        numbers = [outbox.submit(session, "a", 1)]
    sessions = scoped_session(sessionmaker(engine))
    numbers += outbox.submit_many(sessions, [Submission("a", 2)])
    sessions.commit()
    sessions.remove()

    assert [(number, body["payload"]) for number, body in written(url)] == list(zip(numbers, [1, 2], strict=True))


async def test_sqlalchemy_async(async_engine: AsyncEngine, url: str) -> None:
    async with async_engine.connect() as connection:
        await outbox.submit(connection, "a", "nothing")
    async with async_engine.begin() as connection:
        numbers = [await outbox.submit(connection, "a", 1)]
    async with AsyncSession(async_engine) as session, session.begin():
        numbers += await outbox.submit_many(session, [Submission("a", 2)])

    assert [(number, body["payload"]) for number, body in written(url)] == list(zip(numbers, [1, 2], strict=True))


def test_another_database_is_refused() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(TypeError, match="needs PostgreSQL"):
        outbox.submit(connection, "a")
    engine.dispose()


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"psycopg, asyncpg or SQLAlchemy, not builtins\.object"):
        outbox.submit(object(), "a")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"type": "no spaces"}, "type"),
        ({"type": "a", "queue": ""}, "queue"),
        ({"type": "a", "payload": "x" * 65_536}, "payload"),
        ({"type": "a", "labels": {"a": "x" * 262_144}}, ""),
    ],
)
def test_what_is_plainly_wrong_is_said_before_anything_is_written(url: str, fields: Any, path: str) -> None:
    with psycopg.connect(url) as connection:
        with pytest.raises(InvalidRequest) as raised:
            outbox.submit(connection, **fields)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    assert [error.path for error in raised.value.errors] == [path]


def test_an_unknown_tenant_fails_the_transaction(url: str) -> None:
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InvalidParameterValue, match="'nobody'"):
        outbox.submit(connection, "a", tenant="nobody")


def test_a_role_needs_the_function_and_nothing_of_the_tables(url: str) -> None:
    role = f"producer_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA duetime TO {role}")
    try:
        with psycopg.connect(url) as connection:
            connection.execute(f"SET ROLE {role}")
            connection.commit()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                outbox.submit(connection, "a")
            connection.rollback()
            with psycopg.connect(url) as owner:
                owner.execute(f"GRANT EXECUTE ON FUNCTION duetime.enqueue(text, json) TO {role}")
            # A table of the same name before it in the path must not be taken for it.
            connection.execute("CREATE TEMP TABLE tenant (id int, name text); CREATE TEMP TABLE outbox (id int)")
            number = outbox.submit(connection, "a")
            connection.commit()
            for table in ("outbox", "outbox_refused", "tenant"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"SELECT 1 FROM duetime.{table}")
                connection.rollback()
        assert written(url) == [(number, {"type": "a"})]
    finally:
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_function_of_ones_own_confines_a_role_to_a_tenant(url: str) -> None:
    """As docs/outbox.md shows it."""
    role = f"producer_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role}; CREATE SCHEMA shop; GRANT USAGE ON SCHEMA shop TO {role}")
        owner.execute(
            "CREATE FUNCTION shop.enqueue(body json) RETURNS bigint LANGUAGE sql"
            " SECURITY DEFINER SET search_path = duetime, pg_temp"
            " AS $$ SELECT duetime.enqueue('other', body) $$"
        )
        owner.execute(
            "REVOKE ALL ON FUNCTION shop.enqueue(json) FROM PUBLIC;"
            f"GRANT EXECUTE ON FUNCTION shop.enqueue(json) TO {role}"
        )
    try:
        with psycopg.connect(url) as connection:
            connection.execute(f"SET ROLE {role}")
            connection.execute("""SELECT shop.enqueue('{"type": "a"}')""")
            connection.commit()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                outbox.submit(connection, "a")
        assert (len(written(url)), len(written(url, "other"))) == (0, 1)
    finally:
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_no_driver_and_no_part_of_the_server_is_imported() -> None:
    program = (
        "import sys, duetime.outbox\n"
        "print(sorted(n for n in sys.modules if n.startswith('duetime.') and not n.startswith('duetime.sdk')))\n"
        "print([n for n in ('psycopg', 'asyncpg', 'sqlalchemy', 'httptools', 'urllib3') if n in sys.modules])"
    )

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.split("\n")[:2] == ["['duetime.outbox']", "[]"]
