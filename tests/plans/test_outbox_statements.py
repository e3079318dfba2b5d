"""A look into the outbox reads what is new, not what went through while somebody's transaction stayed open."""

import asyncpg

from duetime.database.pool import Database
from duetime.lifecycle.submission.outbox import NOTHING_SEEN, SQL, Outbox, Snapshot, span_of
from engine import Engine
from plans.explain import BELIEVE_EMPTY, MODES, Plan, explain

GONE = 30_000
ENQUEUE = """SELECT duetime.enqueue('default', '{"type": "t"}')"""


def never(tenant: int, body: bytes, written_at: object) -> None:
    raise AssertionError


async def pages(database: Database, base: Snapshot, mode: str) -> tuple[int, int]:
    """How many pages a look at what `base` did not show reads, and how many rows it finds."""
    statement = SQL["read_visible"]
    async with database.connection() as connection:
        root = await explain(
            connection, statement.sql, statement.arguments(span_of(base, (0, 0)) | {"limit": 1_000}), mode
        )
    plan = Plan("read_visible", mode, root)
    scans = [node for node in plan.nodes() if node.get("Relation Name") == "outbox"]
    assert len(scans) == 2
    assert all("Index Cond" in node for node in scans)
    return plan.pages(), sum(node["Actual Rows"] for node in scans)


async def test_a_look_skips_what_cannot_be_vacuumed_yet(database_url: str) -> None:
    database = await Database.open(database_url)
    engine = await Engine.open(database)
    outbox = Outbox(database, engine.lanes, engine.submitter, never)  # type: ignore[arg-type]
    late = await asyncpg.connect(database_url)
    open_then = late.transaction()
    await open_then.start()
    await late.execute(ENQUEUE)
    await database.execute(
        "INSERT INTO outbox (tenant, body) SELECT $1, 'x' FROM generate_series(1, $2::int)", engine.tenant, GONE
    )
    await database.execute("DELETE FROM outbox")
    base, letters = await outbox.look(NOTHING_SEEN, (0, 0), 1_000)
    assert letters == []
    await database.execute(ENQUEUE)
    await open_then.commit()
    await late.close()

    for mode in MODES:
        read, found = await pages(database, base, mode)

        assert found == 2
        assert read < 20
    await database.close()


async def test_taking_reads_what_is_asked_for_also_while_the_outbox_is_believed_empty(database_url: str) -> None:
    database = await Database.open(database_url)
    engine = await Engine.open(database)
    await database.execute(
        "INSERT INTO outbox (tenant, body) SELECT $1, 'x' FROM generate_series(1, $2::int)", engine.tenant, GONE
    )
    await database.execute(BELIEVE_EMPTY)
    rows = await database.fetch("SELECT transaction, id FROM outbox ORDER BY id DESC LIMIT 40")
    statement = SQL["take"]
    asked = {"transactions": [row["transaction"] for row in rows], "ids": [row["id"] for row in rows]}

    for mode in MODES:
        async with database.connection() as connection:
            plan = Plan("take", mode, await explain(connection, statement.sql, statement.arguments(asked), mode))

        assert plan.wrong_ways() == []
        # Once to lock it, once to take it.
        assert plan.rows_read() == 2 * len(rows)
    await database.close()
