"""Several processes behind one port: whichever answers, it is one server; and any of them may die."""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psutil
import pytest

import services
from cluster.lines import PATIENCE_SECONDS, Line, Lines, children_of, lines_to, pid_of
from duetime.database.pool import Database
from executor.targets import Visitor, serving
from faults.processes import embedded_url
from nodes import NodeProcess

TWO = ("--processes", "2")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pair() -> Iterator[NodeProcess]:
    """Two processes, shared by the tests that kill nothing."""
    with services.private_folder() as folder:
        process = NodeProcess(folder / "node", arguments=TWO).start()
        yield process
        process.stop()


@pytest.fixture
def fresh_pair() -> Iterator[NodeProcess]:
    """Two processes of the test's own, which it may kill."""
    with services.private_folder() as folder:
        process = NodeProcess(folder / "node", arguments=TWO).start()
        yield process
        if process.is_running:
            process.stop()


@pytest.fixture
async def both(pair: NodeProcess) -> AsyncIterator[list[Line]]:
    async with lines_to(pair) as lines:
        yield lines


@pytest.fixture
def queue() -> str:
    """A queue of which no process has heard."""
    return f"queue-{next(_numbers)}"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


def lease(line: Line, queue: str, worker: str = "w", wait: float = 30) -> "asyncio.Task[Any]":
    body = {"worker": worker, "queues": [queue], "max": 10, "wait": wait}
    return asyncio.create_task(line.post("/v1/workers/lease", body))


async def settle(line: Line, leased: dict[str, Any], worker: str = "w", outcome: str = "succeeded") -> Any:
    report = {"id": leased["id"], "attempt": leased["attempt"], "outcome": outcome}
    return await line.post("/v1/workers/settle", {"worker": worker, "settlements": [report]})


async def state_of(line: Line, task: str) -> str:
    return str((await line.get(f"/v1/tasks/{task}"))["state"])


async def test_two_processes_share_all_shards(both: list[Line]) -> None:
    for line in both:
        nodes = (await line.get("/v1/cluster"))["items"]

        assert [node["name"] for node in nodes if node["answers"]] == [line.name]
        assert sorted(node["name"] for node in nodes) == sorted(each.name for each in both)
        assert sum(node["shards"] for node in nodes) == 256
        assert min(node["shards"] for node in nodes) > 64
        assert (await line.get("/readyz"))["status"] == "ok"


@pytest.mark.parametrize("places", list(itertools.product((0, 1), repeat=3)), ids=str)
async def test_submit_poll_and_settle_work_on_either(
    both: list[Line], queue: str, places: tuple[int, int, int]
) -> None:
    submitting, polling, settling = (both[place] for place in places)
    payload = {"number": 9007199254740993, "text": "ü\n", "list": [1.0, {}, None]}
    task = await submitting.post(
        "/v1/tasks", {"type": "work", "queue": queue, "payload": payload, "labels": {"a": "b"}}
    )

    [leased] = (await lease(polling, queue))["tasks"]
    settled = await settle(settling, leased)

    assert (leased["id"], leased["attempt"], leased["payload"]) == (task["id"], 1, payload)
    assert (leased["queue"], leased["labels"]) == (queue, {"a": "b"})
    assert settled == {"settled": 1, "lost": [], "cancelled": []}
    assert [await state_of(line, task["id"]) for line in both] == ["succeeded", "succeeded"]


@pytest.mark.parametrize("places", list(itertools.product((0, 1), repeat=2)), ids=str)
async def test_a_poll_that_waits_on_either_gets_what_either_stores(
    both: list[Line], queue: str, places: tuple[int, int]
) -> None:
    polling, submitting = both[places[0]], both[places[1]]
    async with lines_to_same(polling) as waiting_line:
        poll = lease(waiting_line, queue)
        await explained_holders(submitting, queue)

        task = await submitting.post("/v1/tasks", {"type": "work", "queue": queue, "delay": 0.2})
        [leased] = (await poll)["tasks"]

    assert leased["id"] == task["id"]
    assert (await settle(submitting, leased))["settled"] == 1


