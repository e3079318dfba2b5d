"""Answers of the database that never arrive, seen from outside: what was done is done once, and said to be done.

Each test loses the answer of one chosen statement of a real node after it was
committed; one half of them then keeps the database away, so that the node
cannot find out.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from duetime import AsyncClient
from duetime.database.pool import Database
from duetime.sdk.uuid7 import make_uuid7
from faults.cast import Cast, until
from faults.processes import ServeProcess
from faults.swallower import Swallower, swallowing

SUBMIT = "INSERT INTO task"
SUCCEED = "INSERT INTO attempt"
CLAIM = "INSERT INTO claim"
CANCEL = "dead_letter AS"
COMMIT = "COMMIT"
Json = dict[str, Any]


@dataclass
class Stack:
    """A node behind a line that loses answers."""

    cast: Cast
    node: ServeProcess
    swallower: Swallower
    session: aiohttp.ClientSession

    async def post(self, path: str, body: object = None, **headers: str) -> tuple[int, Json]:
        given = {"Authorization": f"Bearer {self.cast.key}", "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = json.dumps(body) if body is not None else None
        async with self.session.post(self.node.url + path, data=data, headers=given) as answer:
            return answer.status, await answer.json(content_type=None)

    async def get(self, task: str) -> Json:
        headers = {"Authorization": f"Bearer {self.cast.key}"}
        async with self.session.get(f"{self.node.url}/v1/tasks/{task}", headers=headers) as answer:
            found: Json = await answer.json()
            return found

    async def submit(self, **fields: object) -> str:
        status, task = await self.post("/v1/tasks", {"type": "test", "payload": {}, **fields})
        assert status == 202, task
        identifier: str = task["id"]
        return identifier

    async def lease(self, worker: str = "hand") -> list[Json]:
        status, answer = await self.post("/v1/workers/lease", {"worker": worker, "max": 10, "wait": 20})
        assert status == 200, answer
        tasks: list[Json] = answer["tasks"]
        return tasks

    def settlement(self, task: Json, outcome: str) -> Json:
        settlement: Json = {"id": task["id"], "attempt": task["attempt"], "outcome": outcome}
        if outcome == "failed":
            settlement["error"] = {"message": "no luck"}
        return {"worker": "hand", "settlements": [settlement]}

    async def come_back(self) -> None:
        self.swallower.is_away = False
        async with asyncio.timeout(60):
            while (await self.post("/v1/workers/beat", {"worker": "idle", "attempts": []}))[0] != 200:
                await asyncio.sleep(0.05)


@pytest.fixture
async def stack(cast: Cast) -> AsyncIterator[Stack]:
    async with swallowing(cast.database_url) as (swallower, url), aiohttp.ClientSession() as session:
        node = await cast.serve(url=url)
        yield Stack(cast, node, swallower, session)
        await asyncio.to_thread(cast.end)


KEYS = {
    "without keys": lambda: ({}, {}),
    "with a key for the request": lambda: ({}, {"Idempotency_Key": str(make_uuid7())}),
    "with a key for the task": lambda: ({"idempotency_key": "order-7"}, {}),
    "with both": lambda: ({"idempotency_key": "order-7"}, {"Idempotency_Key": str(make_uuid7())}),
}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_submission_whose_answer_was_lost_is_stored_once(stack: Stack, keys: str, times: int) -> None:
    fields, headers = KEYS[keys]()
    # The node's first words about lanes and keys are not what this is about.
    await stack.submit()
    stack.swallower.swallow(SUBMIT, times)

    status, task = await stack.post("/v1/tasks", {"type": "test", "payload": {"n": 1}, **fields}, **headers)

    assert stack.swallower.swallowed == times
    assert status == 202, task
    assert await stack.cast.count("task") == await stack.cast.count("due") == 2
    assert (await stack.get(task["id"]))["payload"] == {"n": 1}
    if keys != "without keys":
        again, repeated = await stack.post("/v1/tasks", {"type": "test", "payload": {"n": 1}, **fields}, **headers)
        assert (again, repeated["id"]) == (200, task["id"])
    assert {leased["id"] for leased in await stack.lease()} >= {task["id"]}


async def test_a_batch_whose_answer_was_lost_is_stored_once(stack: Stack) -> None:
    await stack.submit()
    stack.swallower.swallow(SUBMIT)

    status, answer = await stack.post("/v1/tasks/batch", [{"type": "test", "payload": {"n": n}} for n in range(200)])

    assert stack.swallower.swallowed == 1
    assert (status, answer["accepted"]) == (202, 200) or (status, answer["accepted"]) == (200, 200), answer
    assert len({result["id"] for result in answer["results"]}) == 200
    assert await stack.cast.count("task") == await stack.cast.count("due") == 201


@pytest.mark.parametrize("keys", KEYS)
async def test_a_submission_in_doubt_is_said_to_be_unknown_and_can_be_repeated(stack: Stack, keys: str) -> None:
    fields, headers = KEYS[keys]()
    await stack.submit()
    stack.swallower.swallow(SUBMIT, goes_away=True)

    status, problem = await stack.post("/v1/tasks", {"type": "test", "payload": {}, **fields}, **headers)
    await stack.come_back()

    assert (status, problem["code"]) == (503, "unknown")
    if keys == "without keys":
        return
    status, task = await stack.post("/v1/tasks", {"type": "test", "payload": {}, **fields}, **headers)
    assert status == 200, task
    assert await stack.cast.count("task") == 2
    assert await stack.cast.count("task", f"id = '{task['id']}'") == 1


async def test_the_sdk_repeats_a_submission_in_doubt_by_itself(stack: Stack) -> None:
    await stack.submit()
    stack.swallower.swallow(SUBMIT, goes_away=True)

    async with AsyncClient(stack.node.url, stack.cast.key, retry_for=120) as client:
        submitting = asyncio.create_task(client.submit("test", {"n": 1}))
        await until(lambda: stack.swallower.swallowed == 1)
        await stack.come_back()
        task = await submitting

    assert await stack.cast.count("task") == 2
    assert (await stack.get(task.id))["payload"] == {"n": 1}


@pytest.mark.parametrize(
    ("outcome", "state"), [("succeeded", "succeeded"), ("failed", "retrying"), ("snoozed", "scheduled")]
)
async def test_a_settlement_whose_answer_was_lost_counts_once(stack: Stack, outcome: str, state: str) -> None:
    identifier = await stack.submit(retry={"min_backoff": 600})
    [task] = await stack.lease()
    settlement = stack.settlement(task, outcome)
    if outcome == "snoozed":
        settlement["settlements"][0]["retry_after"] = 600
    stack.swallower.swallow(SUCCEED)

    status, answer = await stack.post("/v1/workers/settle", settlement)

    assert stack.swallower.swallowed == 1
    assert (status, answer) == (200, {"settled": 1, "lost": [], "cancelled": []})
    assert await stack.cast.outcomes(identifier) == [outcome]
    assert (await stack.get(identifier))["state"] == state
    assert await stack.cast.count("due", "number = 2") == (outcome != "succeeded")
    # And once more, by a worker that did not hear either.
    assert await stack.post("/v1/workers/settle", settlement) == (200, answer)
    assert await stack.cast.outcomes(identifier) == [outcome]


async def test_a_settlement_in_doubt_can_be_repeated(stack: Stack) -> None:
    identifier = await stack.submit()
    [task] = await stack.lease()
    stack.swallower.swallow(SUCCEED, goes_away=True)

    status, _ = await stack.post("/v1/workers/settle", stack.settlement(task, "succeeded"))
    await stack.come_back()
    again = await stack.post("/v1/workers/settle", stack.settlement(task, "succeeded"))

    assert status == 503
    assert again == (200, {"settled": 1, "lost": [], "cancelled": []})
    assert await stack.cast.outcomes(identifier) == ["succeeded"]


@pytest.mark.parametrize("message", [CANCEL, COMMIT])
@pytest.mark.parametrize("is_running", [False, True])
async def test_a_cancel_whose_answer_was_lost_is_confirmed(stack: Stack, is_running: bool, message: str) -> None:
    identifier = await stack.submit()
    leased = await stack.lease() if is_running else []
    stack.swallower.swallow(message)

    status, task = await stack.post(f"/v1/tasks/{identifier}/cancel")

    assert stack.swallower.swallowed == 1
    assert (status, task["state"]) == (200, "cancelled"), task
    assert await stack.cast.outcomes(identifier) == ["cancelled"]
    for each in leased:
        answer = await stack.post("/v1/workers/settle", stack.settlement(each, "succeeded"))
        which = {"cancelled": [identifier], "cancelled_attempts": [{"id": identifier, "attempt": each["attempt"]}]}
        assert answer == (200, {"settled": 0, "lost": [], **which})


async def test_a_cancel_that_was_not_committed_is_said_not_to_be_done(stack: Stack) -> None:
    identifier = await stack.submit()
    stack.swallower.swallow(CANCEL, goes_away=True)

    status, problem = await stack.post(f"/v1/tasks/{identifier}/cancel")
    await stack.come_back()

    assert (status, problem["code"]) == (503, "unavailable")
    assert (await stack.get(identifier))["state"] == "ready"


async def test_a_cancel_in_doubt_is_said_to_be_unknown(stack: Stack) -> None:
    identifier = await stack.submit()
    stack.swallower.swallow(COMMIT, goes_away=True)

    status, problem = await stack.post(f"/v1/tasks/{identifier}/cancel")
    await stack.come_back()

    assert (status, problem["code"]) == (503, "unknown")
    assert (await stack.get(identifier))["state"] == "cancelled"


async def test_a_claim_whose_answer_was_lost_is_released_and_costs_nothing(stack: Stack) -> None:
    worker = stack.cast.worker(stack.node)
    await until(lambda: "takes tasks" in worker.output())
    stack.swallower.swallow(CLAIM)

    async with AsyncClient(stack.node.url, stack.cast.key) as client:
        task = await client.submit("fault.async", {})
        done = await client.wait(task.id, timeout=120)

    assert stack.swallower.swallowed == 1
    assert [each.outcome for each in done.attempts] == ["released", "succeeded"]


async def test_a_line_that_breaks_after_the_answer_does_not_spoil_it(database_url: str) -> None:
    database = await Database.open(database_url, size=1)
    for _ in range(3):
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
            # The loss is noticed in the next round of the loop, when the connection has been given back.
            connection._transport.abort()
        await asyncio.sleep(0)
    assert [row["two"] for row in await database.fetch("SELECT 2 AS two")] == [2]
    await database.close()
