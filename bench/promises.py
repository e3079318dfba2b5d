"""The promises of duetime: each with its target, judged by the figures of one run.

Against peers a promise is a ratio of medians of the same file, because absolute
figures differ between machines.  What was not measured is neither kept nor broken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.results import Results

GRAPHILE, PGQUEUER, OURS = "graphile-worker", "pgqueuer", "duetime"
#: Peers as durable as duetime; peers whose Redis syncs only once a second are shown beside them and not compared.
BULLMQ = "bullmq-synced"
#: "Flat" means: at most this much above the value after the first minute.
FLAT_PERCENT = 10.0
WAITING_MB = 20.0


@dataclass(frozen=True)
class Promise:
    """One line of the list; `holds` is None if it was not measured."""

    number: int
    what: str
    target: str
    figure: str
    holds: bool | None


def judge(results: Results) -> list[Promise]:
    """All promises, in order."""
    read = _Reader(results)
    return [
        *_judge_sustained(read),
        *_judge_drain(read),
        *_judge_submit(read),
        *_judge_start(read),
        *_judge_waiting(read),
        *_judge_snapshot(read),
        *_judge_soak(read),
        *_judge_targets(read),
        *_judge_limit(read),
        *_judge_load(read),
    ]


class _Reader:
    """Figures of duetime and of its peers, and the promises made of them."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def ours(self, name: str, scenario: str, variant: str = "") -> float | None:
        return self._results.figure(name, scenario, OURS, variant)

    def ratio(
        self, number: int, what: str, scenario: str, peer: str, least: float, ours: str = "", theirs: str = ""
    ) -> Promise:
        """duetime's rate divided by a peer's."""
        ours_rate = self.ours("rate", scenario, ours)
        their_rate = self._results.figure("rate", scenario, peer, theirs)
        target = f"at least {least:.1f} × {peer}"
        if ours_rate is None or not their_rate:
            return _unknown(number, what, target)
        ratio = ours_rate / their_rate
        figure = f"{ratio:.2f} × ({ours_rate:,.0f} by {their_rate:,.0f} a second)"
        return Promise(number, what, target, figure, ratio >= least)

    def theirs(self, name: str, scenario: str, peer: str) -> float | None:
        return self._results.figure(name, scenario, peer)

    def bound(
        self,
        number: int,
        what: str,
        target: str,
        value: float | None,
        holds: Callable[[float], bool],
        show: Callable[[float], str],
    ) -> Promise:
        """One of duetime's figures within a bound."""
        if value is None:
            return _unknown(number, what, target)
        return Promise(number, what, target, show(value), holds(value))


def _unknown(number: int, what: str, target: str) -> Promise:
    return Promise(number, what, target, "not measured", None)


def _judge_sustained(read: _Reader) -> list[Promise]:
    return [
        read.ratio(1, f"Sustained, produce and consume{how}", "sustained", peer, least, variant)
        for how, variant in (("", ""), (", without idempotency keys", "no keys"))
        for peer, least in ((GRAPHILE, 1.0), (PGQUEUER, 1.7))
    ]


def _judge_drain(read: _Reader) -> list[Promise]:
    return [read.ratio(2, "Drain a backlog", "drain", GRAPHILE, 0.9)]


def _judge_submit(read: _Reader) -> list[Promise]:
    return [
        read.ratio(3, "Submit in bulk", "submit", GRAPHILE, 1.3, "bulk", "bulk"),
        read.ratio(3, "Submit 20 at a time, driven by wrk", "submit", BULLMQ, 1.0, "twenty wrk", "twenty"),
        read.ratio(3, "Submit one by one, driven by wrk", "submit", GRAPHILE, 1.5, "one wrk", "one"),
        read.ratio(3, "Submit one by one, driven by wrk", "submit", BULLMQ, 1.0, "one wrk", "one"),
    ]


def _judge_start(read: _Reader) -> list[Promise]:
    lag = "Start after submission at 20 a second"
    burst = "2,000 tasks due in the same second"
    last, theirs = read.ours("last_ms", "burst"), read.theirs("last_ms", "burst", GRAPHILE)
    last_start = _unknown(4, f"{burst}: last start", f"no later than {GRAPHILE}")
    if last is not None and theirs is not None:
        figure = f"{_ms(last)} after it, {GRAPHILE} {_ms(theirs)}"
        last_start = Promise(4, last_start.what, last_start.target, figure, last <= theirs)
    return [
        read.bound(4, f"{lag}: p50", "at most 3 ms", read.ours("p50_ms", "lag"), lambda value: value <= 3, _ms),
        read.bound(4, f"{lag}: p99", "at most 12 ms", read.ours("p99_ms", "lag"), lambda value: value <= 12, _ms),
        read.bound(4, f"{burst}: early", "none", read.ours("early", "burst"), lambda value: value == 0, _count),
        last_start,
    ]


