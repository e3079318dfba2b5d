"""1: a tenant that submits 200,000 tasks at once, beside nine that submit one a second each."""

import os
import signal
from dataclasses import dataclass
from statistics import median

import msgspec

from bench.fairness.outcome import Options, Outcome, say
from bench.fairness.place import Place, open_place
from bench.fairness.quiet import Quiet
from bench.fairness.records import Start, percentile
from bench.plots import Bar, draw_bars
from bench.processes import Child, Ended
from bench.results import Run
from bench.stolen import MORE_RUNS, Stolen, measure_undisturbed

QUIET = 9
ROUNDS = 5
#: About as long as A's tasks take: the more lags there are, the longer the longest of them.
EMPTY_SECONDS = 6
#: Stolen time lengthens the longest lags long before it changes a rate.
MOST_STOLEN_PERCENT = 3.0
NOISY = 0
METHOD = f"""Tenant A submits 200,000 tasks at once, from a process of its own. Tenants B to J submit one task a
second each. Their lag is the time from just before the call of `POST /v1/tasks` until their task has begun. On one node
there are five rounds of three phases: B to J alone (the empty system), A alone (its rate with everything for itself,
from its first start to its last), and all together. Figures are medians of the five rounds. If the host gave more than
{MOST_STOLEN_PERCENT:.0f} % of the processors' time to others during a round, the round is repeated, at most
{MORE_RUNS} times. *pull*: each tenant has a worker of its own; A's is in a process of its own. *push*: tasks are calls
to HTTP targets, one host for each tenant, so all tenants compete for the executor of the node. Each tenant submits from
a process of its own, with its own key."""


async def run(options: Options) -> Outcome:
    outcome = Outcome(1, "A tenant with 200,000 tasks beside nine quiet ones", METHOD)
    for is_push in (False, True):
        async with open_place(options.processes) as place:
            await _measure(Teams(place, *await _prepare(place, is_push)), outcome, is_push, options.is_quick)
    return outcome


@dataclass(frozen=True)
class Teams:
    """The tenants by their numbers, A first: what each submits, and with which key."""

    place: Place
    tasks: list[dict[str, object]]
    keys: list[str]

    async def submit_quietly(self, seconds: float | None) -> Child:
        """B to J, from a process of their own; None: until it is stopped."""
        order = Quiet(self.place.node.url, self.keys[1:], self.tasks[1:], seconds)
        return await self.place.start_program("quiet", msgspec.json.encode(order).decode())


async def _measure(teams: Teams, outcome: Outcome, is_push: bool, is_quick: bool) -> None:
    way = "push" if is_push else "pull"
    count = 10_000 if is_quick else 200_000
    stolen, runs = Stolen(), []
    # The first run of anything is slower.
    await _submit_quietly(teams, EMPTY_SECONDS)
    rounds = 1 if is_quick else ROUNDS
    for number in range(1, rounds + 1):
        say(f"{way}: B to J alone, A alone, {count:,} tasks, and all of them, {number} of {rounds}")
        more_runs = 0 if is_quick else MORE_RUNS
        run = await measure_undisturbed(lambda: _round(teams, count), stolen, more_runs, say, MOST_STOLEN_PERCENT)
        runs.append(run)
        say(f"{way}: " + ", ".join(f"{name} {value:,.1f}" for name, value in run.figures.items()))
        say(f"{way}: others had {run.stolen_percent:.1f} % of the processors' time")
    seen = {name: median(run.figures[name] for run in runs) for name in runs[0].figures}
    p99, empty_p99 = seen["p99_ms"], seen["empty_p99_ms"]
    outcome.tell(f"{way}: p99 lag of B to J on an empty system", empty_p99, " ms")
    outcome.ask(f"{way}: p99 lag of B to J beside A, in terms of that", p99 / empty_p99, " times", most=3.0)
    outcome.ask(f"{way}: p99 lag of B to J beside A", p99, " ms", most=250.0)
    outcome.tell(f"{way}: of that, p99 of the call that submits", seen["call_p99_ms"], " ms")
    outcome.tell(f"{way}: tasks a second of A alone", seen["rate"])
    outcome.ask(f"{way}: tasks a second of all, of that", seen["share_percent"], " %", least=90.0)
    bars = [
        Bar("empty, p50 and p99", seen["empty_p50_ms"], f"{empty_p99:.1f} ms", behind=empty_p99),
        Bar("beside A, p50 and p99", seen["p50_ms"], f"{p99:.1f} ms", is_ours=True, behind=p99),
    ]
    subtitle = f"ms from submission to start, {way}; A has {count:,} tasks waiting"
    outcome.plots.append(
        (f"noisy-{way}", "Lag of nine quiet tenants", draw_bars("Lag of nine quiet tenants", subtitle, bars))
    )


