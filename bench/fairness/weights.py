"""2: tenants of weight 1, 2 and 4 with more tasks than can be run, until one of them falls idle."""

import asyncio
import time
from datetime import UTC, datetime

from bench.fairness.outcome import Options, Outcome, say
from bench.fairness.place import Place, open_place
from bench.fairness.records import Start, by_second, rate_between
from bench.plots import Bar, Line, Panel, draw_bars, draw_lines
from bench.processes import BenchError

WEIGHTS = (1, 2, 4)
CALLS = 128
DELAY_SECONDS = 0.1
METHOD = f"""Three tenants of weight 1, 2 and 4 have tasks with HTTP targets, all due at the same time and more than
the capacity. The executor makes {CALLS} calls at once, and a target answers after {DELAY_SECONDS * 1000:.0f} ms, so the
capacity that they compete for is fixed. The shares are measured while all three have work, without the first two
seconds. Then the tenant of weight 4 has no more tasks, and the other two get what it leaves."""


async def run(options: Options) -> Outcome:
    outcome = Outcome(2, "Weights 1, 2 and 4", METHOD)
    async with open_place(options.processes, executor_calls=CALLS, executor_calls_per_host=CALLS) as place:
        await _measure(place, outcome, 8.0 if options.is_quick else 30.0)
    return outcome


async def _measure(place: Place, outcome: Outcome, seconds: float) -> None:
    for weight in WEIGHTS:
        await place.make_tenant(f"weight-{weight}", weight)
    urls = await place.run_target(len(WEIGHTS), DELAY_SECONDS)
    most = CALLS / DELAY_SECONDS
    share = {weight: weight / sum(WEIGHTS) for weight in WEIGHTS}
    # The heaviest tenant has tasks for the time of measuring; the others also for the same time without it.
    counts = {weight: int(most * seconds * (share[weight] * 1.1 + (weight != 4))) for weight in WEIGHTS}
    due_at = time.time() + 4.0 + sum(counts.values()) / 5_000
    say(f"{sum(counts.values()):,} tasks, due together")
    at = datetime.fromtimestamp(due_at, UTC).isoformat()
    floods = [
        place.flood(
            f"weight-{weight}",
            {"type": "bench", "payload": {"who": weight}, "target": {"url": url}, "run_at": at},
            counts[weight],
        )
        for weight, url in zip(WEIGHTS, urls, strict=True)
    ]
    for flood in floods:
        await flood.wait(120.0)
    if time.time() > due_at:
        raise BenchError("the tasks were not submitted in time: the machine is too busy")
    await asyncio.sleep(due_at - time.time())
    starts = await place.until(counts[4], 10 * seconds + 60, who=4)
    idle_at = max(start.began_at for start in starts if start.who == 4)
    starts += await place.gather(seconds / 2)
    _judge(outcome, starts, due_at + 2.0, idle_at, seconds)


def _judge(outcome: Outcome, starts: list[Start], first: float, idle_at: float, seconds: float) -> None:
    last = min(idle_at - 0.5, first + seconds)
    of = {weight: [start for start in starts if start.who == weight] for weight in WEIGHTS}
    whole = rate_between(starts, first, last)
    bars = []
    for weight in WEIGHTS:
        share, fair = rate_between(of[weight], first, last) / whole, weight / sum(WEIGHTS)
        outcome.ask(f"share of weight {weight}, of what it should be", 100 * share / fair, " %", least=95.0, most=105.0)
        bars.append(Bar(f"weight {weight}", 100 * share, f"{100 * share:.2f} % ({100 * fair:.2f} %)", is_ours=True))
    after_first, after_last = idle_at + 0.5, idle_at + seconds / 2 - 0.5
    after = rate_between(starts, after_first, after_last)
    outcome.tell("tasks a second while all have work", whole)
    outcome.ask("tasks a second when the heaviest is idle, of that", 100 * after / whole, " %", least=95.0)
    lighter = rate_between(of[1], after_first, after_last) / after
    outcome.ask("share of weight 1 beside 2 alone, of a third", 300 * lighter, " %", least=95.0, most=105.0)
    title = "What tenants of weight 1, 2 and 4 get"
    outcome.plots.append(("weights", title, draw_bars(title, "% of all calls, and what is fair", bars)))
    span = int(idle_at + seconds / 2 - first)
    panels = [
        Panel(
            "calls",
            "a second",
            [Line("weight 4", by_second(of[4], first, span)), Line("weight 2", by_second(of[2], first, span))],
            event=(float(int(idle_at - first)), "weight 4 has no more"),
        ),
        Panel("all calls", "a second", [Line("all", by_second(starts, first, span))]),
    ]
    title = "One of three falls idle"
    outcome.plots.append(("weights-idle", title, draw_lines(title, "starts in each second", "s", panels)))
