"""Leases that arrive late, and attempts that were lost meanwhile: nothing runs that is somebody else's."""

import asyncio
from typing import Any

import pytest

from duetime import AsyncClient, Context, Task, Worker
from duetime.sdk.worker.context import Held, Stop
from duetime.sdk.worker.handlers import NO_HANDLER
from duetime.sdk.worker.lost import dropped_by
from duetime.sdk.worker.protocol import EndedAttempt, LeasedTask, Verdicts
from nodes import NodeProcess
from sdk.conftest import running
from sdk.gateway import gateway_to


def worker_at(url: str, node: NodeProcess, queue: str, **settings: Any) -> Worker:
    return Worker(url, node.key, queues=[queue], shutdown_timeout=10, **settings)


def outcomes(task: Task) -> list[str | None]:
    return [attempt.outcome for attempt in task.attempts]


async def test_a_lease_that_arrives_after_its_task_ran_elsewhere_is_not_begun(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    async with gateway_to(node.url) as gateway:
        late, heir = worker_at(gateway.url, node, queue), worker_at(node.url, node, queue)
        leased, has_run = asyncio.Event(), asyncio.Event()
        begun: list[str] = []

        async def hold(answer: Any) -> None:
            if answer["tasks"] and not leased.is_set():
                leased.set()
                await has_run.wait()

        gateway.answers["lease"] = hold

        @late.task("a")
        async def on_late(payload: object, context: Context) -> None:
            begun.append(context.task_id)

        @heir.task("a")
        async def on_heir(payload: object) -> str:
            return "elsewhere"

        async with running(late):
            task = await client.submit("a", queue=queue)
            await leased.wait()
            async with running(heir):
                task = await client.wait(task.id, 40)
            has_run.set()
            # What was leased before would begin before this.
            marker = await client.submit("a", queue=queue)
            await client.wait(marker.id, 40)

    assert (outcomes(task), task.result) == (["released", "succeeded"], "elsewhere")
    assert begun == [marker.id]


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("change", [{"begin_within": 0.0}, {"holder": "another"}])
async def test_what_may_be_somebody_elses_begins_once_a_beat_has_confirmed_it(
    node: NodeProcess, client: AsyncClient, queue: str, kind: str, change: dict[str, object]
) -> None:
    """It arrived late, or was leased as a holder that has ended since."""
    async with gateway_to(node.url) as gateway:
        worker = worker_at(gateway.url, node, queue)
        named: set[str] = set()
        begun: dict[str, bool] = {}

        async def make_late(answer: Any) -> None:
            assert answer["begin_within"] > 0
            assert answer["holder"]
            answer.update(change)

        async def note(beat: Any) -> None:
            named.update(each["id"] for each in beat["attempts"] if not each["started"])

        gateway.answers["lease"], gateway.requests["beat"] = make_late, note

        if kind == "async":

            @worker.task("a")
            async def handle(payload: object, context: Context) -> None:
                begun[context.task_id] = context.task_id in named
        else:

            @worker.task("a")
            def handle_plain(payload: object, context: Context) -> None:
                begun[context.task_id] = context.task_id in named

        async with running(worker):
            tasks = [await client.submit("a", queue=queue) for _ in range(3)]
            done = [await client.wait(task.id, 40) for task in tasks]

    assert [outcomes(task) for task in done] == [["succeeded"]] * 3
    assert begun == {task.id: True for task in tasks}


async def test_of_several_lost_attempts_of_a_task_none_begins(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    """The worker's beats arrive without the task until it holds three attempts of it: two are lost."""
    async with gateway_to(node.url) as gateway:
        worker = worker_at(gateway.url, node, queue, concurrency=3, prefetch=10)
        is_blocked, holds_three = asyncio.Event(), asyncio.Event()
        blockers: set[str] = set()
        taken: list[int] = []
        begun: list[int] = []

        async def count(answer: Any) -> None:
            # As from a server that says nothing of late answers: what was lost is known by beats alone.
            answer["begin_within"] = 3600.0
            for each in answer["tasks"]:
                each["recovered"] = False
                if each["type"] == "a":
                    taken.append(each["attempt"])
                    if len(taken) == 3:
                        holds_three.set()

        async def leave_out(beat: Any) -> None:
            if not holds_three.is_set():
                beat["attempts"] = [each for each in beat["attempts"] if each["id"] in blockers]

        gateway.answers["lease"], gateway.requests["beat"] = count, leave_out

        @worker.task("block")
        async def block(payload: object) -> None:
            is_blocked.set()
            await holds_three.wait()
            # Beats that name all three are answered before anything else can begin.
            before = gateway.passed["beat"]
            while gateway.passed["beat"] < before + 2:
                await asyncio.sleep(0.01)

        @worker.task("a")
        async def handle(payload: object, context: Context) -> None:
            begun.append(context.attempt)

        async with running(worker):
            blockers.update([(await client.submit("block", queue=queue)).id for _ in range(3)])
            await is_blocked.wait()
            task = await client.submit("a", queue=queue)
            task = await client.wait(task.id, 60)

    assert taken == [1, 2, 3]
    assert outcomes(task) == ["released", "released", "succeeded"]
    assert begun == [3]


async def test_a_server_that_names_no_attempts_and_no_holders_is_served_as_before(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    async with gateway_to(node.url) as gateway:
        worker = worker_at(gateway.url, node, queue)
        begun, stopped = asyncio.Event(), asyncio.Event()

        async def forget(answer: Any) -> None:
            for name in ("begin_within", "holder", "lost_attempts", "cancelled_attempts"):
                answer.pop(name, None)

        gateway.answers |= {"lease": forget, "beat": forget, "settle": forget}

        @worker.task("a")
        async def handle(payload: object) -> str:
            return "done"

        @worker.task("b")
        async def wait(payload: object) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()

        async with running(worker):
            waits = await client.submit("b", queue=queue)
            await begun.wait()
            await client.cancel(waits.id)
            done = [await client.wait((await client.submit("a", queue=queue)).id) for _ in range(3)]
            await asyncio.wait_for(stopped.wait(), 20)

    assert [outcomes(task) for task in done] == [["succeeded"]] * 3
    assert outcomes(await client.get(waits.id)) == ["cancelled"]


def attempt(number: int, task: str = "t") -> Held:
    return Held(LeasedTask(task, "a", number), NO_HANDLER)


def dropped(verdicts: Verdicts, held: list[Held]) -> dict[int, Stop]:
    return {each.task.attempt: why for each, why in dropped_by(verdicts, [(one, False) for one in held], held)}


def test_a_lost_attempt_takes_all_older_ones_of_its_task_along() -> None:
    held = [attempt(3), attempt(1), attempt(2), attempt(4), attempt(1, "other")]

    assert dropped(Verdicts(lost=["t"], lost_attempts=[EndedAttempt("t", 3)]), held) == dict.fromkeys(
        (1, 2, 3), Stop.LOST
    )


def test_an_older_server_names_a_task_once_for_each_lost_attempt() -> None:
    held = [attempt(4), attempt(2), attempt(3)]

    assert dropped(Verdicts(lost=["t"]), held) == {2: Stop.LOST}
    assert dropped(Verdicts(lost=["t", "t"]), held) == {2: Stop.LOST, 3: Stop.LOST}
    assert dropped(Verdicts(lost=["t", "t", "t"]), held) == dict.fromkeys((2, 3, 4), Stop.LOST)
    assert dropped(Verdicts(cancelled=["t"], lost=["t", "t"]), held) == dict.fromkeys((2, 3, 4), Stop.CANCELLED)
