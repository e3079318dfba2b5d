"""Flow control through both clients, against a real node."""

import uuid
from datetime import timedelta
from typing import Any

import pytest

from duetime import Debounce, RateLimit, Unique
from duetime.sdk.errors import InvalidRequest, ServerUnavailable


@pytest.fixture
def type_name() -> str:
    return f"flow.{uuid.uuid4().hex[:12]}"


async def test_keys_of_limits_can_be_read_back(each_client: Any, queue: str) -> None:
    task = await each_client.submit("a", queue=queue, concurrency_key="customer-42", rate_key="shop-7")

    read = await each_client.get(task.id)
    assert (read.concurrency_key, read.rate_key) == ("customer-42", "shop-7")


async def test_a_unique_task_is_given_back(each_client: Any, type_name: str) -> None:
    first = await each_client.submit(type_name, 1, unique=Unique(key="k", period=timedelta(hours=1)), delay="1h")

    again = await each_client.submit(type_name, 2, unique={"key": "k"})
    batch = await each_client.submit_many([{"type": type_name, "unique": {"key": "k"}}])

    assert (again.id, again.payload, batch.ids) == (first.id, 1, [first.id])
    assert batch.results[0].repeated
    assert (await each_client.submit(type_name, 3, unique=Unique())).id != first.id


async def test_a_debounced_task_says_which_one_it_replaces(each_client: Any, type_name: str) -> None:
    first = await each_client.submit(type_name, 1, debounce=Debounce("k", timedelta(hours=1), timeout="2h"))

    second = await each_client.submit(type_name, 2, debounce={"key": "k", "period": "1h"})
    batch = await each_client.submit_many([{"type": type_name, "debounce": Debounce("k", "1h")}])

    assert (first.replaces, second.replaces, batch.results[0].replaces) == (None, first.id, second.id)
    assert (await each_client.get(first.id)).state == "cancelled"
    with pytest.raises(InvalidRequest, match=r"debounce\.period"):
        await each_client.submit(type_name, debounce={"key": "k", "period": "soon"})


async def test_a_rate_limit_is_raised_at_once_and_says_when_to_come_again(each_client: Any, type_name: str) -> None:
    # There is room again within the time for which the client would try by itself.
    await each_client.put_type(type_name, rate_limit=RateLimit(1, 20))
    await each_client.submit(type_name)

    with pytest.raises(ServerUnavailable) as refused:
        await each_client.submit(type_name)

    assert (refused.value.status, refused.value.code) == (429, "rate_limited")
    assert 1 <= (refused.value.retry_after or 0) <= 20
