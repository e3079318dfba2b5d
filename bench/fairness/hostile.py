"""7: one hostile tenant, or an attacker without a key, beside twenty quiet tenants."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from math import inf
from statistics import median

import msgspec
import psutil

from bench.fairness.attack import KINDS, Attack
from bench.fairness.outcome import Options, Outcome, say
from bench.fairness.place import Place, open_place
from bench.fairness.quiet import Quiet
from bench.fairness.records import percentile
from bench.plots import Bar, draw_bars
from bench.processes import BenchError
from bench.stolen import Stolen

QUIET = 20
ROUNDS = 3
SECONDS = 10.0
#: How long to wait until the attack is at full strength.
BEFORE_SECONDS = 2.0
SILENT_HOSTS = 6
MOST_GROWTH_MB = 150.0
_LOOK_SECONDS = 0.1
METHOD = f"""Twenty tenants submit one task a second each with an HTTP target, and share one host. Their lag is the
time from just before the call of `POST /v1/tasks` until their task has begun. Each attack has a new node. The lag is
measured {ROUNDS} times alternately for {SECONDS:.0f} s without the attack and for {SECONDS:.0f} s during it, and the
medians of the p99 are compared. The attacker is one process with the lowest priority for the processors, because it
stands for other machines. *memory* is by how much the node grew at most during the attack."""


async def run(options: Options) -> Outcome:
    outcome = Outcome(7, "Hostile neighbours", METHOD)
    bars: list[Bar] = []
    for kind in KINDS:
        try:
            async with open_place(options.processes) as place:
                await _measure(place, outcome, kind, bars, 1 if options.is_quick else ROUNDS)
        except (BenchError, TimeoutError) as error:
            say(f"{kind}: {error or 'not all tasks of the quiet ones have begun'}")
            outcome.ask(f"{kind}: p99 lag beside it (a quiet one was not served)", inf, " ms", most=0.0)
    title = "Lag of twenty quiet tenants beside each attack"
    outcome.plots.append(("hostile", title, draw_bars(title, "p99 in ms; behind it, what it is without", bars)))
    return outcome


async def _measure(place: Place, outcome: Outcome, kind: str, bars: list[Bar], rounds: int) -> None:
    stolen = Stolen()
    [shared] = await place.run_target()
    with _silent_hosts() as silent:
        order = await _prepare(place, shared)
        await place.make_tenant("hostile")
        key = await place.make_key("hostile", "operator")
        attack = msgspec.json.encode(Attack(kind, place.node.url, key, [*silent, shared])).decode()
        await _lags(place, order)
        empty, beside, growth = [], [], 0.0
        for number in range(1, rounds + 1):
            empty.append(percentile(await _lags(place, order), 0.99))
            before = _memory_mb(place)
            attacker = await place.start_program("attack", attack)
            await asyncio.sleep(BEFORE_SECONDS)
            async with _watched(place) as most:
                beside.append(percentile(await _lags(place, order), 0.99))
            growth = max(growth, most[0] - before)
            os.kill(attacker.pid, signal.SIGTERM)
            told = (await attacker.wait(30.0)).output.splitlines()[-1]
            say(f"{kind}, {number} of {rounds}: p99 {empty[-1]:.1f} ms without, {beside[-1]:.1f} ms beside it; {told}")
    say(f"{kind}: others had {stolen.percent():.1f} % of the processors' time")
    p99, empty_p99 = median(beside), median(empty)
    outcome.ask(
        f"{kind}: p99 lag, in terms of that without it ({empty_p99:.1f} ms)", p99 / empty_p99, " times", most=3.0
    )
    outcome.ask(f"{kind}: memory", growth, " MB", most=MOST_GROWTH_MB)
    bars.append(Bar(kind, p99, f"{p99:.1f} ms", is_ours=True, behind=empty_p99))


async def _prepare(place: Place, url: str) -> Quiet:
    names = [f"tenant-{who}" for who in range(QUIET)]
    for name in names:
        await place.make_tenant(name)
    keys = [await place.make_key(name, "producer") for name in names]
    tasks: list[dict[str, object]] = [
        {"type": "bench", "payload": {"who": who}, "target": {"url": url}} for who in range(QUIET)
    ]
    return Quiet(place.node.url, keys, tasks, SECONDS)


async def _lags(place: Place, order: Quiet) -> list[float]:
    """The lags of the quiet tenants' tasks, all of which have to begin."""
    place.new_starts()
    child = await place.start_program("quiet", msgspec.json.encode(order).decode())
    sent = len(msgspec.json.decode((await child.wait(SECONDS + 120.0)).output.splitlines()[-1], type=list[float]))
    lags: list[float] = []
    async with asyncio.timeout(120.0):
        while len(lags) < sent:
            await asyncio.sleep(_LOOK_SECONDS)
            lags += [start.lag_ms for start in place.new_starts() if start.who >= 0]
    return lags


@contextlib.contextmanager
def _silent_hosts() -> Iterator[list[str]]:
    """Ports that accept connections and never answer."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(SILENT_HOSTS):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1_024))
            ports.append(listener.getsockname()[1])
        yield [f"http://127.0.0.1:{port}/" for port in ports]


@contextlib.asynccontextmanager
async def _watched(place: Place) -> AsyncIterator[list[float]]:
    """The most memory that the node uses in this context, in MB."""
    most = [0.0]

    async def watch() -> None:
        while True:
            most[0] = max(most[0], _memory_mb(place))
            await asyncio.sleep(_LOOK_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield most
    finally:
        watching.cancel()


def _memory_mb(place: Place) -> float:
    """The memory of the node's own processes, without PostgreSQL."""
    node = psutil.Process(place.node.pid)
    nodes = [node, *(child for child in node.children() if "duetime" in " ".join(child.cmdline()))]
    return sum(each.memory_info().rss for each in nodes) / 1e6
