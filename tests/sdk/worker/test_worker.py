"""Workers against a real node."""

import asyncio
import contextvars
import json
import threading
import time
from typing import Any

import aiohttp
import psycopg
import pytest

from duetime import AsyncClient, Context, Permanent, Retry, Snooze, Task, Worker, outbox
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.errors import ConfigurationError, InvalidRequest, Unauthorized
from faults.processes import embedded_url
from nodes import NodeProcess
from sdk.conftest import running
from sdk.proxies import proxy_to


def make_worker(node: NodeProcess, queue: str, **settings: Any) -> Worker:
    return Worker(settings.pop("url", node.url), node.key, queues=[queue], shutdown_timeout=10, **settings)


def outcomes(task: Task) -> list[str | None]:
    return [attempt.outcome for attempt in task.attempts]


def message(task: Task) -> str:
    error = task.attempts[-1].error
    assert error is not None
    return error.message


async def test_plain_and_async_handlers_run_and_their_results_are_kept(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    worker = make_worker(node, queue)

    @worker.task("async")
    async def answer(payload: int, context: Context) -> dict[str, object]:
        await asyncio.sleep(0)
        return {"double": 2 * payload, "attempt": context.attempt, "key": context.idempotency_key}

    @worker.task("plain")
    def thread(payload: int) -> list[object]:
        return [payload, threading.current_thread() is threading.main_thread()]

    async with running(worker):
        first = await client.submit("async", 21, queue=queue, labels={"a": "b"})
        second = await client.submit("plain", 7, queue=queue)
        first, second = await client.wait(first.id), await client.wait(second.id)

    assert first.result == {"double": 42, "attempt": 1, "key": first.id}
    assert second.result == [7, False]
    assert [attempt.worker for attempt in first.attempts] == [worker.name]
    assert first.attempts[0].started_at is not None


async def test_a_handler_says_how_its_attempt_ended(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = make_worker(node, queue)

    @worker.task("moody")
    async def moody(payload: object, context: Context) -> str:
        match context.attempt:
            case 1:
                raise Snooze(0.01)
            case 2:
                raise Retry("busy", after="10ms")
            case 3:
                raise LookupError("no such user")
            case _:
                return "at last"

    @worker.task("hopeless")
    def hopeless(payload: object) -> None:
        raise Permanent("there is no such address")

    async with running(worker):
        moody_task = await client.submit("moody", queue=queue, retry={"max_attempts": 3, "min_backoff": 0.01})
        hopeless_task = await client.submit("hopeless", queue=queue)
        moody_task, hopeless_task = await client.wait(moody_task.id), await client.wait(hopeless_task.id)

    assert outcomes(moody_task) == ["snoozed", "failed", "failed", "succeeded"]
    assert moody_task.result == "at last"
    error = moody_task.attempts[2].error
    assert error is not None
    assert error.message == "LookupError: no such user"
    assert "in moody" in error.detail
    assert (hopeless_task.state, outcomes(hopeless_task)) == ("dead", ["failed"])
    assert message(hopeless_task) == "there is no such address"


async def test_what_cannot_be_run_or_kept_is_said(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = make_worker(node, queue)

    @worker.task("large")
    async def large(payload: object) -> str:
        return "x" * 70_000

    @worker.task("typed")
    async def typed(payload: dict[str, int]) -> None: ...

    async with running(worker):
        too_large = await client.submit("large", queue=queue)
        unfit = await client.submit("typed", {"a": "b"}, queue=queue)
        too_large, unfit = [await client.wait(task.id) for task in (too_large, unfit)]

    assert (too_large.state, outcomes(too_large)) == ("dead", ["failed"])
    assert "at most 65,536" in message(too_large)
    assert "does not fit the handler of typed" in message(unfit)


async def test_a_report_that_the_server_refuses_does_not_hold_up_the_others(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    worker = make_worker(node, queue)
    together = asyncio.Event()

    @worker.task("good")
    async def good(payload: object) -> str:
        await together.wait()
        return "good"

    @worker.task("bad")
    async def bad(payload: object) -> object:
        together.set()
        # Deeper than the server takes.
        result: list[object] = []
        for _ in range(200):
            result = [result]
        return result

    async with running(worker):
        batch = await client.submit_many({"type": kind, "queue": queue} for kind in ("good", "good", "bad", "good"))
        tasks = [await client.wait(task) for task in batch.ids]

    assert [task.state for task in tasks] == ["succeeded", "succeeded", "dead", "succeeded"]
    assert "the server refused the report" in message(tasks[2])


async def test_an_attempt_is_timed_out(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = make_worker(node, queue)
    released = threading.Event()
    seen: list[object] = []

    @worker.task("async", timeout="200ms")
    async def endless(payload: object) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @worker.task("plain")
    def stuck(payload: object, context: Context) -> str:
        released.wait(30)
        seen.append(context.is_cancelled)
        return "too late"

    async with running(worker):
        once_only = {"max_attempts": 1}
        first = await client.submit("async", queue=queue, retry=once_only)
        second = await client.submit("plain", queue=queue, timeout=1, retry=once_only)
        first, second = await client.wait(first.id), await client.wait(second.id)
        released.set()

    assert message(first) == "timed out after 0.2 s"
    assert message(second) == "timed out after 1 s"
    assert second.result is None
    assert seen == ["cancelled", True]


async def test_a_thread_that_timed_out_keeps_its_slot(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = make_worker(node, queue, threads=1)
    released = threading.Event()
    order: list[object] = []

    @worker.task("stuck", timeout=0.1)
    def stuck(payload: object) -> None:
        released.wait(30)
        order.append("stuck is over")

    @worker.task("next")
    def follow(payload: object) -> None:
        order.append("next")

    async with running(worker):
        first = await client.submit("stuck", queue=queue, retry={"max_attempts": 1})
        await client.wait(first.id)
        second = await client.submit("next", queue=queue)
        released.set()
        await client.wait(second.id)

    assert order == ["stuck is over", "next"]


async def test_a_cancel_reaches_running_handlers(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = make_worker(node, queue)
    begun: asyncio.Queue[str] = asyncio.Queue()
    ended: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    @worker.task("async")
    async def endless(payload: object) -> None:
        begun.put_nowait("async")
        try:
            await asyncio.sleep(60)
        finally:
            ended.put_nowait("async")

    @worker.task("plain")
    def looking(payload: object, context: Context) -> None:
        loop.call_soon_threadsafe(begun.put_nowait, "plain")
        try:
            while True:
                context.check()
                time.sleep(0.01)
        finally:
            loop.call_soon_threadsafe(ended.put_nowait, "plain")

    async with running(worker):
        tasks = [await client.submit(kind, queue=queue) for kind in ("async", "plain")]
        assert {await begun.get(), await begun.get()} == {"async", "plain"}
        for task in tasks:
            assert (await client.cancel(task.id)).state == "cancelled"
        assert {await ended.get(), await ended.get()} == {"async", "plain"}

    for task in tasks:
        assert outcomes(await client.get(task.id)) == ["cancelled"]


async def test_concurrency_is_kept(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = make_worker(node, queue, concurrency=3, prefetch=20)
    at_once, most = 0, 0

    @worker.task("count")
    async def count(payload: object) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.002)
        at_once -= 1

    async with running(worker):
        batch = await client.submit_many({"type": "count", "queue": queue} for _ in range(50))
        states = [(await client.wait(task)).state for task in batch.ids]

    assert states == ["succeeded"] * 50
    assert most == 3


async def test_many_tasks_go_through_and_each_runs_once(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = make_worker(node, queue)
    ran: list[int] = []
    all_ran = asyncio.Event()

    @worker.task("number")
    async def number(payload: int) -> int:
        ran.append(payload)
        if payload % 3 == 0:
            await asyncio.sleep(0)
        if len(ran) == 3_000:
            all_ran.set()
        return payload

    async with running(worker):
        batch = await client.submit_many({"type": "number", "payload": n, "queue": queue} for n in range(3_000))
        await asyncio.wait_for(all_ran.wait(), 30)
        last = await client.wait(batch.ids[-1])

    assert sorted(ran) == list(range(3_000))
    assert last.result == 2_999
    assert [task async for task in client.list(queue=queue, state="running")] == []


async def test_tasks_of_a_blocked_loop_stay_held(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    """Beats go on while a handler blocks the event loop for longer than a silent worker would be given."""
    blocker = make_worker(node, queue, name="blocker")

    @blocker.task("block")
    async def block(payload: object) -> str:
        time.sleep(11)
        return "done"

    task = await client.submit("block", queue=queue)
    thread = threading.Thread(target=lambda: asyncio.run(blocker.run_async()))
    thread.start()
    done = await client.wait(task.id, 30)
    blocker.stop()
    await asyncio.to_thread(thread.join)

    assert outcomes(done) == ["succeeded"]


async def test_a_stopping_worker_finishes_what_runs_and_gives_back_the_rest(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    worker = make_worker(node, queue, concurrency=1, prefetch=10)
    begun, may_end = asyncio.Event(), asyncio.Event()

    @worker.task("step")
    async def step(payload: object) -> str:
        begun.set()
        await may_end.wait()
        return "finished"

    batch = await client.submit_many({"type": "step", "queue": queue} for _ in range(4))
    work = asyncio.create_task(worker.run_async())
    await begun.wait()
    worker.stop()
    given_back = []
    while len(given_back) < 3:
        given_back = [task.id async for task in client.list(queue=queue, state="ready")]
    may_end.set()
    await work

    tasks = [await client.get(task) for task in batch.ids]
    assert [(task.state, outcomes(task)) for task in tasks] == [("succeeded", ["succeeded"])] + 3 * [
        ("ready", ["released"])
    ]


async def test_what_does_not_finish_is_given_back_and_no_attempt_is_used(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    worker = Worker(node.url, node.key, queues=[queue], shutdown_timeout=0.2)
    begun = [asyncio.Event() for _ in range(3)]
    loop, may_end = asyncio.get_running_loop(), threading.Event()

    @worker.task("endless")
    async def endless(payload: int) -> None:
        begun[payload].set()
        await asyncio.sleep(60)

    @worker.task("deaf")
    def deaf(payload: int) -> None:
        loop.call_soon_threadsafe(begun[payload].set)
        may_end.wait()

    policy = {"max_attempts": 1}
    endless_task = await client.submit("endless", 0, queue=queue, retry=policy)
    deaf_task = await client.submit("deaf", 1, queue=queue, retry=policy)
    once_task = await client.submit("endless", 2, queue=queue, delivery="at_most_once")
    work = asyncio.create_task(worker.run_async())
    for each in begun:
        await each.wait()
    worker.stop()
    await work
    told = await client.explain(endless_task.id)
    may_end.set()

    for id in (endless_task.id, deaf_task.id):
        task = await client.get(id)
        assert (task.state, outcomes(task), message(task)) == ("ready", ["released"], "worker is shutting down")
    task = await client.get(once_task.id)
    assert (task.state, outcomes(task)) == ("dead", ["unknown"])
    assert [reason.reason for reason in told.waiting_for] == ["no_worker", "position"]


async def test_a_worker_that_is_cancelled_gives_back_what_it_holds(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    """As Ctrl-C does it in a program that runs the loop itself."""
    worker = Worker(node.url, node.key, queues=[queue])
    begun = asyncio.Event()

    @worker.task("endless")
    async def endless(payload: object) -> None:
        begun.set()
        await asyncio.sleep(60)

    task = await client.submit("endless", queue=queue, retry={"max_attempts": 1})
    work = asyncio.create_task(worker.run_async())
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work

    told = await client.explain(task.id)
    task = await client.get(task.id)
    assert (task.state, outcomes(task)) == ("ready", ["released"])
    assert [reason.reason for reason in told.waiting_for] == ["no_worker", "position"]


async def test_a_worker_says_how_long_it_may_be_silent(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = Worker(node.url, node.key, queues=[queue], max_silence="2m")

    @worker.task("step")
    async def step(payload: object) -> None: ...

    async with running(worker):
        task = await client.submit("step", queue=queue)
        await client.wait(task.id, timeout=60)
        with psycopg.connect(embedded_url(node)) as connection:
            rows = connection.execute(
                "SELECT max_silence FROM duetime.holder WHERE name = %s", [worker.name]
            ).fetchall()

    assert rows == [(120.0,)]


async def test_an_idle_worker_that_has_stopped_is_no_worker_any_more(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    worker = Worker(node.url, node.key, queues=[queue])
    done = asyncio.Event()

    @worker.task("step")
    async def step(payload: object) -> None:
        done.set()

    async with running(worker):
        await client.submit("step", queue=queue)
        await done.wait()
    task = await client.submit("step", queue=queue)

    told = await client.explain(task.id)

    assert [reason.reason for reason in told.waiting_for] == ["no_worker", "position"]
    assert "Start a worker" in told.what_would_free_it


async def test_a_lost_answer_to_a_report_changes_nothing(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    async with proxy_to(node.url) as proxy:
        worker = make_worker(node, queue, url=proxy.url)

        @worker.task("a")
        async def handle(payload: object) -> str:
            return "kept"

        proxy.cut_answers_to = [b"POST /v1/workers/settle"]
        async with running(worker):
            task = await client.submit("a", queue=queue)
            await client.wait(task.id)

        assert proxy.cuts == 1
        task = await client.get(task.id)
        assert (outcomes(task), task.result) == (["succeeded"], "kept")


async def test_a_server_that_is_away_loses_no_report(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    async with proxy_to(node.url) as proxy:
        worker = make_worker(node, queue, url=proxy.url)
        begun, may_end = asyncio.Event(), asyncio.Event()

        @worker.task("a")
        async def handle(payload: object) -> str:
            begun.set()
            await may_end.wait()
            return "kept"

        async with running(worker):
            task = await client.submit("a", queue=queue)
            await begun.wait()
            proxy.go_away()
            may_end.set()
            await asyncio.sleep(1)
            assert (await client.get(task.id)).state == "running"
            proxy.come_back()
            task = await client.wait(task.id)

        assert (outcomes(task), task.result) == (["succeeded"], "kept")


async def test_a_recovered_task_is_run_after_a_beat_has_named_it(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    headers = {"Authorization": f"Bearer {node.key}"}
    task = await client.submit("a", queue=queue)
    async with aiohttp.ClientSession(node.url, headers=headers) as careless:
        forgetful = {"worker": f"forgetful-{queue}"}
        lease = {**forgetful, "queues": [queue], "max": 1, "wait": 5}
        async with careless.post("/v1/workers/lease", json=lease) as answer:
            assert [each["id"] for each in (await answer.json())["tasks"]] == [task.id]
        # Beats that do not name it: it never reached its holder.
        while outcomes(await client.get(task.id)) != ["released"]:
            async with careless.post("/v1/workers/beat", json=forgetful) as answer:
                assert answer.status == 200

    async with proxy_to(node.url) as proxy:
        worker = make_worker(node, queue, url=proxy.url)
        named_before: list[bool] = []

        @worker.task("a")
        async def handle(payload: object) -> None:
            beats = [piece for piece in proxy.sent if b'"attempts"' in piece]
            named_before.append(any(task.id.encode() in piece and b'"started":true' in piece for piece in beats))

        async with running(worker):
            task = await client.wait(task.id)

    assert outcomes(task) == ["released", "succeeded"]
    assert named_before == [True]


async def test_recovered_tasks_are_named_together_and_run_side_by_side(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    count = 20
    headers = {"Authorization": f"Bearer {node.key}"}
    tasks = [await client.submit("a", queue=queue) for _ in range(count)]
    async with aiohttp.ClientSession(node.url, headers=headers) as careless:
        forgetful = {"worker": f"forgetful-{queue}"}
        lease = {**forgetful, "queues": [queue], "max": count, "wait": 5}
        async with careless.post("/v1/workers/lease", json=lease) as answer:
            assert len((await answer.json())["tasks"]) == count
        while any([outcomes(await client.get(task.id)) != ["released"] for task in tasks]):
            async with careless.post("/v1/workers/beat", json=forgetful) as answer:
                assert answer.status == 200

    async with proxy_to(node.url) as proxy:
        worker = make_worker(node, queue, url=proxy.url, concurrency=count)
        all_run = asyncio.Barrier(count)

        @worker.task("a")
        async def handle(payload: object) -> None:
            await all_run.wait()

        async with running(worker):
            done = [await client.wait(task.id) for task in tasks]
        beats = [piece for piece in proxy.sent if b'"attempts"' in piece]

    assert [outcomes(task) for task in done] == [["released", "succeeded"]] * count
    assert max(piece.count(b'"started":true') for piece in beats) == count
    assert len({piece.count(b'"started":true') for piece in beats}) <= 2


async def test_what_was_taken_over_is_stopped_and_not_reported(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    """The worker is cut off long enough to be given up; its handler is cancelled when it hears of it."""
    async with proxy_to(node.url) as proxy:
        cut_off, heir = make_worker(node, queue, url=proxy.url), make_worker(node, queue)
        begun, stopped = asyncio.Event(), asyncio.Event()

        @cut_off.task("a")
        async def first(payload: object) -> str:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                stopped.set()
            return "stale"

        @heir.task("a")
        async def second(payload: object) -> str:
            return "fresh"

        async with running(cut_off):
            task = await client.submit("a", queue=queue)
            await begun.wait()
            proxy.go_away()
            async with running(heir):
                task = await client.wait(task.id, 40)
            proxy.come_back()
            await asyncio.wait_for(stopped.wait(), 20)

        task = await client.get(task.id)
    # Released if it was cut off before its first beat could say that the task had begun.
    assert outcomes(task) in (["lapsed", "succeeded"], ["released", "succeeded"])
    assert task.result == "fresh"


async def test_a_worker_that_cannot_work_says_why(
    node: NodeProcess, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(payload: object) -> None: ...

    nobody = Worker(node.url, node.key)
    stranger = Worker(node.url, "dt_wrong")
    stranger.task("a")(handle)
    misnamed = Worker(node.url, node.key, queues=["no name!"])
    misnamed.task("a")(handle)

    with pytest.raises(ConfigurationError, match="no handlers"):
        await nobody.run_async()
    with pytest.raises(Unauthorized):
        await stranger.run_async()
    with pytest.raises(InvalidRequest, match="queues"):
        await misnamed.run_async()
    with pytest.raises(ConfigurationError, match="two handlers"):
        stranger.task("a")(handle)


@pytest.mark.parametrize("concurrency", [1, 100])
async def test_each_handler_has_a_context_of_its_own(
    node: NodeProcess, client: AsyncClient, queue: str, concurrency: int
) -> None:
    worker = make_worker(node, queue, threads=1, concurrency=concurrency)
    variable = contextvars.ContextVar("variable", default="clean")

    @worker.task("at-once")
    async def at_once(payload: object) -> str:
        found = variable.get()
        variable.set("dirty")
        return found

    @worker.task("waiting")
    async def waiting(payload: object) -> str:
        found = variable.get()
        variable.set("dirty")
        await asyncio.sleep(0)
        return found

    @worker.task("plain")
    def plain(payload: object) -> str:
        found = variable.get()
        variable.set("dirty")
        return found

    batch = await client.submit_many(
        {"type": kind, "queue": queue} for kind in ("at-once", "waiting", "at-once", "plain") * 5
    )
    async with running(worker):
        results = [(await client.wait(task)).result for task in batch.ids]

    assert results == ["clean"] * 20


async def test_handlers_that_wait_have_a_task_of_the_loop_to_themselves(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    worker = make_worker(node, queue, concurrency=10)
    tasks: list[object] = []

    @worker.task("timed")
    async def timed(payload: int) -> str:
        tasks.append(asyncio.current_task())
        try:
            async with asyncio.timeout(0.01 if payload % 2 else 30):
                await asyncio.sleep(0.05)
        except TimeoutError:
            return "late"
        return "in time"

    batch = await client.submit_many({"type": "timed", "payload": n, "queue": queue} for n in range(30))
    async with running(worker):
        results = [(await client.wait(task)).result for task in batch.ids]

    assert results == ["in time", "late"] * 15
    assert len(set(tasks)) == 30


async def test_a_node_relays_what_is_committed_to_a_worker(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    worker = make_worker(node, queue)

    @worker.task("order.confirm")
    def confirm(payload: Any) -> Any:
        return payload

    async with running(worker):
        with psycopg.connect(embedded_url(node)) as connection:
            outbox.submit(connection, "order.confirm", {"order": 16}, queue=queue)
            connection.rollback()
            number = outbox.submit(connection, "order.confirm", {"order": 17}, queue=queue)
        while (task_id := await task_of(client, number)) is None:
            await asyncio.sleep(0.01)
        task = await client.wait(task_id)

    assert task.result == {"order": 17}
    assert [each.id async for each in client.list(queue=queue)] == [task_id]


async def task_of(client: AsyncClient, number: int) -> str | None:
    answer = json.loads(await client.send(ApiCall("GET", f"/v1/outbox/{number}", bytes)))
    assert answer["state"] in ("waiting", "accepted")
    found: str | None = answer["task"]
    return found
