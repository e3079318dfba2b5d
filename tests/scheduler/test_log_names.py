"""Lines of the node's log call a tenant by its name."""

import uuid
from collections.abc import MutableMapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from duetime.admin.limits import LimitRules
from duetime.config import Config
from duetime.database.pool import Database
from duetime.lifecycle.admission.waiting import WaitingRoom, bound_waiting, count_waiting
from duetime.lifecycle.submission.outbox import Letter, Outbox
from duetime.model.task import Kind, LeasedTask, NewTask, Options, Target
from duetime.serve import Node
from engine import Engine


def of_event(said: Sequence[MutableMapping[str, Any]], event: str) -> list[dict[str, Any]]:
    return [{**line} for line in said if line["event"] == event]


async def test_a_breaker_that_changes_is_told_with_the_name_of_its_tenant(database: Database) -> None:
    engine = await Engine.open(database, "acme")
    lane = await engine.lanes.ensure(engine.lane_key("default", kind=Kind.PUSH))
    node = Node(Config(), database, None)
    await node.parts.lanes.load()
    now = database.clock.now()
    target = Options(target=Target("https://a.example/hook"))
    task = LeasedTask(uuid.uuid4(), lane, 1, 1, "t", b"", now, now, 0, 0, 0, target)

    with capture_logs() as said:
        node.parts.breakers.report(task, "overloaded", 30.0, "it answered 503")

    [line] = of_event(said, "breaker")
    assert (line["tenant"], line["host"], line["state"]) == ("acme", "a.example:443", "slowed")


async def test_waiting_tasks_that_cannot_be_counted_are_told_with_the_name(database_url: str) -> None:
    database = await Database.open(database_url)
    engine = await Engine.open(database, "acme")
    await engine.submit()
    room = WaitingRoom(
        partial(count_waiting, database), partial(bound_waiting, database), name_of=engine.lanes.tenant_name
    )
    await database.close()

    with capture_logs() as said:
        assert await room.take(engine.tenant, 100, 1) == 1

    [line] = of_event(said, "the waiting tasks of a tenant cannot be counted")
    assert line["tenant"] == "acme"


async def test_a_row_of_the_outbox_that_cannot_be_judged_is_told_with_the_name(database: Database) -> None:
    engine = await Engine.open(database, "acme")
    await engine.submit()

    def read(tenant: int, body: bytes, written_at: datetime) -> NewTask:
        raise ZeroDivisionError

    outbox = Outbox(database, engine.lanes, engine.submitter, read)
    letter = Letter(1, 7, engine.tenant, b"{}", datetime(2027, 1, 1, tzinfo=UTC))

    with capture_logs() as said:
        await outbox.relay([letter])

    [line] = of_event(said, "a row of the outbox cannot be judged")
    assert (line["tenant"], line["number"]) == ("acme", 7)


async def test_limits_that_cannot_be_used_are_told_with_the_names(database: Database) -> None:
    engine = await Engine.open(database, "acme")
    await database.execute(
        "INSERT INTO limit_rule (tenant, scope, name, limits) "
        "SELECT tenant, 3, 'odd', '{\"from\": \"later\"}' FROM unnest($1::int[]) AS tenant",
        [engine.tenant, 1_000_000],
    )

    with capture_logs() as said:
        await LimitRules(database).refresh()

    lines = of_event(said, "a limit cannot be used")
    # Nobody can say what one is called that is not there.
    assert {line["tenant"] for line in lines} == {"acme", 1_000_000}
    assert {line["name"] for line in lines} == {"odd"}
