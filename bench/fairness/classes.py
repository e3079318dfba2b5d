"""3: a flood of `critical` at five times the capacity, beside `low` in the same tenant."""

import math

from bench.fairness.outcome import Options, Outcome, say
from bench.fairness.place import Place, open_place
from bench.fairness.records import percentile, rate_between
from bench.plots import Line, Panel, draw_lines

CALLS = 32
DELAY_SECONDS = 0.08
FLOOD = 5.0
LOW, CRITICAL = 1, 8
FAIR = LOW / (LOW + CRITICAL)
#: A task of a class that asks for less than its share waits for its turn, not for the backlog of the other classes.
MOST_WAIT_SECONDS = 1.0
METHOD = f"""One tenant submits `critical` tasks at five times the capacity ({CALLS} calls at once to a target
that answers after {DELAY_SECONDS * 1000:.0f} ms). First it also submits `low` tasks at half of their share: none of
them may wait longer than {MOST_WAIT_SECONDS:.0f} s, although tens of thousands of `critical` tasks wait. Then it
submits more `low` tasks than the capacity, too. Their share is 1 of 9 at first, because the weights are 8 and 1. It
grows while they wait, because classes age."""


async def run(options: Options) -> Outcome:
    outcome = Outcome(3, "A flood of critical beside low", METHOD)
    async with open_place(options.processes, executor_calls=CALLS, executor_calls_per_host=CALLS) as place:
        await _measure(place, outcome, 10.0 if options.is_quick else 60.0)
    return outcome


async def _measure(place: Place, outcome: Outcome, seconds: float) -> None:
    [url] = await place.run_target(1, DELAY_SECONDS)
    tasks: dict[int, dict[str, object]] = {
        who: {"type": "bench", "payload": {"who": who}, "priority": priority, "target": {"url": url}}
        for who, priority in ((LOW, "low"), (CRITICAL, "critical"))
    }
    alone = int(CALLS / DELAY_SECONDS * 4)
    place.flood("default", tasks[CRITICAL], alone)
    starts = await place.until(alone, 120.0)
    times = [start.began_at for start in starts]
    capacity = alone / (max(times) - min(times))
    say(f"capacity {capacity:,.0f} a second; critical at five times that for {seconds:.0f} s")
    flood = place.flood("default", tasks[CRITICAL], int(FLOOD * capacity * seconds), FLOOD * capacity)
    await place.until(capacity, 60.0)
    trickle_rate = capacity * FAIR / 2
    trickle = place.flood("default", tasks[LOW], math.ceil(trickle_rate * seconds), trickle_rate)
    starts = await place.gather(seconds)
    await trickle.wait(30.0)
    # The last tasks need their time, too.
    starts += await place.gather(2 * MOST_WAIT_SECONDS)
    await flood.wait(120.0)
    waits = [(start.began_at, start.lag_ms / 1000) for start in starts if start.who == LOW]
    outcome.tell("tasks a second that can be done", capacity)
    outcome.ask("low that began, of what it submitted", 100 * len(waits) / (trickle_rate * seconds), " %", least=98.0)
    outcome.ask("longest wait of low under its share", max(wait for _, wait in waits), " s", most=MOST_WAIT_SECONDS)
    say("low with more than can be done")
    await place.flood("default", tasks[LOW], int(capacity * seconds)).wait(120.0)
    place.new_starts()
    starts = await place.gather(seconds / 2)
    times = [start.began_at for start in starts]
    first, last = min(times), max(times)
    share = rate_between([start for start in starts if start.who == LOW], first, last) / rate_between(
        starts, first, last
    )
    outcome.ask("share of low, of 1/9", 100 * share / FAIR, " %", least=95.0)
    outcome.plots.append(("classes", "Waits of low beside the flood", _draw(waits, seconds)))


def _draw(waits: list[tuple[float, float]], seconds: float) -> str:
    first = min(began_at for began_at, _ in waits)
    by_second: dict[int, list[float]] = {}
    for began_at, wait in waits:
        by_second.setdefault(int(began_at - first), []).append(1000 * wait)
    longest = [(float(second), max(each)) for second, each in sorted(by_second.items())]
    middle = [(float(second), percentile(each, 0.5)) for second, each in sorted(by_second.items())]
    panel = Panel("wait of low", "ms", [Line("longest", longest), Line("p50", middle)])
    subtitle = "each second of a flood of critical at five times the capacity"
    return draw_lines("Waits of low beside the flood", subtitle, "s", [panel])
