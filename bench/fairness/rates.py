"""4: a key limited to 100 a second with 100,000 tasks waiting, beside other queues of the same tenant."""

import math
import time
from dataclasses import dataclass

import asyncpg

from bench.fairness.outcome import Options, Outcome, say
from bench.fairness.place import Place, open_place
from bench.fairness.records import Start, by_second, percentile
from bench.plots import Line, Panel, draw_lines

RATE = 100.0
LIMITED, OTHER = 1, 2
CALLS = 128
DELAY_SECONDS = 0.1
OTHER_RATE = 600.0
#: The first seconds are left out: the bucket's burst, and reading the backlog for the first time.
SETTLE_SECONDS = 3.0
MOST_SETTLE_SECONDS = 60.0
METHOD = f"""Tasks with `rate_key: "sms"` and a limit of {RATE:.0f} a second (`PUT /v1/limits/sms`, burst 1) call an
HTTP target. At the same time another queue of the same tenant runs {OTHER_RATE:.0f} tasks a second. This is measured
three times on one node: without waiting limited tasks, with 100,000 of them waiting, and without them again (they are
cancelled). The loss of the other queue is its rate with the waiting tasks, compared with the mean of the two rates
without. Index reads are `pg_stat_user_indexes.idx_tup_read` of `due`, minus the reads for the other queue's tasks in
the first measurement. Their unit is the reads of one task that is claimed without any limit; "read once" means one
unit."""
_READS = """
SELECT COALESCE(sum(idx_tup_read), 0)::bigint
  FROM pg_stat_user_indexes
 WHERE schemaname = 'duetime' AND relname LIKE 'due%'
"""


@dataclass(frozen=True)
class Window:
    """What was begun and read in a time."""

    starts: list[Start]
    seconds: float
    reads: int

    def count(self, who: int) -> int:
        return sum(start.who == who for start in self.starts)

    def rate(self, who: int) -> float:
        return self.count(who) / self.seconds

    def p99(self, who: int) -> float:
        return percentile([start.lag_ms for start in self.starts if start.who == who], 0.99)


async def run(options: Options) -> Outcome:
    outcome = Outcome(4, "A key limited to 100 a second", METHOD)
    settings = {"executor_calls": CALLS, "executor_calls_per_host": CALLS}
    async with open_place(options.processes, **settings) as place, place.database() as database:
        if options.is_quick:
            await _measure(place, database, outcome, backlog=5_000, seconds=10.0, beside_seconds=5.0)
        else:
            await _measure(place, database, outcome, backlog=100_000, seconds=60.0, beside_seconds=20.0)
    return outcome


async def _measure(
    place: Place, database: asyncpg.Connection, outcome: Outcome, backlog: int, seconds: float, beside_seconds: float
) -> None:
    urls = await place.run_target(2, DELAY_SECONDS)
    limited: dict[str, object] = {
        "type": "bench",
        "payload": {"who": LIMITED},
        "queue": "limited",
        "rate_key": "sms",
        "target": {"url": urls[0]},
    }
    other: dict[str, object] = {
        "type": "bench",
        "payload": {"who": OTHER},
        "queue": "other",
        "target": {"url": urls[1]},
    }
    await place.call("PUT", "/v1/limits/sms", {"rate": RATE, "burst": 1})
    # Long enough for all three times and for what is done between them.
    load = place.flood("default", other, math.ceil(OTHER_RATE * (seconds + 2 * beside_seconds + 240)), OTHER_RATE)
    try:
        await place.until(OTHER_RATE, 60.0)
        say(f"the other queue alone for {beside_seconds:.0f} s")
        before = await _watch(place, database, beside_seconds)
        say(f"{backlog:,} tasks of the limited key")
        reads_before = await _reads(database)
        place.new_starts()
        await place.flood("default", limited, backlog).wait(120.0)
        meanwhile = await _settle(place, database, before)
        during = await _watch(place, database, seconds)
        reads = await _reads(database) - reads_before
        say("the limited ones are cancelled")
        await _cancel(place)
        await place.gather(SETTLE_SECONDS)
        after = await _watch(place, database, beside_seconds)
    finally:
        load.kill()
    outcome.ask("limited key, tasks a second", during.rate(LIMITED), "", least=RATE - 2, most=RATE + 2)
    alone = (before.rate(OTHER) + after.rate(OTHER)) / 2
    outcome.ask("rate of the other queue beside it", 100 * during.rate(OTHER) / alone, " %", least=95.0)
    outcome.tell("p99 lag of the other queue without it", before.p99(OTHER), " ms")
    outcome.tell("p99 lag of the other queue beside it", during.p99(OTHER), " ms")
    once = before.reads / before.count(OTHER)
    outcome.tell("index reads of a task without a limit", once)
    steady = (during.reads - once * during.count(OTHER)) / once / during.count(LIMITED)
    outcome.ask("times that a limited task is read, for each that starts", steady, "", most=2.0)
    others = during.count(OTHER) + sum(start.who == OTHER for start in meanwhile)
    outcome.ask(
        "times that a limited task is read, for each that waits", (reads / once - others) / backlog, "", most=2.0
    )
    outcome.plots.append(("rates", "A key limited to 100 a second", _draw(during)))


async def _settle(place: Place, database: asyncpg.Connection, before: Window) -> list[Start]:
    """Wait until the backlog has been read for the first time: then only a few rows are read in a second again."""
    starts = await place.gather(SETTLE_SECONDS)
    usual = before.reads / before.seconds * (1 + 2 * RATE / OTHER_RATE)
    deadline = time.monotonic() + MOST_SETTLE_SECONDS
    while time.monotonic() < deadline:
        window = await _watch(place, database, SETTLE_SECONDS)
        starts += window.starts
        if window.reads <= 1.2 * usual * window.seconds:
            break
    return starts


async def _watch(place: Place, database: asyncpg.Connection, seconds: float) -> Window:
    place.new_starts()
    reads = await _reads(database)
    starts = await place.gather(seconds)
    return Window(starts, seconds, await _reads(database) - reads)


async def _reads(database: asyncpg.Connection) -> int:
    return int(await database.fetchval(_READS))


async def _cancel(place: Place) -> None:
    """Cancel all tasks that wait in the limited queue, ten thousand at a time."""
    cursor: str | None = None
    while True:
        body: dict[str, object] = {"filter": {"queue": "limited"}, "limit": 10_000}
        answer = await place.call("POST", "/v1/tasks/bulk/cancel", body | ({"cursor": cursor} if cursor else {}))
        cursor = answer.get("next")
        if cursor is None:
            return


def _draw(during: Window) -> str:
    first = min(start.began_at for start in during.starts)
    span = int(during.seconds)
    panels = [
        Panel(
            "limited key",
            "a second",
            [Line("sms", by_second([s for s in during.starts if s.who == LIMITED], first, span))],
        ),
        Panel(
            "other queue",
            "a second",
            [Line("other", by_second([s for s in during.starts if s.who == OTHER], first, span))],
        ),
    ]
    return draw_lines("A key limited to 100 a second", "starts in each second", "s", panels)
