"""A worker of a queue with a cap: it notes at once when each attempt begins and ends.

Run as `python -m bench.fairness.guarded FILE URL KEY QUEUE`.  A line is `b` or `e`, the
task, the attempt, and the time by the machine's clock; it is in the file before
the handler goes on, so no line is lost in a kill.
"""

import asyncio
import logging
import os
import sys
import time
from typing import Any

import uvloop

from bench.fairness.hands import Readiness
from bench.peers.programs.common import until_terminated
from duetime import Context, Worker

TYPE = "guarded"


async def main(file: str, url: str, key: str, queue: str) -> None:
    journal = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    worker = Worker(url, key, queues=[queue], concurrency=20)

    def note(word: str, context: Context) -> None:
        os.write(journal, f"{word} {context.task_id} {context.attempt} {time.time():.6f}\n".encode())

    @worker.task(TYPE)
    async def work(payload: dict[str, Any], context: Context) -> None:
        note("b", context)
        try:
            await asyncio.sleep(payload["seconds"])
        finally:
            note("e", context)

    log = logging.getLogger("duetime.worker")
    log.setLevel(logging.INFO)
    log.addHandler(Readiness(1))
    working = asyncio.create_task(worker.run_async())
    terminated = asyncio.create_task(until_terminated())
    await asyncio.wait({working, terminated}, return_when=asyncio.FIRST_COMPLETED)
    worker.stop()
    await working


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
