"""A worker process for the throughput scenarios: no-op handlers, counted in a file that the scenario reads.

Run as `python -m bench.hands URL KEY QUEUE FILE`; the count is the file's length in bytes.
"""

import asyncio
import os
import sys

import uvloop

from duetime import Worker


async def main(url: str, key: str, queue: str, file: str) -> None:
    worker = Worker(url, key, queues=[queue], concurrency=1_000)
    counted = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    done = 0

    @worker.task("bench")
    async def nothing(payload: object) -> None:
        nonlocal done
        done += 1

    async def tell() -> None:
        told = 0
        while True:
            await asyncio.sleep(0.01)
            if done > told:
                os.write(counted, b"." * (done - told))
                told = done

    telling = asyncio.create_task(tell())
    await worker.run_async()
    telling.cancel()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:5]))