async def test_a_failed_attempt_comes_back_on_the_other(both: list[Line], queue: str) -> None:
    retry = {"max_attempts": 3, "min_backoff": 0.05, "max_backoff": 0.1}
    task = await both[0].post("/v1/tasks", {"type": "work", "queue": queue, "retry": retry})

    for number, line in zip((1, 2, 3), itertools.cycle(both), strict=False):
        [leased] = (await lease(line, queue))["tasks"]
        assert (leased["id"], leased["attempt"]) == (task["id"], number)
        await settle(both[number % 2], leased, outcome="failed")

    assert [await state_of(line, task["id"]) for line in both] == ["dead", "dead"]
    await both[1].post(f"/v1/tasks/{task['id']}/retry")
    [leased] = (await lease(both[0], queue))["tasks"]
    assert leased["attempt"] == 4
    await settle(both[1], leased)


@pytest.mark.parametrize("place", [0, 1])
async def test_tasks_are_steered_and_listed_on_either(both: list[Line], queue: str, place: int) -> None:
    one, other = both[place], both[1 - place]
    task = await one.post("/v1/tasks", {"type": "work", "queue": queue, "delay": "1h"})
    listed = await other.get(f"/v1/tasks?queue={queue}")

    states = []
    for line, verb in ((other, "pause"), (one, "resume"), (other, "run-now")):
        await line.post(f"/v1/tasks/{task['id']}/{verb}")
        states.append(await state_of(both[0], task["id"]))
    [leased] = (await lease(one, queue))["tasks"]
    await other.post(f"/v1/tasks/{task['id']}/cancel")
    beats = [
        await line.post("/v1/workers/beat", {"worker": "w", "attempts": [{"id": leased["id"], "attempt": 1}]})
        for line in both
    ]

    assert [each["id"] for each in listed["items"]] == [task["id"]]
    assert states == ["paused", "scheduled", "ready"]
    assert leased["id"] == task["id"]
    assert [(each["lost"], each["cancelled"]) for each in beats] == [([], [task["id"]])] * 2
    # Both know the worker as the same one.
    assert len({each["holder"] for each in beats}) == 1


async def test_explain_knows_the_workers_of_either(both: list[Line], queue: str) -> None:
    task = await both[0].post("/v1/tasks", {"type": "work", "queue": queue, "delay": "1h"})
    before = [await reasons(line, task["id"]) for line in both]

    assert (await lease(both[1], queue, wait=0))["tasks"] == []

    assert before == [["time", "no_worker"]] * 2
    assert [await reasons(line, task["id"]) for line in both] == [["time"]] * 2


async def test_both_know_at_once_that_a_worker_has_signed_off(both: list[Line], queue: str) -> None:
    tasks = [await both[0].post("/v1/tasks", {"type": "work", "queue": queue, "delay": "1h"}) for _ in range(2)]
    worker = f"leaves-{queue}"
    for line in both:
        assert (await lease(line, queue, worker, wait=0))["tasks"] == []
    async with lines_to_same(both[0]) as waiting_line:
        poll = lease(waiting_line, queue, worker, wait=60)
        await explained_holders(both[1], queue)

        await both[1].post("/v1/workers/beat", {"worker": worker, "leaving": True})

        assert [await reasons(line, tasks[0]["id"]) for line in both] == [["time", "no_worker"]] * 2
        assert (await poll)["tasks"] == []


async def test_what_a_worker_does_not_name_is_released_whichever_process_hears_it(both: list[Line], queue: str) -> None:
    task = await both[0].post("/v1/tasks", {"type": "work", "queue": queue})
    [first] = (await lease(both[0], queue, "forgetful"))["tasks"]

    poll = lease(both[0], queue, "other", wait=60)
    for line in itertools.cycle(both[1:]):
        # Beats of a worker that has never heard of it.
        await line.post("/v1/workers/beat", {"worker": "forgetful", "attempts": []})
        done, _ = await asyncio.wait([poll], timeout=1.0)
        if done:
            break
    [second] = (await poll)["tasks"]

    assert (first["attempt"], second["id"], second["attempt"]) == (1, task["id"], 2)
    await settle(both[1], second, "other")


