"""A worker process of `duetime bench`: its handlers do nothing, and it reports how many have run.

Run as `python -m duetime.cli.bench.worker QUEUE`, with address and key in the
environment.  It writes one `Told` per line to standard output, and stops when its
standard input ends: together with the process that started it, however that ended.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from duetime.cli.connect import sentence_of
from duetime.sdk.errors import Forbidden, SdkError
from duetime.sdk.worker.worker import Worker

TASK_TYPE = "duetime-bench"
#: The interval of reports while there is work. Without work it is ten times longer.
_TELL_SECONDS = 0.01


class Told(msgspec.Struct, omit_defaults=True):
    """What a worker process has done since it began, and which starts are new."""

    done: int = 0
    cpu: float = 0.0
    #: Number of a task → when its handler began, as seconds since 1970.
    starts: list[tuple[int, float]] = []
    error: str | None = None
    is_forbidden: bool = False


class Numbered(msgspec.Struct):
    """The payload. Only tasks whose start is measured have a number."""

    number: int | None = None


async def main(queue: str) -> int:
    # The installation is measured, so the workers lease as many tasks at a time as there are.
    worker = Worker(queues=[queue], concurrency=1_000, name="duetime-bench", shutdown_timeout=5.0)
    done = 0
    starts: list[tuple[int, float]] = []

    @worker.task(TASK_TYPE)
    async def nothing(payload: Numbered) -> None:
        nonlocal done
        done += 1
        if payload.number is not None:
            starts.append((payload.number, time.time()))

    def tell(error: SdkError | None = None) -> None:
        words = None if error is None else sentence_of(error, os.environ.get("DUETIME_URL", ""))
        told = Told(done, time.process_time(), starts.copy(), words, isinstance(error, Forbidden))
        starts.clear()
        os.write(sys.stdout.fileno(), msgspec.json.encode(told) + b"\n")

    async def tell_forever() -> None:
        told, quiet = -1, 0
        while True:
            quiet += 1
            if done > told or quiet >= 10:
                tell()
                told, quiet = done, 0
            await asyncio.sleep(_TELL_SECONDS)

    working = asyncio.create_task(worker.run_async())
    telling = asyncio.create_task(tell_forever())
    # A worker can be stopped only once it runs, which it does after its first step.
    await asyncio.sleep(0)
    threading.Thread(target=_stop_at_end_of_input, args=(worker,), daemon=True).start()
    try:
        await working
    except SdkError as error:
        tell(error)
        return 1
    finally:
        telling.cancel()
    tell()
    return 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Use the faster event loop, if there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _stop_at_end_of_input(worker: Worker) -> None:
    os.read(sys.stdin.fileno(), 1)
    worker.stop()


if __name__ == "__main__":
    # The parent process reports errors. Retries are of no interest to the user.
    logging.basicConfig(level=logging.CRITICAL)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            sys.exit(runner.run(main(sys.argv[1])))
        except BrokenPipeError:
            # The parent process no longer reads.
            os._exit(1)
