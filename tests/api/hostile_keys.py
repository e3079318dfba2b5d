"""A tenant that limits by ten thousand keys at once; run with the other hostile tenants once there are limits."""

import asyncio
from typing import Any

import psutil
import pytest

from api.client import Api, Serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = 10_000
BATCH = 5_000
MEGABYTE = 1024 * 1024


async def test_ten_thousand_rate_keys_are_served_beside_another_tenant(serving: Serving, api: Api) -> None:
    victim = await serving.tenant(f"beside-{api.tenant_name}")
    limit = await api.call("PUT", "/v1/limits/key-*", {"rate": 0.01, "burst": 1})
    assert limit.status in (200, 201), limit.body
    before = psutil.Process().memory_info().rss

    # Two tasks of each key: the first may start, the second waits for a hundred seconds.
    for first in range(0, 2 * KEYS, BATCH):
        tasks = [{"type": "t", "rate_key": f"key-{number % KEYS}"} for number in range(first, first + BATCH)]
        answer = await api.post("/v1/tasks/batch", tasks)
        assert answer.json["accepted"] == BATCH, answer.body[:300]
    leased: list[Any] = []
    async with asyncio.timeout(60):
        while len(leased) < KEYS:
            await victim.submit()
            [of_victim] = await victim.lease(max=1)
            await victim.settle(of_victim)
            got = await api.lease(max=1_000, wait=1)
            leased += got
    more = await api.lease(max=1_000, wait=0.2)

    assert len({task["id"] for task in leased}) == KEYS
    assert more == []
    assert psutil.Process().memory_info().rss - before < 300 * MEGABYTE