async def _round(teams: Teams, count: int) -> Run:
    empty = [start.lag_ms for start in await _submit_quietly(teams, EMPTY_SECONDS)]
    alone, _ = await _flood(teams, count, is_beside=False)
    together, taken = await _flood(teams, count, is_beside=True)
    lags = [start.lag_ms for start in together if start.who != NOISY]
    return Run(
        {
            "empty_p50_ms": percentile(empty, 0.5),
            "empty_p99_ms": percentile(empty, 0.99),
            "p50_ms": percentile(lags, 0.5),
            "p99_ms": percentile(lags, 0.99),
            "call_p99_ms": 1000 * percentile(taken, 0.99),
            "rate": _rate(alone),
            "share_percent": 100 * _rate(together) / _rate(alone),
        }
    )


async def _prepare(place: Place, is_push: bool) -> tuple[list[dict[str, object]], list[str]]:
    """Make the tenants, each named by its number, with its task and its key."""
    names = [f"tenant-{who}" for who in range(QUIET + 1)]
    for name in names:
        await place.make_tenant(name)
    keys = [await place.make_key(name, "producer") for name in names]
    if is_push:
        urls = await place.run_target(len(names))
        tasks: list[dict[str, object]] = [
            {"type": "bench", "payload": {"who": who}, "target": {"url": url}} for who, url in enumerate(urls)
        ]
        return tasks, keys
    workers = [await place.make_key(name) for name in names]
    await place.run_hands(workers[:1], concurrency=1_000, name="hands-noisy")
    await place.run_hands(workers[1:], concurrency=1_000, name="hands-quiet")
    return [{"type": "bench", "payload": {"who": who}} for who in range(len(names))], keys


async def _submit_quietly(teams: Teams, seconds: float) -> list[Start]:
    child = await teams.submit_quietly(seconds)
    sent = len(_calls_of(await child.wait(seconds + 60.0)))
    return await teams.place.until(sent, 60.0)


def _calls_of(ended: Ended) -> list[float]:
    """The seconds that each call took."""
    return msgspec.json.decode(ended.output.splitlines()[-1], type=list[float])


async def _flood(teams: Teams, count: int, *, is_beside: bool) -> tuple[list[Start], list[float]]:
    """Run A's tasks until all have begun, with `is_beside` beside B to J. Return starts, and call times of B to J."""
    place = teams.place
    beside = await teams.submit_quietly(None) if is_beside else None
    flood = place.flood("tenant-0", teams.tasks[NOISY], count)
    starts = await place.until(count, 600.0, NOISY)
    await flood.wait(60.0)
    if beside is None:
        return starts, []
    os.kill(beside.pid, signal.SIGTERM)
    return starts, _calls_of(await beside.wait(60.0))


def _rate(starts: list[Start]) -> float:
    """Starts a second of A, from its first start to its last."""
    times = [start.began_at for start in starts if start.who == NOISY]
    first, last = min(times), max(times)
    return sum(first <= start.began_at <= last for start in starts) / (last - first)
