"""The servers that are measured on are set up as the page says."""

from pathlib import Path

import pytest
from bench.servers import Redis
from redis.asyncio import Redis as RedisClient


@pytest.mark.parametrize(("is_synced", "setting"), [(False, "everysec"), (True, "always")])
async def test_redis_syncs_its_log_as_the_peer_asks(tmp_path: Path, is_synced: bool, setting: str) -> None:
    server = Redis(tmp_path / "redis", is_synced=is_synced)
    await server.start()
    try:
        async with RedisClient.from_url(server.url) as client:
            found = await client.config_get("append*")
    finally:
        await server.stop()

    assert (found["appendonly"], found["appendfsync"]) == ("yes", setting)
