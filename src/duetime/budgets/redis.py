"""Budgets in Redis, for clusters whose database is busy enough.

Buckets expire when they are full.  A missing bucket fills from the time since which
Redis has known of budgets: a key that never expires, and is lost only when Redis has
forgotten everything, stores that time.
"""

import asyncio
from collections.abc import Mapping

from duetime.budgets.contract import Want, first_tokens
from duetime.errors import Unavailable, UsageError

TIMEOUT_SECONDS = 0.5

#: All in one slot of a Redis Cluster, because one script takes from many buckets.
_PREFIX = "{duetime:budget}:"
_TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local since = tonumber(redis.call('GET', KEYS[1]))
if not since then
    since = now
    redis.call('SET', KEYS[1], string.format('%.6f', now))
end
local granted = {}
for place = 2, #KEYS do
    local base = (place - 2) * 4
    local rate, burst = tonumber(ARGV[base + 1]), tonumber(ARGV[base + 2])
    local first, wanted = tonumber(ARGV[base + 3]), tonumber(ARGV[base + 4])
    local kept = redis.call('HMGET', KEYS[place], 'tokens', 'at')
    local tokens
    if kept[1] then
        tokens = tonumber(kept[1]) + rate * math.max(0, now - tonumber(kept[2]))
    else
        tokens = first + rate * math.max(0, now - since)
    end
    tokens = math.min(burst, tokens)
    local given = math.min(math.floor(tokens), wanted)
    redis.call('HSET', KEYS[place], 'tokens', string.format('%.9f', tokens - given), 'at', string.format('%.6f', now))
    redis.call('PEXPIRE', KEYS[place], math.ceil((burst / rate + 1) * 1000))
    granted[place - 1] = string.format('%.9f', given)
end
return granted
"""


class RedisBudgets:
    def __init__(self, url: str) -> None:
        try:
            from redis import RedisError
            from redis.asyncio import Redis
        except ImportError as error:
            raise UsageError("redis_url needs the Redis client: pip install 'duetime[redis]'") from error
        self._away = (RedisError, OSError, TimeoutError)
        try:
            self._redis: Redis = Redis.from_url(
                url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, decode_responses=True
            )
        except ValueError as error:
            raise UsageError(f"redis_url: {error}") from error
        self._script = self._redis.register_script(_TAKE)

    async def take(self, wanted: Mapping[str, Want]) -> dict[str, float]:
        keys = [_PREFIX + "since", *(_PREFIX + "of:" + name for name in wanted)]
        numbers = [
            repr(number)
            for want in wanted.values()
            for number in (want.rate, want.burst, first_tokens(want.rate, want.burst), want.tokens)
        ]
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                granted: list[str] = await self._script(keys=keys, args=numbers)
        except self._away as error:
            raise Unavailable(f"Redis does not answer: {error or type(error).__name__}") from error
        return {name: float(each) for name, each in zip(wanted, granted, strict=True)}

    async def close(self) -> None:
        await self._redis.aclose()