async def test_doctor_sees_them_and_finds_all_well(pair: NodeProcess) -> None:
    command = [sys.executable, "-m", "duetime.cli.main", "doctor", "--json", "--data", str(pair.data)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)

    told = json.loads(output)
    assert [check["problems"] for check in told["checks"]] == [[]] * len(told["checks"])
    [nodes] = [check["detail"] for check in told["checks"] if check["check"] == "nodes"]
    assert nodes == "2 nodes in sight that share the shards"


async def test_http_targets_are_called(both: list[Line], pair: NodeProcess) -> None:
    target = {"url": f"{pair.url}/healthz", "method": "GET"}
    tasks = [(await line.post("/v1/tasks", {"type": "call", "target": target}))["id"] for line in both]

    async with asyncio.timeout(PATIENCE_SECONDS):
        for task in tasks:
            while await state_of(both[0], task) != "succeeded":
                await asyncio.sleep(0.02)


async def test_breakers_are_seen_and_held_on_either(both: list[Line]) -> None:
    async def want_a_pause(visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            await visitor.answer(503, Retry_After="60")

    async def seen(line: Line) -> list[tuple[str, str, str | None]]:
        items = (await line.get("/v1/breakers"))["items"]
        return [(each["host"], each["state"], each["forced"]) for each in items]

    async with serving(want_a_pause) as target:
        host = f"127.0.0.1:{target.port}"
        task = {"type": "call", "target": {"url": target.url}, "retry": {"max_attempts": 1}}
        dead = (await both[0].post("/v1/tasks", task))["id"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await state_of(both[0], dead) != "dead":
                await asyncio.sleep(0.02)

    assert [await seen(line) for line in both] == [[(host, "slowed", None)]] * 2
    for line, state in zip(both, ("open", "closed"), strict=True):
        held = await line.ask("PUT", f"/v1/breakers/{host}", {"state": state})
        assert (held["state"], held["forced"]) == (state, state)
        assert [await seen(line) for line in both] == [[(host, state, state)]] * 2
    await both[0].ask("PUT", f"/v1/breakers/{host}", {"state": "auto"})
    assert [await seen(line) for line in both] == [[], []]


async def test_a_poll_goes_on_when_the_process_it_was_passed_to_is_killed(fresh_pair: NodeProcess, queue: str) -> None:
    async with lines_to(fresh_pair) as both:
        owner, other = await sort_by_feeding(both, queue)
        victim = await pid_of(owner, fresh_pair.pid)
        poll = lease(other, queue, wait=60)
        await explained_holders(owner, queue)

        services.kill(victim)
        async with lines_to_same(other) as again:
            task = await again.post("/v1/tasks", {"type": "work", "queue": queue})
            [leased] = (await poll)["tasks"]

            assert leased["id"] == task["id"]
            assert (await settle(again, leased))["settled"] == 1
            # Nobody had to run it twice.
            assert [each["outcome"] for each in (await again.get(f"/v1/tasks/{task['id']}"))["attempts"]] == [
                "succeeded"
            ]


async def test_a_process_that_is_killed_is_started_again_and_feeds_again(fresh_pair: NodeProcess) -> None:
    former = children_of(fresh_pair.pid)
    async with lines_to(fresh_pair) as both:
        shares = {node["name"]: node["shards"] for node in (await both[0].get("/v1/cluster"))["items"]}

    for victim in former:
        services.kill(victim)
        await until(lambda victim=victim: victim not in children_of(fresh_pair.pid))  # type: ignore[misc]
        async with asyncio.timeout(PATIENCE_SECONDS), lines_to(fresh_pair) as lines:
            for line in lines:
                while {node["name"]: node["shards"] for node in (await line.get("/v1/cluster"))["items"]} != shares:
                    await asyncio.sleep(0.02)

    assert len(children_of(fresh_pair.pid)) == 2
    assert not set(former) & set(children_of(fresh_pair.pid))


async def test_connections_wait_while_no_process_is_there(fresh_pair: NodeProcess) -> None:
    for victim in children_of(fresh_pair.pid):
        services.kill(victim)
    # Connections that the kernel had already given to the dead are lost; what comes now waits.
    await until(lambda: len(children_of(fresh_pair.pid)) == 0 or all_fresh(fresh_pair))

    async with lines_to(fresh_pair) as lines:
        assert len(lines) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_all_of_them(fresh_pair: NodeProcess, queue: str, number: int) -> None:
    children = children_of(fresh_pair.pid)
    database = await Database.open(embedded_url(fresh_pair), size=1)
    names = [row["name"] for row in await database.fetch("SELECT name FROM node")]
    await database.close()
    async with lines_to(fresh_pair) as both:
        polls = [lease(line, queue, f"w-{place}", wait=60) for place, line in enumerate(both)]
        for place in range(2):
            await registered(fresh_pair, f"w-{place}")

        code = await asyncio.to_thread(fresh_pair.stop, number)
        answers = [(await poll)["tasks"] for poll in polls]

    assert code == 0
    assert len(names) == 2
    assert answers == [[], []]
    assert [pid for pid in children if services.is_running(pid)] == []
    assert "Traceback" not in fresh_pair.log.read_text()


async def test_they_end_when_their_supervisor_is_killed_and_everything_starts_again(
    fresh_pair: NodeProcess, queue: str
) -> None:
    children = children_of(fresh_pair.pid)
    async with lines_to(fresh_pair) as both:
        task = await both[0].post("/v1/tasks", {"type": "work", "queue": queue})

    fresh_pair.kill()
    await until(lambda: not any(services.is_running(pid) for pid in children))
    await asyncio.to_thread(fresh_pair.start)

    async with lines_to(fresh_pair) as both:
        [leased] = (await lease(both[0], queue))["tasks"]
        assert leased["id"] == task["id"]


async def test_a_second_signal_ends_everything_at_once(fresh_pair: NodeProcess) -> None:
    children = children_of(fresh_pair.pid)
    postgres = fresh_pair.postgres_pid()
    for pid in children:
        # So that a stop cannot end by itself.
        os.kill(pid, signal.SIGSTOP)

    os.kill(fresh_pair.pid, signal.SIGTERM)
    await until(lambda: "stopping" in fresh_pair.log.read_text())
    os.kill(fresh_pair.pid, signal.SIGTERM)
    await until(lambda: not fresh_pair.is_running)
    for pid in children:
        os.kill(pid, signal.SIGCONT)

    await until(lambda: not any(services.is_running(pid) for pid in (*children, postgres)))
    assert fresh_pair.stop() == 128 + signal.SIGTERM


async def test_a_process_that_stands_still_is_replaced_and_may_come_back(fresh_pair: NodeProcess, queue: str) -> None:
    async with lines_to(fresh_pair) as both:
        owner, other = await sort_by_feeding(both, queue)
        stopped = await pid_of(owner, fresh_pair.pid)

        os.kill(stopped, signal.SIGSTOP)
        try:
            poll = lease(other, queue, wait=60)
            async with lines_to_same(other) as again:
                task = await again.post("/v1/tasks", {"type": "work", "queue": queue})
                [leased] = (await poll)["tasks"]
                await settle(again, leased)
        finally:
            os.kill(stopped, signal.SIGCONT)

        assert leased["id"] == task["id"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len((await other.get("/v1/cluster"))["items"]) != 2:
                await asyncio.sleep(0.02)


# What the tests above ask along the way


def lines_to_same(line: Line) -> "SameLine":
    return SameLine(line)


class SameLine:
    """One more connection to the same process: a poll that waits keeps its own busy."""

    def __init__(self, line: Line) -> None:
        self._like = line

    async def __aenter__(self) -> Line:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self._line = await self._like.another().open()
                if self._line.name == self._like.name:
                    return self._line
                await self._line.close()

    async def __aexit__(self, *_: object) -> None:
        await self._line.close()


async def reasons(line: Line, task: str) -> list[str]:
    return [each["reason"] for each in (await line.get(f"/v1/tasks/{task}/explain"))["waiting_for"]]


async def explained_holders(line: Line, queue: str) -> None:
    """Wait until a worker's poll has reached the node that feeds the queue."""
    task = (await line.post("/v1/tasks", {"type": "probe", "queue": queue, "delay": "1h"}))["id"]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await reasons(line, task) != ["time"]:
            await asyncio.sleep(0.01)
    await line.post(f"/v1/tasks/{task}/cancel")


async def sort_by_feeding(both: list[Line], queue: str) -> tuple[Line, Line]:
    """The process that feeds the default tenant, and the other one."""
    from duetime.admin.tenants import shard_of_tenant
    from duetime.cluster.shards import assign

    names = frozenset(line.name for line in both)
    owner = assign(names)[shard_of_tenant("default")]
    return (both[0], both[1]) if both[0].name == owner else (both[1], both[0])


async def registered(node: NodeProcess, worker: str) -> None:
    database = await Database.open(embedded_url(node), size=1)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await database.fetch("SELECT 1 FROM holder WHERE name = $1", worker):
                await asyncio.sleep(0.02)
    finally:
        await database.close()


def all_fresh(node: NodeProcess) -> bool:
    return len(children_of(node.pid)) == 2 and all(psutil.pid_exists(pid) for pid in children_of(node.pid))


async def test_processes_together_keep_a_tenants_rate(pair: NodeProcess, both: list[Line]) -> None:
    rate, burst, seconds = 200, 20, 2.0
    quotas = {"submit_rate": rate, "submit_burst": burst}
    await both[0].ask("PUT", "/v1/tenants/limited", {"quotas": quotas})
    key = await both[0].ask("POST", "/v1/keys", {}, tenant="limited")

    async def submit(line: Line) -> int:
        """How many of forty are accepted."""
        tasks = [{"type": "a", "delay": "1h"}] * 40
        return int((await line.ask("POST", "/v1/tasks/batch", tasks, refused={"accepted": 0}))["accepted"])

    async with Lines(pair.url, key["key"], 2) as lines:
        for line in lines:
            while await submit(line) == 40:
                # The process has not heard of the quota yet.
                pass
        began = time.monotonic()

        async def hammer(line: Line) -> int:
            accepted = 0
            while time.monotonic() < began + seconds:
                accepted += await submit(line)
            return accepted

        accepted = await asyncio.gather(*(hammer(line) for line in lines))
        took = time.monotonic() - began

    # Each for itself they would have accepted twice the rate.
    assert 0 < sum(accepted) <= rate * (took + 1) + burst


async def test_a_key_is_refused_at_every_process_under_the_name_of_another_keys_worker(
    pair: NodeProcess, both: list[Line], queue: str
) -> None:
    anothers = (await both[0].post("/v1/keys", {"role": "admin"}))["key"]
    task = (await both[0].post("/v1/tasks", {"type": "a", "queue": queue}))["id"]
    [leased] = (await lease(both[0], queue, worker=queue))["tasks"]

    async with Lines(pair.url, anothers, 2) as lines:
        for line in lines:
            for _ in range(2):
                with pytest.raises(AssertionError, match="worker_name_taken"):
                    await line.post("/v1/workers/beat", {"worker": queue, "attempts": []})
            with pytest.raises(AssertionError, match="worker_name_taken"):
                await settle(line, leased, worker=queue)

    for line in both:
        named = [{"id": task, "attempt": 1}]
        assert (await line.post("/v1/workers/beat", {"worker": queue, "attempts": named}))["lost"] == []
    assert (await settle(both[1], leased, worker=queue))["settled"] == 1


async def test_a_poll_at_another_process_ends_within_a_second_of_its_keys_revocation(
    pair: NodeProcess, both: list[Line], queue: str
) -> None:
    made = await both[0].post("/v1/keys", {"role": "admin"})
    async with Lines(pair.url, made["key"], 2) as lines:
        polls = []
        for place, line in enumerate(lines):
            queued = {"type": "a", "queue": f"{queue}-{place}", "delay": "1h"}
            task = (await both[0].post("/v1/tasks", queued))["id"]
            polls.append(lease(line, f"{queue}-{place}", worker=f"{queue}-{place}"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while "no_worker" in str(await both[0].get(f"/v1/tasks/{task}/explain")):
                    await asyncio.sleep(0.02)

        await both[0].ask("DELETE", f"/v1/keys/{made['id']}")
        async with asyncio.timeout(PATIENCE_SECONDS / 4):
            for poll in polls:
                with pytest.raises(AssertionError, match="unauthorized"):
                    await poll
