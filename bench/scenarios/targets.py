"""HTTP targets: how many calls a second one node makes to a trivial server, and what a call costs.

The server is nginx, one process, `return 200`, keep-alive.  The tasks are
submitted in bulk and are all due at once, after the last one was accepted; every
call is signed, and the egress guard is on (`duetime up` lets it call loopback).
The node does everything in one process: it claims, calls and settles.

Figures: `rate` (calls a second from the first to the last, as nginx counts them),
`settled_rate` (until the last outcome is stored), `failed` (attempts that did not
succeed), and `aiohttp_rate`, `aiohttp_us`: aiohttp's own client with as many
concurrent calls to the same server, its CPU µs per call.  CPU µs per call of `node`
is everything that the node spends; `nginx` is the target's.
"""

import asyncio
import getpass
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import asyncpg
import msgspec

from bench.peers.base import Peer
from bench.peers.programs.common import PAYLOAD, send_all, split
from bench.peers.programs.duetime import BATCH, CONNECTIONS
from bench.processes import BenchError, Child, run_program
from bench.producing import DRAIN_SECONDS, node_of
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.servers import Postgres, find_program
from bench.stage import Stage
from duetime import AsyncClient
from duetime.config import Config
from duetime.database.embedded import find_free_port

CALLS = 40_000
QUICK_CALLS = 4_000
#: Long enough to submit all of them before the first is due.
AHEAD_SECONDS = 8.0
QUICK_AHEAD_SECONDS = 3.0
CALLS_SECONDS = 120.0
#: How many calls to one host a node makes at a time, by default.
CONCURRENCY = Config().executor_calls_per_host
_START_SECONDS = 10.0
_LOOK_SECONDS = 0.02
_REQUESTS = re.compile(r"requests\s+\d+\s+\d+\s+(\d+)")
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_IS_OVER = "SELECT NOT EXISTS (SELECT FROM duetime.due) AND NOT EXISTS (SELECT FROM duetime.claim)"
_OUTCOMES = "SELECT count(*) FILTER (WHERE outcome = 1) AS good, count(*) AS total FROM duetime.attempt"


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("",) if peer.language == "duetime" else ()


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    calls = QUICK_CALLS if options.is_quick else options.tasks or CALLS
    async with _run_nginx(stage) as nginx:
        by_aiohttp = await _call_by_aiohttp(stage, nginx.url, calls)
        run = await _call_by_node(stage, nginx, calls, QUICK_AHEAD_SECONDS if options.is_quick else AHEAD_SECONDS)
    return msgspec.structs.replace(run, figures={**run.figures, **by_aiohttp, "tasks": calls})


async def _call_by_aiohttp(stage: Stage, url: str, calls: int) -> dict[str, float]:
    words = ["-m", "bench.aiohttp_calls", url, str(calls), str(CONCURRENCY), msgspec.json.encode(PAYLOAD).decode()]
    ended = await run_program(
        "aiohttp",
        [sys.executable, *words],
        folder=stage.folder,
        cwd=Path(__file__).parents[2],
        seconds=CALLS_SECONDS,
    )
    answer = json.loads(ended.output.splitlines()[-1])
    return {"aiohttp_rate": calls / answer["seconds"], "aiohttp_us": 1e6 * answer["cpu_seconds"] / calls}


