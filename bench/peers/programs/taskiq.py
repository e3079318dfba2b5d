"""taskiq under the benchmark: Redis streams, async tasks, and its scheduler for tasks of the future."""

import asyncio
import os
import sys
from datetime import UTC, datetime

import redis.asyncio
from taskiq import TaskiqScheduler
from taskiq.api import run_receiver_task
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from .common import TWENTY, Tally, make_payload, pace, run, say_ready, send_all, until_terminated

URL = os.environ["BENCH_REDIS"]
SCHEDULER_LOCK = "benchmark:scheduler"

broker = RedisStreamBroker(URL, consumer_id="0", xread_count=100)
broker = broker.with_serializer(ORJSONSerializer())
source = ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, [source])
tally: Tally


@broker.task(task_name="benchmark")
async def handle(payload: dict[str, object]) -> None:
    tally.note(payload)


async def setup() -> None:
    client = redis.asyncio.Redis.from_url(URL)
    await client.flushdb()
    await client.aclose()
    # Makes the consumer group, which reads from the start of the stream.
    await broker.startup()
    await broker.shutdown()


async def submit(mode: str, count: int) -> float:
    await broker.startup()
    in_flight = TWENTY if mode == "twenty" else 1
    seconds = await send_all(range(count), in_flight, lambda _: handle.kiq(make_payload()))
    await broker.shutdown()
    return seconds


async def lag(rate: float, seconds: float) -> int:
    await broker.startup()
    count = await pace(rate, seconds, lambda at: handle.kiq(make_payload(at)))
    await broker.shutdown()
    return count


async def burst(count: int, at: float) -> float:
    due = datetime.fromtimestamp(at, UTC)
    seconds = await send_all(range(count), TWENTY, lambda _: handle.schedule_by_time(source, due, make_payload(at)))
    await source.shutdown()
    return seconds


async def start_scheduler() -> asyncio.subprocess.Process | None:
    """Start the scheduler, a process of its own, if no other worker has started it."""
    client = redis.asyncio.Redis.from_url(URL)
    is_first = await client.set(SCHEDULER_LOCK, os.getpid(), nx=True, ex=10)
    await client.aclose()
    if not is_first:
        return None
    command = ["-m", "taskiq", "scheduler", "programs.taskiq:scheduler", "--update-interval", "1"]
    return await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.DEVNULL)


async def work(file: str) -> None:
    global tally
    tally = Tally(file)
    writing = asyncio.create_task(tally.write_forever())
    await broker.startup()
    receiving = asyncio.create_task(
        run_receiver_task(broker, validate_params=False, max_async_tasks=100, max_prefetch=0)
    )
    process = await start_scheduler()
    say_ready()
    await until_terminated()
    if process is not None:
        process.terminate()
        await process.wait()
    receiving.cancel()
    await asyncio.wait([receiving], timeout=5)
    await broker.shutdown()
    writing.cancel()


if __name__ == "__main__":
    run(setup=setup, submit=submit, lag=lag, burst=burst, work=work)
