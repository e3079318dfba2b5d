"""Stopping: what runs may finish, what is left is given back at once, and a second signal ends it all."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from duetime import AsyncClient, Client
from duetime.database.embedded import find_free_port
from faults.cast import Cast, begun, has_begun, until
from faults.processes import Process
from nodes import NodeProcess
from proxy import proxied

SIGNALS = [signal.SIGTERM, signal.SIGINT]


async def lease(session: aiohttp.ClientSession, url: str, key: str, worker: str) -> tuple[int, dict[str, Any]]:
    """A poll that would wait for a minute."""
    body = {"worker": worker, "queues": ["nobody-submits-here"], "max": 5, "wait": 60}
    headers = {"Authorization": f"Bearer {key}"}
    async with session.post(f"{url}/v1/workers/lease", json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def stopping(process: Process) -> None:
    await until(lambda: "stopping" in process.output())


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_node_lets_calls_end_and_answers_its_polls(cast: Cast, number: signal.Signals) -> None:
    node = await cast.serve()
    target = await cast.target()
    gate = cast.gate()
    async with AsyncClient(node.url, cast.key) as client, aiohttp.ClientSession() as session:
        called = await client.submit("fault.call", {"until": str(gate)}, target=target.url)
        await begun(target.journal, called.id)
        poll = asyncio.create_task(lease(session, node.url, cast.key, "waits"))
        async with asyncio.timeout(60):
            while await cast.count("holder", "name = 'waits'") == 0:
                await asyncio.sleep(0.02)

        node.send(number)
        answer = await poll
        refused = await lease(session, node.url, cast.key, "comes late")
        assert node.is_running, "it waits for the call"
        gate.touch()
        code = await asyncio.to_thread(node.wait)

    assert answer[0] == 200
    assert answer[1]["tasks"] == []
    # Not an empty answer: whoever gets that asks again at once.
    assert (refused[0], refused[1]["code"]) == (503, "unavailable")
    assert code == 0
    assert await cast.outcomes(called.id) == ["succeeded"]
    assert "Traceback" not in node.output()


async def test_a_call_that_outlasts_the_deadline_goes_to_another_node_at_once(cast: Cast) -> None:
    first = await cast.serve(settings="shutdown_seconds = 0.5\n")
    target = await cast.target()
    gate = cast.gate()
    async with AsyncClient(first.url, cast.key) as client:
        task = await client.submit("fault.call", {"until": str(gate)}, target=target.url, retry={"max_attempts": 1})
    await begun(target.journal, task.id)
    second = await cast.serve()

    assert await asyncio.to_thread(first.stop) == 0
    await begun(target.journal, task.id, number=2)
    gate.touch()
    async with AsyncClient(second.url, cast.key) as client:
        done = await client.wait(task.id, timeout=120)

    # Nobody had to wait for a lapse: the first node said itself that it gave up.
    assert [each.outcome for each in done.attempts] == ["released", "succeeded"]
    assert done.attempts[0].error is not None
    assert "shutting down" in done.attempts[0].error.message
    assert await cast.count("holder", "name LIKE 'executor-%' AND ended_at IS NOT NULL") == 1


async def test_a_node_stops_while_the_database_is_away(cast: Cast) -> None:
    async with proxied(cast.database_url) as (proxy, url):
        node = await cast.serve(url=url, settings="shutdown_seconds = 1\n")
        target = await cast.target()
        async with AsyncClient(node.url, cast.key) as client:
            task = await client.submit("fault.call", {"until": str(cast.gate())}, target=target.url)
        await begun(target.journal, task.id)

        proxy.is_away = True
        proxy.cut()
        code = await asyncio.to_thread(node.stop)

    assert code == 0
    assert "Traceback" not in node.output()


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_second_signal_ends_a_node_at_once(cast: Cast, number: signal.Signals) -> None:
    node = await cast.serve(settings="shutdown_seconds = 600\n")
    target = await cast.target()
    async with AsyncClient(node.url, cast.key) as client:
        task = await client.submit("fault.call", {"until": str(cast.gate())}, target=target.url)
    await begun(target.journal, task.id)

    node.send(number)
    await stopping(node)
    node.send(number)

    assert await asyncio.to_thread(node.wait) == 128 + number


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_worker_finishes_what_runs_and_gives_back_what_waits(cast: Cast, number: signal.Signals) -> None:
    node = await cast.serve()
    gate = cast.gate()
    first = cast.worker(node, "--concurrency", "1", "--prefetch", "5")
    async with AsyncClient(node.url, cast.key) as client:
        running = await client.submit("fault.async", {"until": str(gate)})
        await begun(first.journal, running.id)
        waiting = [await client.submit("fault.async", {}) for _ in range(3)]
        async with asyncio.timeout(60):
            while await cast.count("claim") < 4:
                await asyncio.sleep(0.02)
        second = cast.worker(node)

        first.send(number)
        # While the first still runs its own, the others are done elsewhere.
        done = [await client.wait(task.id, timeout=120) for task in waiting]
        assert first.is_running
        gate.touch()
        code = await asyncio.to_thread(first.wait)
        finished = await client.wait(running.id, timeout=120)

    assert code == 0
    assert [each.outcome for each in finished.attempts] == ["succeeded"]
    assert [[each.outcome for each in task.attempts] for task in done] == [["released", "succeeded"]] * 3
    assert all(has_begun(second.journal, task.id, number=2) for task in waiting)
    assert not any(has_begun(first.journal, task.id) for task in waiting)


@pytest.mark.parametrize(
    ("kind", "number"),
    [("fault.async", signal.SIGTERM), ("fault.async", signal.SIGINT), ("fault.plain", signal.SIGTERM)],
)
async def test_a_deploy_costs_a_task_that_outlasts_it_nothing(cast: Cast, kind: str, number: signal.Signals) -> None:
    node = await cast.serve()
    gate = cast.gate()
    first = cast.worker(node, "--shutdown-timeout", "0.2")
    async with AsyncClient(node.url, cast.key) as client:
        # A thread cannot be ended: this one outlasts the time for cleaning up.
        payload = {"until": str(gate)} if kind == "fault.async" else {"seconds": 5}
        task = await client.submit(kind, payload, retry={"max_attempts": 1})
        await begun(first.journal, task.id)

        first.send(number)
        code = await asyncio.to_thread(first.wait)
        after = await client.get(task.id)
        told = await client.explain(task.id)
        second = cast.worker(node)
        await begun(second.journal, task.id, number=2)
        gate.touch()
        done = await client.wait(task.id, timeout=120)

    assert code == 0
    assert (after.state, [each.outcome for each in after.attempts]) == ("ready", ["released"])
    assert "Start a worker" in told.what_would_free_it
    assert [each.outcome for each in done.attempts] == ["released", "succeeded"]
    # Whoever is ended already cannot lapse.
    assert await cast.count("holder", "signed_off AND ended_at IS NOT NULL") == 1


async def test_a_second_signal_ends_a_worker_at_once(cast: Cast) -> None:
    node = await cast.serve()
    worker = cast.worker(node, "--shutdown-timeout", "600")
    async with AsyncClient(node.url, cast.key) as client:
        task = await client.submit("fault.async", {"until": str(cast.gate())})
        await begun(worker.journal, task.id)

        worker.send(signal.SIGTERM)
        await stopping(worker)
        worker.send(signal.SIGTERM)

        assert await asyncio.to_thread(worker.wait) == 128 + signal.SIGTERM


def up(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "duetime.cli.main", "up", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_folder_in_use_is_said_in_one_sentence(fresh_node: NodeProcess) -> None:
    ended = up("--data", str(fresh_node.data), "--port", "0")

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert "is in use by another duetime" in ended.stderr
    assert str(fresh_node.pid) in ended.stderr


def test_a_port_in_use_is_said_in_one_sentence(fresh_node: NodeProcess, folder: Path) -> None:
    ended = up("--data", str(folder / "other"), "--port", str(fresh_node.port))

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert f"port {fresh_node.port} on 127.0.0.1 cannot be used" in ended.stderr
    # What was started before that is not left behind.
    assert up("--data", str(folder / "other"), "--port", str(fresh_node.port)).returncode == 2


@pytest.mark.parametrize("number", SIGNALS)
def test_up_again_shows_the_same_key_and_the_same_tasks(folder: Path, number: signal.Signals) -> None:
    node = NodeProcess(folder / "node", port=find_free_port()).start()
    url, key = node.url, node.key
    with Client(url, key) as client:
        tasks = [client.submit("later", {"place": place}, delay="1h") for place in range(10)]
    assert node.stop(number) == 0

    node.start()
    with Client(node.url, node.key) as client:
        again = [client.get(task.id) for task in tasks]
    assert (node.url, node.key) == (url, key)
    assert [task.payload for task in again] == [{"place": place} for place in range(10)]

    node.kill()
    node.start()
    with Client(node.url, node.key) as client:
        again = [client.get(task.id) for task in tasks]
        client.submit("later", {})
    assert (node.url, node.key) == (url, key)
    assert [task.state for task in again] == ["scheduled"] * 10
    assert node.stop() == 0