def _judge_waiting(read: _Reader) -> list[Promise]:
    promises = []
    for variant, when, least in (("tomorrow", "due from tomorrow on", 90), ("today", "due later today", 75)):
        kept = {
            shown: read.ours(f"{name}_percent", "waiting", variant)
            for name, shown in (
                ("sustained", "sustained"),
                ("drain", "drain"),
                ("p50_ms", "start p50"),
                ("p99_ms", "start p99"),
                ("burst_last_ms", "last of a burst"),
            )
        }
        tasks = read.ours("tasks", "waiting", variant)
        what = f"With {_many(tasks)} waiting tasks, {when}: rates and starts"
        target = f"at least {least} % of those without"
        found = {name: value for name, value in kept.items() if value is not None}
        if len(found) < len(kept):
            promises.append(_unknown(5, what, target))
        else:
            figure = ", ".join(f"{name} {value:.0f} %" for name, value in found.items())
            promises.append(Promise(5, what, target, figure, all(value >= least for value in found.values())))
        promises.append(_judge_memory(read, variant, f"With {_many(tasks)} waiting tasks, {when}: memory of a node"))
    return promises


def _judge_memory(read: _Reader, variant: str, what: str) -> Promise:
    """The memory of the node that took them in, and of one that has just started with them."""
    empty, filled, waiting = (
        read.ours(f"memory_{name}_mb", "waiting", variant) for name in ("empty", "filled", "waiting")
    )
    target = f"within {WAITING_MB:.0f} MB of an empty one's"
    if empty is None or filled is None or waiting is None:
        return _unknown(5, what, target)
    figure = f"empty {empty:.0f} MB, after taking them in {filled:.0f} MB, just started {waiting:.0f} MB"
    return Promise(5, what, target, figure, max(filled, waiting) - empty <= WAITING_MB)


def _judge_snapshot(read: _Reader) -> list[Promise]:
    where = "Beside a reader with an old snapshot, at full load"
    return [
        read.bound(
            6,
            f"{where}: rate in the last of 10 minutes",
            "at least 70 % of that without it",
            read.ours("last_percent", "snapshot"),
            lambda value: value >= 70,
            lambda value: f"{value:.0f} %",
        ),
        read.bound(
            6,
            f"{where}: index entries read for each task claimed",
            "at most 5 in every minute",
            read.ours("most_entries_per_task", "snapshot"),
            lambda value: value <= 5,
            lambda value: f"{value:.1f} in the worst",
        ),
    ]


def _judge_soak(read: _Reader) -> list[Promise]:
    where = "15 minutes at 60 % of the sustained rate"
    first, last = (read.ours(f"memory_{name}_mb", "soak") for name in ("first", "last"))
    memory = _unknown(7, f"{where}: memory of the node", f"at most {FLAT_PERCENT:.0f} % above that of the first minute")
    if first is not None and last is not None:
        holds = last <= first * (1 + FLAT_PERCENT / 100)
        memory = Promise(7, memory.what, memory.target, f"{first:.0f} MB, then {last:.0f} MB", holds)
    return [
        read.bound(
            7,
            f"{where}: p99 lag",
            "under 250 ms in every minute",
            read.ours("worst_p99_ms", "soak"),
            lambda value: value < 250,
            lambda value: f"{_ms(value)} in the worst",
        ),
        read.bound(
            7,
            f"{where}: started within 5 s",
            "99.9 %",
            read.ours("within_5s_percent", "soak"),
            lambda value: value >= 99.9,
            lambda value: f"{value:.3f} %",
        ),
        memory,
        read.bound(7, f"{where}: errors", "none", read.ours("errors", "soak"), lambda value: value == 0, _count),
    ]


def _judge_targets(read: _Reader) -> list[Promise]:
    return [
        read.bound(
            8,
            "HTTP targets: calls from one node process to nginx",
            "at least 4,000 a second",
            read.ours("rate", "targets"),
            lambda value: value >= 4_000,
            lambda value: f"{value:,.0f} a second",
        )
    ]


def _judge_limit(read: _Reader) -> list[Promise]:
    promises = []
    for scenario, what, least in (("sustained", "Sustained", 35), ("drain", "Drain", 25)):
        rate, limit = read.ours("rate", scenario), read.ours(scenario, "limit", "minimal")
        target = f"at least {least} % of the raw limit"
        if rate is None or not limit:
            promises.append(_unknown(9, what, target))
        else:
            percent = 100 * rate / limit
            figure = f"{percent:.0f} % ({rate:,.0f} of {limit:,.0f} a second)"
            promises.append(Promise(9, what, target, figure, percent >= least))
    return promises


def _judge_load(read: _Reader) -> list[Promise]:
    return [
        read.bound(
            10,
            "CPU of an idle node",
            "under 2 % of a core",
            read.ours("idle_percent", "load"),
            lambda value: value < 2,
            lambda value: f"{value:.2f} %",
        )
    ]


def summarize(promises: Sequence[Promise]) -> str:
    """How many promises hold, in one sentence."""
    kept, broken, unknown = (sum(each.holds is wanted for each in promises) for wanted in (True, False, None))
    words = [f"{kept} {'holds' if kept == 1 else 'hold'}"]
    words += [f"{broken} {'does' if broken == 1 else 'do'} not hold"] if broken else []
    words += [f"{unknown} {'was' if unknown == 1 else 'were'} not measured"] if unknown else []
    return f"Of {len(promises)} lines " + ", ".join(words) + "."


def _many(tasks: float | None) -> str:
    if tasks is None:
        return "10 million"
    return f"{tasks / 1e6:g} million" if tasks >= 1e6 else f"{tasks:,.0f}"


def _ms(value: float) -> str:
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value else "none"
