"""What the node's log says of a worker that fell silent."""

from structlog.testing import capture_logs

from duetime.database.pool import Database
from duetime.lifecycle.holders.holders import Named
from duetime.scheduler.liveness import SILENCE_SECONDS, Liveness
from engine import Engine


async def test_a_holder_that_lapsed_is_named_with_the_name_of_its_tenant(database: Database) -> None:
    engine = await Engine.open(database, "acme")
    [task] = await engine.submit()
    await engine.claim("mail-1")
    await engine.holders.beat(engine.tenant, "mail-1", [Named(task, 1, started=True)])
    now = 0.0
    liveness = Liveness(database, engine.holders, engine.onward, monotonic=lambda: now)

    with capture_logs() as said:
        while now <= SILENCE_SECONDS:
            await liveness.step()
            now += 1.0

    lapsed = [line for line in said if line["event"] == "holder lapsed"]
    assert lapsed == [{"event": "holder lapsed", "log_level": "warning", "holder": "mail-1", "tenant": "acme"}]
