"""SDK workers of many tenants in one process: a small machine does not have enough cores for a process each.

Run as `python -m bench.fairness.hands FILE URL CONCURRENCY KEY…`, a worker for each
key; it notes the payload's `who` and `at`.
"""

import asyncio
import logging
import sys
from typing import Any

import uvloop

from bench.fairness.records import Notes
from bench.peers.programs.common import say_ready, until_terminated
from duetime import Worker

TYPE = "bench"
_WRITE_SECONDS = 0.02


class Readiness(logging.Handler):
    """Wait until each worker asks for tasks, as its log says."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._left = workers

    def emit(self, record: logging.LogRecord) -> None:
        if " takes tasks of " in record.getMessage():
            self._left -= 1
            if not self._left:
                # A log line for each task would affect the figures.
                logging.getLogger(record.name).setLevel(logging.WARNING)
                say_ready()


def make_worker(url: str, key: str, concurrency: int, notes: Notes) -> Worker:
    worker = Worker(url, key, concurrency=concurrency)

    @worker.task(TYPE)
    async def note(payload: dict[str, Any]) -> None:
        notes.note(payload["who"], payload["at"])

    return worker


async def main(file: str, url: str, concurrency: int, keys: list[str]) -> None:
    notes = Notes(file)
    log = logging.getLogger("duetime.worker")
    log.setLevel(logging.INFO)
    log.addHandler(Readiness(len(keys)))
    workers = [make_worker(url, key, concurrency, notes) for key in keys]

    async def write() -> None:
        while True:
            await asyncio.sleep(_WRITE_SECONDS)
            notes.write()

    writing = asyncio.create_task(write())
    working = [asyncio.create_task(worker.run_async()) for worker in workers]
    terminated = asyncio.create_task(until_terminated())
    await asyncio.wait({*working, terminated}, return_when=asyncio.FIRST_COMPLETED)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*working)
    writing.cancel()
    notes.write()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
