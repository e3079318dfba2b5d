"""What breakers found out outlives kill -9 of the process that keeps them: its successor makes no calls but probes."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import services
from cluster.lines import PATIENCE_SECONDS, Line, children_of, lines_to, pid_of
from cluster.test_processes import sort_by_feeding
from executor.targets import LocalTarget, Visitor, answer_everything, serving
from faults.cast import Cast
from faults.processes import ServeProcess
from nodes import NodeProcess

TASKS = 300
PROBES = 3


@asynccontextmanager
async def failing() -> AsyncIterator[LocalTarget]:
    async def fail(visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            await visitor.answer(500)

    async with serving(fail) as target:
        yield target


async def submit(line: Line, target: LocalTarget) -> None:
    task = {
        "type": "call",
        "target": {"url": target.url},
        "retry": {"max_attempts": 100, "min_backoff": 0.1, "max_backoff": 0.5},
    }
    await line.post("/v1/tasks/batch", [task] * TASKS)


async def breaker(line: Line) -> dict[str, Any]:
    items = (await line.get("/v1/breakers"))["items"]
    return dict(items[0]) if items else {"state": "closed", "reason": ""}


async def until_opened(line: Line) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await breaker(line))["state"] != "open":
            await asyncio.sleep(0.02)


async def until_probes_failed(line: Line) -> int:
    """How many cool-downs have ended with a probe that failed."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if found := re.match(r"cool-down (\d+) ended with a probe that failed", (await breaker(line))["reason"]):
                return int(found[1])
            await asyncio.sleep(0.02)


async def stored(cast: Cast) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await cast.database.fetch("SELECT FROM breaker_state WHERE memory ->> 'phase' = 'open'"):
            await asyncio.sleep(0.01)


async def test_a_node_that_is_killed_leaves_its_open_breakers_to_the_next_one(folder: Path, cast: Cast) -> None:
    node = ServeProcess(folder, "one", cast.database_url)
    try:
        async with failing() as target:
            await asyncio.to_thread(node.start)
            line = await Line(node.url, cast.key).open()
            await submit(line, target)
            await until_opened(line)
            await stored(cast)
            await line.close()
            node.kill()
            before = len(target.received)

            await asyncio.to_thread(node.start)
            line = await Line(node.url, cast.key).open()
            cool_downs = await until_probes_failed(line)

            assert 1 <= len(target.received) - before <= PROBES * cool_downs
            await line.close()
    finally:
        node.stop()


async def test_a_process_that_is_killed_leaves_its_open_breakers_to_who_takes_its_shards(folder: Path) -> None:
    pair = NodeProcess(folder / "node", arguments=("--processes", "2")).start()
    try:
        async with failing() as target, lines_to(pair) as both:
            owner, other = await sort_by_feeding(both, "default")
            victim = await pid_of(owner, pair.pid)
            await submit(other, target)
            await until_opened(other)
            # Written within a second of it; the probes come later.
            cool_downs = await until_probes_failed(other)
            before = len(target.received)
            services.kill(victim)

            async with asyncio.timeout(PATIENCE_SECONDS):
                while (after := await cool_downs_of(other)) <= cool_downs:
                    await asyncio.sleep(0.02)

            assert 1 <= len(target.received) - before <= PROBES * (after - cool_downs + 1)
            assert len(children_of(pair.pid)) >= 1
    finally:
        pair.stop()


async def cool_downs_of(line: Line) -> int:
    found = re.match(r"cool-down (\d+) ended with a probe that failed", await reason(line))
    return int(found[1]) if found else 0


async def reason(line: Line) -> str:
    try:
        return str((await breaker(line))["reason"])
    except AssertionError:
        # The node that feeds the tenant is gone, and nobody has its shards yet.
        return ""


async def test_a_tenant_that_is_stopped_stays_so_when_its_node_is_killed(folder: Path, cast: Cast) -> None:
    """Failing for the shortest window there is would take a minute: the row is what a node leaves behind."""
    node = ServeProcess(folder, "one", cast.database_url)
    try:
        await asyncio.to_thread(node.start)
        await cast.database.fetch(
            "INSERT INTO tenant_breaker (tenant, state, probe_at, reason, attempts, failures)"
            " SELECT id, 'open', clock_timestamp() + interval '1 hour', 'of a test', 20, 20 FROM tenant"
        )
        await cast.database.fetch("UPDATE rule_change SET change = change + 1 WHERE kind = 'breakers'")
        node.kill()
        await asyncio.to_thread(node.start)
        line = await Line(node.url, cast.key).open()

        async with serving(answer_everything) as target:
            task = (await line.post("/v1/tasks", {"type": "call", "target": {"url": target.url}}))["id"]
            asked = {"worker": "w", "queues": ["default"], "max": 5, "wait": 0.2}
            await line.post("/v1/tasks", {"type": "work"})
            assert (await line.post("/v1/workers/lease", asked))["tasks"] == []
            assert (await breaker(line))["host"] == "tenant"
            explained = await line.get(f"/v1/tasks/{task}/explain")
            assert explained["waiting_for"][0]["reason"] == "tenant_breaker"
            assert target.received == []

            await cast.database.fetch("UPDATE tenant_breaker SET probe_at = clock_timestamp()")
            await cast.database.fetch("UPDATE rule_change SET change = change + 1 WHERE kind = 'breakers'")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await breaker(line))["state"] != "closing":
                    await asyncio.sleep(0.05)
            assert len(target.received) == 1
        await line.close()
    finally:
        node.stop()
