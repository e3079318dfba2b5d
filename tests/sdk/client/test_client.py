"""Both clients against a real node."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import msgspec
import pytest

from duetime import AsyncClient, Client, Permanent, Submission, Worker
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.errors import (
    ApiError,
    ConfigurationError,
    Conflict,
    InvalidRequest,
    NotFound,
    ServerUnavailable,
    ServerUnreachable,
    Unauthorized,
    WaitTimeout,
)
from nodes import NodeProcess
from sdk.conftest import running
from sdk.proxies import proxy_to


async def test_a_submitted_task_can_be_read_back(each_client: Any, queue: str) -> None:
    task = await each_client.submit(
        "email.send",
        {"to": "ada"},
        queue=queue,
        delay="1h",
        priority="high",
        labels={"team": "a"},
        sla=timedelta(minutes=5),
    )

    read = await each_client.get(task.id)
    assert (read.id, read.type, read.payload, read.state) == (task.id, "email.send", {"to": "ada"}, "scheduled")
    assert (read.queue, read.priority, read.labels, read.sla) == (queue, "high", {"team": "a"}, 300.0)
    assert read.run_at > datetime.now(UTC) + timedelta(minutes=59)


async def test_a_key_gives_the_first_task_back(each_client: Any, queue: str) -> None:
    key = str(uuid.uuid4())
    first = await each_client.submit("a", 1, queue=queue, idempotency_key=key)

    again = await each_client.submit("a", 1, queue=queue, idempotency_key=key)

    assert again.id == first.id
    with pytest.raises(Conflict):
        await each_client.submit("a", 2, queue=queue, idempotency_key=key)


async def test_a_batch_has_a_result_for_each_item_in_order(each_client: Any, queue: str) -> None:
    batch = [Submission("a", number, queue=queue, delay="1h") for number in range(3)]

    result = await each_client.submit_many([batch[0], {"type": "not a name!"}, batch[1], batch[2]])

    assert (result.accepted, result.rejected) == (3, 1)
    assert [item.error is None for item in result] == [True, False, True, True]
    assert [(await each_client.get(task)).payload for task in result.ids if task] == [0, 1, 2]
    with pytest.raises(ApiError, match="item 1: type"):
        result.raise_for_errors()


async def test_an_atomic_batch_is_refused_as_a_whole(each_client: Any, queue: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await each_client.submit_many([{"type": "a", "queue": queue}, {"type": "!"}], atomic=True)

    assert any("type" in error.path for error in caught.value.errors)
    assert [task async for task in each_client.list(queue=queue)] == []


async def test_a_large_batch_is_sent_in_parts(client: AsyncClient, queue: str) -> None:
    result = await client.submit_many({"type": "a", "queue": queue, "delay": "1h"} for _ in range(5_001))

    assert result.accepted == len(set(result.ids)) == 5_001


async def test_a_list_leads_through_all_pages(each_client: Any, queue: str) -> None:
    result = await each_client.submit_many(
        Submission("a", queue=queue, delay=60 + number, labels={"kind": "x" if number % 2 else "y"})
        for number in range(7)
    )

    listed = [task.id async for task in each_client.list(queue=queue, state="scheduled", page_size=2)]
    odd = [task.id async for task in each_client.list(queue=queue, labels={"kind": "x"})]
    soon = [task.id async for task in each_client.list(queue=queue, to=datetime.now(UTC) + timedelta(seconds=62.5))]

    assert listed == result.ids
    assert sorted(odd) == sorted(result.ids[1::2])
    assert sorted(soon) == sorted(result.ids[:3])


async def test_the_verbs(each_client: Any, queue: str) -> None:
    task = await each_client.submit("a", queue=queue, delay="1h")

    assert (await each_client.pause(task.id)).state == "paused"
    assert (await each_client.resume(task.id)).state == "scheduled"
    later = datetime.now(UTC) + timedelta(hours=5)
    assert abs((await each_client.reschedule(task.id, later)).next_run_at - later) < timedelta(seconds=1)
    assert (await each_client.reschedule(task.id, delay="2h")).state == "scheduled"
    assert (await each_client.run_now(task.id)).state == "ready"
    assert (await each_client.explain(task.id)).what_would_free_it
    assert (await each_client.cancel(task.id)).state == "cancelled"
    with pytest.raises(Conflict):
        await each_client.pause(task.id)


async def test_the_verbs_take_a_task_as_well_as_its_id(each_client: Any, queue: str) -> None:
    task = await each_client.submit("a", queue=queue, delay="1h")
    (item,) = await each_client.submit_many([Submission("a", queue=queue, delay="1h")])

    assert (await each_client.get(task)).id == task.id
    assert (await each_client.get(uuid.UUID(task.id))).id == task.id
    assert (await each_client.pause(task)).state == "paused"
    assert (await each_client.resume(task)).state == "scheduled"
    assert (await each_client.reschedule(task, delay="2h")).state == "scheduled"
    assert (await each_client.run_now(task)).state == "ready"
    assert (await each_client.explain(task)).what_would_free_it
    assert (await each_client.cancel(task)).state == "cancelled"
    assert (await each_client.wait(task)).state == "cancelled"
    assert (await each_client.cancel(item)).id == item.id


async def test_dead_letters_are_redriven_and_dropped_as_they_were_listed(node: NodeProcess, queue: str) -> None:
    worker = Worker(node.url, node.key, queues=[queue])

    @worker.task("dies")
    def die(payload: object) -> None:
        raise Permanent("no")

    with Client(node.url, node.key) as client:
        async with running(worker):
            tasks = [await asyncio.to_thread(client.submit, "dies", queue=queue) for _ in range(2)]
            for task in tasks:
                await asyncio.to_thread(client.wait, task)
        letters = await asyncio.to_thread(lambda: list(client.list_dead(queue=queue)))

        assert client.redrive(letters[0]).redriven == 1
        assert client.drop(letters[1:]).dropped == 1


@pytest.mark.parametrize("wrong", [None, 17, object()])
async def test_what_is_no_task_is_refused_before_it_is_sent(wrong: Any) -> None:
    with Client("http://127.0.0.1:9", "dt_key") as client, pytest.raises(TypeError, match="a Task or the id of one"):
        client.cancel(wrong)


async def test_the_verbs_by_filter(each_client: Any, queue: str) -> None:
    await each_client.submit_many(Submission("a", queue=queue, delay="1h") for _ in range(5))

    paused = await each_client.bulk("pause", queue=queue, limit=3)
    rest = await each_client.bulk("pause", queue=queue, cursor=paused.next)
    cancelled = await each_client.bulk("cancel", queue=queue)

    assert (paused.changed, rest.changed, cancelled.changed) == (3, 2, 5)


async def test_what_is_not_there_and_what_is_not_allowed(each_client: Any, node: NodeProcess) -> None:
    with pytest.raises(NotFound) as caught:
        await each_client.get(uuid.uuid4())
    assert caught.value.request_id
    assert str(caught.value).endswith(f" (request {caught.value.request_id})")
    with pytest.raises(InvalidRequest):
        await each_client.submit("a", delay="tomorrow")
    async with AsyncClient(node.url, "dt_wrong") as stranger:
        with pytest.raises(Unauthorized):
            await stranger.submit("a")


async def test_the_signing_secret(each_client: Any) -> None:
    former = await each_client.signing_secret()
    rotated = await each_client.rotate_signing_secret("10m")

    assert former.startswith("whsec_")
    assert await each_client.signing_secret() == rotated.secret != former
    assert rotated.former_until is not None


async def test_waiting_ends_with_what_was_seen_last(each_client: Any, queue: str) -> None:
    task = await each_client.submit("a", queue=queue, delay="1h")

    with pytest.raises(WaitTimeout) as caught:
        await each_client.wait(task.id, timeout=0.1)

    assert caught.value.task.state == "scheduled"


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_lost_answer_is_asked_for_again_and_the_task_is_made_once(
    node: NodeProcess, queue: str, kind: str
) -> None:
    async with proxy_to(node.url) as proxy, AsyncClient(node.url, node.key) as direct:
        proxy.cut_answers_to = [b"POST /v1/tasks"]
        if kind == "async":
            async with AsyncClient(proxy.url, node.key) as client:
                task = await client.submit("a", {"n": 1}, queue=queue, delay="1h")
        else:
            with Client(proxy.url, node.key) as plain:
                task = await asyncio.to_thread(plain.submit, "a", {"n": 1}, queue=queue, delay="1h")

        assert proxy.cuts == 1
        assert [each.id async for each in direct.list(queue=queue)] == [task.id]


async def test_a_lost_answer_to_a_batch_makes_no_second_batch(node: NodeProcess, queue: str) -> None:
    async with proxy_to(node.url) as proxy, AsyncClient(proxy.url, node.key) as client:
        proxy.cut_answers_to = [b"POST /v1/tasks/batch"]

        result = await client.submit_many({"type": "a", "queue": queue, "delay": "1h"} for _ in range(10))

        assert proxy.cuts == 1
        listed = [each.id async for each in client.list(queue=queue, page_size=100)]
        assert sorted(listed) == sorted(filter(None, result.ids))


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_server_that_stays_away_is_an_error_in_the_end(kind: str) -> None:
    if kind == "async":
        async with AsyncClient("http://127.0.0.1:9", "dt_key", retry_for=0.3) as client:
            with pytest.raises(ServerUnreachable):
                await client.submit("a")
    else:
        with Client("http://127.0.0.1:9", "dt_key", retry_for=0.3) as plain, pytest.raises(ServerUnreachable):
            plain.submit("a")


# Quotas


async def test_a_client_with_an_admin_key_acts_for_the_tenant_that_it_names(node: NodeProcess) -> None:
    name = f"named-{uuid.uuid4().hex[:8]}"
    async with AsyncClient(node.url, node.key) as admin:
        await admin.send(ApiCall("PUT", f"/v1/tenants/{name}", bytes, b"{}"))
    with Client(node.url, node.key, tenant=name) as plain:
        first = plain.submit("a", delay="1h")
    async with AsyncClient(node.url, node.key, tenant=name) as client:
        second = await client.submit("a", delay="1h")
        listed = [task.id async for task in client.list(type="a")]

    assert {first.tenant, second.tenant} == {name}
    assert set(listed) == {first.id, second.id}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_name_that_no_tenant_has_is_refused_before_it_is_sent(kind: type[Client] | type[AsyncClient]) -> None:
    with pytest.raises(ConfigurationError, match="is not the name of a tenant"):
        kind("http://127.0.0.1:1", "dt_key", tenant="a\r\nHost: b")


RATE = 20


async def make_limited_key(node: NodeProcess) -> str:
    """A tenant of which the node knows that it may submit 20 tasks a second; its bucket is empty."""
    name = f"limited-{uuid.uuid4().hex[:8]}"
    async with AsyncClient(node.url, node.key) as admin:
        quotas = msgspec.json.encode({"quotas": {"submit_rate": RATE}})
        await admin.send(ApiCall("PUT", f"/v1/tenants/{name}", bytes, quotas))
    headers = {"Authorization": f"Bearer {node.key}", "Duetime-Tenant": name}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{node.url}/v1/keys", json={}) as answer,
    ):
        key: str = (await answer.json())["key"]
    async with AsyncClient(node.url, key, retry_for=0) as client:
        while True:
            try:
                if (await client.submit_many([{"type": "a", "delay": "1h"}] * (2 * RATE))).rejected:
                    return key
            except ServerUnavailable:
                return key


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_quota_refuses_is_sent_again_until_it_is_accepted(node: NodeProcess, is_async: bool) -> None:
    key = await make_limited_key(node)
    wanted = [{"type": "a", "payload": number, "delay": "1h"} for number in range(RATE + 5)]

    if is_async:
        async with AsyncClient(node.url, key) as client:
            result = await client.submit_many(wanted)
            payloads = [(await client.get(each)).payload for each in result.ids]
    else:
        with Client(node.url, key) as plain:
            result = plain.submit_many(wanted)
            payloads = [plain.get(each).payload for each in result.ids]

    assert (result.accepted, result.rejected) == (RATE + 5, 0)
    assert payloads == list(range(RATE + 5))


async def test_a_client_that_does_not_wait_hears_which_quota(node: NodeProcess) -> None:
    key = await make_limited_key(node)
    error: Any = None

    async with AsyncClient(node.url, key, retry_for=0) as client:
        result = None
        while error is None:
            try:
                result = await client.submit_many([{"type": "a", "delay": "1h"}] * RATE)
            except ServerUnavailable as raised:
                error = raised

    assert (error.status, error.code, error.retry_after) == (429, "quota_exceeded", 1.0)
    assert result is None or result.rejected > 0
