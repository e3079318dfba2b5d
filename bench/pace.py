"""Producers that go on for minutes: a process of its own that submits in batches through the SDK.

    steady RATE SECONDS AHEAD        RATE tasks a second, each due AHEAD seconds after it is submitted, one
                                     after the other; 0: due at once.  Its lag counts from then
    full SECONDS FILE                as many as the workers that count in FILE can do: never more than
                                     BACKLOG tasks ahead of them
    fill COUNT FIRST LAST            COUNT tasks, due at random between two epoch seconds, as fast as possible

Run as `python -m bench.pace WORD …`; the node is at BENCH_URL, its key in
BENCH_KEY.  It goes on when the node is away for a while.  SIGTERM ends it early;
its last line is what it did, as JSON.
"""

import asyncio
import json
import math
import os
import random
import signal
import sys
import time
from datetime import UTC, datetime

import uvloop

from bench.crew import LINE_BYTES
from bench.peers.programs.common import PAYLOAD, make_payload, split
from bench.peers.programs.duetime import BATCH, CONNECTIONS, TYPE, connect
from duetime import AsyncClient
from duetime.sdk.errors import SdkError

BACKLOG = 20_000
FILL_BATCH = 5_000
#: Enough to keep the server busy: the cost of waiting tasks is measured, not that of many large calls at once.
FILL_CONNECTIONS = 3
#: A batch of a steady pace holds the tasks that are due within this time.
BATCH_SECONDS = 0.05
_IN_FLIGHT = 8
_LOOK_SECONDS = 0.005
_AWAY_SECONDS = 0.5


class Producer:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._ends_at = math.inf
        self._is_stopped = asyncio.Event()
        self.count = 0
        self.errors = 0
        self.error = ""

    def end_after(self, seconds: float) -> None:
        self._ends_at = time.monotonic() + seconds

    def stop(self) -> None:
        self._is_stopped.set()

    @property
    def _is_over(self) -> bool:
        return self._is_stopped.is_set() or time.monotonic() >= self._ends_at

    async def run_steady(self, rate: float, ahead: float) -> None:
        """Send batches at the pace, whether or not the earlier ones are answered, up to a limit."""
        size = max(1, min(BATCH, round(rate * BATCH_SECONDS)))
        room = asyncio.Semaphore(_IN_FLIGHT)
        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while not self._is_over:
                await asyncio.sleep(began + number * size / rate - time.monotonic())
                await room.acquire()
                sending = group.create_task(self._send(_make_batch(size, rate, ahead)))
                sending.add_done_callback(lambda _: room.release())
                number += 1

    async def run_full(self, file: str) -> None:
        before = os.stat(file).st_size // LINE_BYTES
        batch: list[dict[str, object]] = [{"type": TYPE, "payload": PAYLOAD}] * BATCH
        sent = 0

        async def send() -> None:
            nonlocal sent
            while not self._is_over:
                if before + sent + BATCH - os.stat(file).st_size // LINE_BYTES > BACKLOG:
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
                sent += BATCH
                if not await self._send(batch):
                    sent -= BATCH

        await asyncio.gather(*[send() for _ in range(CONNECTIONS)])

    async def run_fill(self, count: int, first: float, last: float) -> None:
        """Due times in random order; the same seed gives the same times."""
        chance = random.Random(1)
        sizes = split(count, FILL_BATCH)

        async def send() -> None:
            for size in sizes:
                dates = [datetime.fromtimestamp(chance.uniform(first, last), UTC) for _ in range(size)]
                batch: list[dict[str, object]] = [{"type": TYPE, "payload": PAYLOAD, "run_at": at} for at in dates]
                while not self._is_over and not await self._send(batch):
                    pass

        await asyncio.gather(*[send() for _ in range(FILL_CONNECTIONS)])

    async def _send(self, batch: list[dict[str, object]]) -> bool:
        try:
            result = await self._client.submit_many(batch)
        except SdkError as error:
            self.errors += 1
            self.error = str(error)
            await asyncio.sleep(_AWAY_SECONDS)
            return False
        self.count += result.accepted
        self.errors += result.rejected
        return True


def _make_batch(size: int, rate: float, ahead: float) -> list[dict[str, object]]:
    """Tasks that are due one after the other, on whole milliseconds; or all now."""
    now = time.time()
    if not ahead:
        return [{"type": TYPE, "payload": make_payload(now)}] * size
    batch: list[dict[str, object]] = []
    for place in range(size):
        at = math.ceil((now + ahead + place / rate) * 1000) / 1000
        batch.append({"type": TYPE, "payload": make_payload(at), "run_at": datetime.fromtimestamp(at, UTC)})
    return batch


async def main(words: list[str]) -> None:
    async with connect() as client:
        producer = Producer(client)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, producer.stop)
        cpu = time.process_time()
        match words:
            case ["steady", rate, seconds, ahead]:
                producer.end_after(float(seconds))
                await producer.run_steady(float(rate), float(ahead))
            case ["full", seconds, file]:
                producer.end_after(float(seconds))
                await producer.run_full(file)
            case ["fill", count, first, last]:
                await producer.run_fill(int(count), float(first), float(last))
            case _:
                sys.exit("usage: steady RATE SECONDS AHEAD | full SECONDS FILE | fill COUNT FIRST LAST")
        did = {"count": producer.count, "errors": producer.errors, "error": producer.error}
        # The figure does not contain the process's start.
        print(json.dumps({**did, "cpu_seconds": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1:]))
