"""What the node's log says of a worker that fell silent."""

from typing import Any

from structlog.testing import capture_logs

from duetime.database.pool import Database
from duetime.lifecycle.holders.holders import Named
from duetime.scheduler.liveness import MOST_NAMED, SILENCE_SECONDS, Liveness
from engine import Engine


async def test_a_holder_that_lapsed_is_named_with_the_name_of_its_tenant(database: Database) -> None:
    engine = await Engine.open(database, "acme")
    [task] = await engine.submit()
    await engine.claim("mail-1")
    await engine.holders.beat(engine.tenant, "mail-1", [Named(task, 1, started=True)])

    said = await lapse_all(engine)

    assert said == [{"event": "holder lapsed", "log_level": "warning", "holder": "mail-1", "tenant": "acme"}]


async def test_very_many_of_a_tenant_have_a_few_lines_and_hide_nobody(database: Database) -> None:
    crowd, engine = await Engine.open(database, "crowd"), await Engine.open(database, "acme")
    for number in range(3 * MOST_NAMED):
        await crowd.holders.beat(crowd.tenant, f"made-up-{number}", [])
    await engine.holders.beat(engine.tenant, "mail-1", [])

    said = await lapse_all(engine)

    assert len(said) == MOST_NAMED + 1
    assert said[0] == {"event": "holder lapsed", "log_level": "warning", "holder": "mail-1", "tenant": "acme"}
    count = 2 * MOST_NAMED + 1
    event = "more holders lapsed, without a line each"
    assert said[-1] == {"event": event, "log_level": "warning", "count": count, "tenants": {"crowd": count}}


async def lapse_all(engine: Engine) -> list[Any]:
    """What is said of it."""
    now = 0.0
    liveness = Liveness(engine.database, engine.holders, engine.onward, monotonic=lambda: now)
    with capture_logs() as said:
        while now <= SILENCE_SECONDS:
            await liveness.step()
            now += 1.0
    return [line for line in said if "lapsed" in line["event"]]