async def _call_by_node(stage: Stage, nginx: "Nginx", calls: int, ahead_seconds: float) -> Run:
    assert isinstance(stage.server, Postgres)
    due_at = time.time() + ahead_seconds
    await _submit(stage, nginx.url, calls, due_at)
    if time.time() > due_at:
        raise BenchError(f"{calls:,} tasks were not submitted within {ahead_seconds:.0f} s")
    connection = await asyncpg.connect(stage.server.dsn, timeout=10.0, command_timeout=60.0)
    try:
        before = await nginx.count()
        meter = stage.meter(nginx=[nginx.pid])
        deadline = time.monotonic() + ahead_seconds + CALLS_SECONDS
        first_at = await _until(nginx, before + 1, deadline)
        last_at = await _until(nginx, before + calls, deadline)
        while not await connection.fetchval(_IS_OVER):
            if time.monotonic() > last_at + DRAIN_SECONDS:
                raise BenchError("not all calls were settled")
            await asyncio.sleep(_LOOK_SECONDS)
        settled_at = time.monotonic()
        cpu = meter.since(calls)
        outcomes = await connection.fetchrow(_OUTCOMES)
    finally:
        await connection.close(timeout=5.0)
    if outcomes["good"] != calls:
        raise BenchError(f"{outcomes['good']:,} of {calls:,} calls succeeded")
    figures = {
        "rate": calls / (last_at - first_at),
        "settled_rate": calls / (settled_at - first_at),
        "failed": outcomes["total"] - outcomes["good"],
    }
    return Run(figures, cpu)


async def _submit(stage: Stage, url: str, calls: int, due_at: float) -> None:
    task = {"type": "bench", "payload": PAYLOAD, "target": {"url": url}, "run_at": datetime.fromtimestamp(due_at, UTC)}
    node = node_of(stage)
    async with AsyncClient(node.url, node.key) as client:

        async def send(size: int) -> None:
            result = await client.submit_many([task] * size)
            if result.accepted != size:
                raise BenchError(f"{result.rejected} tasks with a target were refused")

        await send_all(split(calls, BATCH), CONNECTIONS, send)


async def _until(nginx: "Nginx", count: int, deadline: float) -> float:
    """When this many requests had been answered, by the monotonic clock."""
    while (seen := await nginx.count()) < count:
        if time.monotonic() > deadline:
            raise BenchError(f"nginx saw {seen:,} requests of {count:,}")
        await asyncio.sleep(_LOOK_SECONDS)
    return time.monotonic()


@dataclass
class Nginx:
    """The target, and how many requests it has answered."""

    url: str
    child: Child
    session: aiohttp.ClientSession
    looks: int = 0

    @property
    def pid(self) -> int:
        return self.child.pid

    async def count(self) -> int:
        """Requests so far, without the benchmark's own status requests."""
        async with self.session.get(self.url + "status") as answer:
            found = _REQUESTS.search(await answer.text())
        assert found is not None
        self.looks += 1
        return int(found[1]) - self.looks


@asynccontextmanager
async def _run_nginx(stage: Stage) -> AsyncIterator[Nginx]:
    program = await find_program("nginx", "nginx-light", stage.folder)
    port, settings = find_free_port(), stage.folder / "nginx.conf"
    settings.write_text(_nginx_settings(stage.folder, port))
    child = Child("nginx", [program, "-p", stage.folder, "-c", settings], folder=stage.folder)
    try:
        async with aiohttp.ClientSession() as session:
            nginx = Nginx(f"http://127.0.0.1:{port}/", child, session)
            deadline = time.monotonic() + _START_SECONDS
            while True:
                try:
                    await nginx.count()
                    break
                except aiohttp.ClientError as error:
                    if child.poll() is not None or time.monotonic() > deadline:
                        raise BenchError(f"nginx does not start{child.tail()}") from error
                    await asyncio.sleep(_LOOK_SECONDS)
            yield nginx
    finally:
        await child.stop()


def _nginx_settings(folder: Path, port: int) -> str:
    temporary = "\n".join(f"    {name}_temp_path {folder / name};" for name in _TEMPORARY)
    user = getpass.getuser()
    return f"""
daemon off;
worker_processes 1;
pid {folder / "nginx.pid"};
error_log stderr warn;
{"user root;" if user == "root" else ""}
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
{temporary}
    server {{
        listen 127.0.0.1:{port};
        location / {{ return 200; }}
        location = /status {{ stub_status; }}
    }}
}}
"""


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return 15.0 if options.is_quick else 45.0


SCENARIO = Scenario("targets", "HTTP calls a second to nginx, beside aiohttp's own", find_variants, measure, estimate)
