"""A worker process of `duetime bench`: handlers that do nothing, and a word on how many did.

Run as `python -m duetime.cli.bench.worker QUEUE`, with address and key in the
environment.  It tells on standard output, one `Told` a line, and stops
when its standard input ends: with whoever started it, however that one ended.
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
#: Told this often while there is work, and ten times less often while there is none.
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
    """The payload; only tasks whose start is looked for have a number."""

    number: int | None = None


async def main(queue: str) -> int:
    # The installation is measured, so the workers take as much at a time as there is.
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
    """The faster event loop, where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _stop_at_end_of_input(worker: Worker) -> None:
    os.read(sys.stdin.fileno(), 1)
    worker.stop()


if __name__ == "__main__":
    # Whoever started it says what went wrong; what is only tried again is nobody's concern.
    logging.basicConfig(level=logging.CRITICAL)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            sys.exit(runner.run(main(sys.argv[1])))
        except BrokenPipeError:
            # Nobody listens any more.
            os._exit(1)
