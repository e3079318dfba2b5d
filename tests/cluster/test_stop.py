"""Two processes that stop under load: whichever goes first, the other does not wait for it, and nothing is alarming."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import services
from cluster.lines import PATIENCE_SECONDS, children_of
from duetime import AsyncClient
from duetime.sdk.errors import ApiError
from faults.processes import WorkerProcess
from nodes import NodeProcess

QUEUES = ("one", "two", "three", "four")
#: What a stop may say.  A worker that asks a process which is stopping is told so, and that is logged.
EXPECTED = re.compile(
    r"\[info +\] |\[warning +\] (request not served .*the node is stopping|the supervisor is gone"
    r"|a node process ended and is started again)"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as folder:
        yield folder


async def submit_for_ever(client: AsyncClient) -> None:
    tasks = [{"type": "fault.async", "queue": queue, "payload": {}} for queue in QUEUES] * 10
    with suppress(ApiError):
        while True:
            await client.submit_many(tasks)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("first", [None, 0, 1], ids=["at once", "first", "second"])
async def test_a_stop_under_load_is_quiet_and_waits_for_nobody(folder: Path, first: int | None) -> None:
    pair = NodeProcess(folder / "node", arguments=("--processes", "2")).start()
    workers = [WorkerProcess(folder, f"w{each}", pair.url, pair.key, ",".join(QUEUES)) for each in range(4)]
    for worker in workers:
        worker.start()
    try:
        async with AsyncClient(pair.url, pair.key, retry_for=30.0) as client:
            load = asyncio.create_task(submit_for_ever(client))
            async with asyncio.timeout(PATIENCE_SECONDS):
                # All have settled something, so each of them beats and polls, at one process or the other.
                while not all(worker.journal.exists() for worker in workers):
                    await asyncio.sleep(0.02)

            if first is not None:
                os.kill(children_of(pair.pid)[first], signal.SIGTERM)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while "stopping" not in pair.log.read_text():
                        await asyncio.sleep(0.001)
            code = await asyncio.to_thread(pair.stop)
            load.cancel()
            await asyncio.wait([load])
    finally:
        for worker in workers:
            worker.kill()
        if pair.is_running:
            pair.kill()

    said = pair.log.read_text().splitlines()
    assert code == 0
    # A server that waits for its connections in vain says so, and ends requests with tracebacks.
    assert [line for line in said if not EXPECTED.search(line)] == []
    assert sum("node stopped" in line for line in said) == 2
    # Nobody tried again and again to reach the one that was gone.
    assert sum("node cannot be reached" in line for line in said) <= 2
