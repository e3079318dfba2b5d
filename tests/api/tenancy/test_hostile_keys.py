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
    limit = await api.call("PUT", "/v1/limits/key-*", {"rate": 1, "burst": 1})
    assert limit.status in (200, 201), limit.body
    await serving.obey()
    before = psutil.Process().memory_info().rss

    for first in range(0, KEYS, BATCH):
        tasks = [{"type": "t", "rate_key": f"key-{number}"} for number in range(first, first + BATCH)]
        answer = await api.post("/v1/tasks/batch", tasks)
        assert answer.json["accepted"] == BATCH, answer.body[:300]
    leased: list[Any] = []
    async with asyncio.timeout(60):
        while len(leased) < KEYS:
            await victim.submit()
            [of_victim] = await victim.lease(max=1)
            await victim.settle(of_victim)
            leased += await api.lease(max=1_000, wait=1)

    assert len({task["id"] for task in leased}) == KEYS
    assert psutil.Process().memory_info().rss - before < 300 * MEGABYTE
