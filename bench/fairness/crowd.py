"""6: two thousand tenants with one task each, all due at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from bench.fairness.outcome import Options, Outcome, say
from bench.fairness.place import Place, open_place
from bench.fairness.records import Start, percentile
from bench.plots import Line, Panel, draw_lines
from bench.processes import BenchError

METHOD = """Two thousand tenants submit one task each with an HTTP target. First all tasks have the same due time
a few seconds ahead, so that they compete in the same millisecond. Then they are due at once, as fast as one client with
a hundred connections can submit them. The last of the tasks that are due together has to start within a second."""
_IN_FLIGHT = 100


async def run(options: Options) -> Outcome:
    tenants = 200 if options.is_quick else 2_000
    outcome = Outcome(6, f"{tenants:,} tenants with one task each", METHOD)
    async with open_place(options.processes) as place:
        await _measure(place, outcome, tenants)
    return outcome


async def _measure(place: Place, outcome: Outcome, tenants: int) -> None:
    [url] = await place.run_target()
    say(f"{tenants:,} tenants are made")
    await _each(tenants, lambda who: place.make_tenant(f"tenant-{who}"))
    # The first task of a tenant makes its lane; that is not measured here.
    await _each(tenants, lambda who: place.submit(f"tenant-{who}", _task(who, url)))
    await place.until(tenants, 120.0)
    due_at = round(time.time() + 3.0 + tenants / 300, 3)
    await _each(tenants, lambda who: place.submit(f"tenant-{who}", _task(who, url, due_at)))
    if time.time() > due_at:
        raise BenchError("the tasks were not submitted in time: the machine is too busy")
    starts = await place.until(tenants, due_at - time.time() + 60.0)
    last = max(start.began_at for start in starts) - due_at
    outcome.ask("due together: the last one starts after", last, " s", most=1.0)
    outcome.tell("due together: p50", percentile([start.began_at - due_at for start in starts], 0.5), " s")
    began = time.time()
    await _each(tenants, lambda who: place.submit(f"tenant-{who}", _task(who, url)))
    seconds = time.time() - began
    at_once = await place.until(tenants, 120.0)
    outcome.tell("at once: submitting them took", seconds, " s")
    outcome.tell("at once: the last one starts after its submission by", max(start.lag_ms for start in at_once), " ms")
    title = f"{tenants:,} tenants, all due at once"
    outcome.plots.append(("crowd", title, _draw(title, starts, due_at)))


def _task(who: int, url: str, due_at: float | None = None) -> dict[str, object]:
    task: dict[str, object] = {
        "type": "bench",
        "payload": {"who": who, "at": due_at or time.time()},
        "target": {"url": url},
    }
    return task if due_at is None else {**task, "run_at": datetime.fromtimestamp(due_at, UTC).isoformat()}


async def _each(count: int, do: Callable[[int], Awaitable[None]]) -> None:
    left = iter(range(count))

    async def take() -> None:
        for who in left:
            await do(who)

    await asyncio.gather(*[take() for _ in range(_IN_FLIGHT)])


def _draw(title: str, starts: list[Start], due_at: float) -> str:
    after = sorted(1000 * (start.began_at - due_at) for start in starts)
    steps = range(0, int(after[-1]) + 51, 50)
    points = [(float(step), float(sum(each <= step for each in after))) for step in steps]
    panel = Panel("tasks that have started", "in all", [Line("started", points)])
    return draw_lines(title, "by milliseconds after the due time", "ms", [panel])
