"""What all peer programs in Python share: their words, their payload, their pace, and the file that they count in.

A program is run as a module of this folder, `python -m programs.NAME WORD …`, from
the folder above it, so that a file named like the library it drives (`celery.py`)
does not hide the library; it imports this module by `from .common import …`.  Only
the standard library is used here, because each peer has an environment of its own.

    setup                   create what is needed, empty what was there
    submit MODE COUNT       one, twenty or bulk: tasks due now
    lag RATE SECONDS        one at a time at this rate, each with its time in it
    burst COUNT AT          all due at this epoch second
    work FILE               work until SIGTERM; says `ready` once it consumes

A program ends with

    if __name__ == "__main__":
        run(setup=setup, submit=submit, lag=lag, burst=burst, work=work)

whose functions are plain or async; `submit` and `burst` return the seconds they
took, `lag` how many it submitted, and `run` prints the JSON line.  The JSON line also
contains what `send_all` and `send_each` measured: when the first task was sent, and the
CPU time until the last was acknowledged.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

#: About 150 bytes as JSON.
PAYLOAD: dict[str, object] = {"to": "user@example.com", "template": "welcome", "n": 12345, "pad": "x" * 80}
#: How many submissions `twenty` keeps under way.
TWENTY = 20

_LINE = "%23.6f\n"
_BLANK = b" " * 23 + b"\n"
_WRITE_SECONDS = 0.01
_measured: dict[str, float] = {}


def make_payload(at: float | None = None) -> dict[str, object]:
    """The payload; `at` is the epoch second from which its start is measured."""
    return PAYLOAD if at is None else {**PAYLOAD, "at": at}


class Tally:
    """Counts what handlers did, in lines of 24 bytes of a file that several processes share.

    Make it in the process that runs the handlers, after any fork, and let it
    write: `start()` in a thread (for handlers in threads or processes), or
    `await write_forever()` as a task of the loop (for async handlers, which a
    thread would interrupt).
    """

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # Append and popleft of a deque are atomic: handlers may run in threads.
        self._lines: deque[bytes] = deque()

    def note(self, payload: Mapping[str, Any]) -> None:
        """Note a start; the handler calls this first."""
        at = payload.get("at")
        self._lines.append(_BLANK if at is None else (_LINE % (1000.0 * (time.time() - at))).encode())

    def write(self) -> None:
        """Append what was noted, in one write."""
        if count := len(self._lines):
            take = self._lines.popleft
            os.write(self._file, b"".join([take() for _ in range(count)]))

    def start(self) -> None:
        """Write every 10 ms from a thread, until the process ends."""
        threading.Thread(target=self._write_in_thread, name="tally", daemon=True).start()

    def _write_in_thread(self) -> None:
        while True:
            time.sleep(_WRITE_SECONDS)
            self.write()

    async def write_forever(self) -> None:
        """Write every 10 ms from the loop, until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(_WRITE_SECONDS)
                self.write()
        finally:
            self.write()


def split(count: int, size: int) -> Iterator[int]:
    """The sizes of batches that make up `count`: all of `size`, except the last, which has the rest."""
    while count > 0:
        yield min(size, count)
        count -= size


async def send_all(parts: Iterable[T], width: int, send: Callable[[T], Awaitable[object]]) -> float:
    """Send every part, with `width` of them under way. Return the seconds from first send to last acknowledgement.

    One by one: `send_all(range(count), 1, …)`; bulk: `send_all(split(count, 1000), 3, …)`.
    """
    left = iter(parts)

    async def sender() -> None:
        for part in left:
            await send(part)

    with _Measuring() as measuring:
        await asyncio.gather(*[sender() for _ in range(width)])
    return measuring.seconds


def send_each(parts: Iterable[T], send: Callable[[T], object]) -> float:
    """Like `send_all`, but one after the other, for libraries without asyncio."""
    with _Measuring() as measuring:
        for part in parts:
            send(part)
    return measuring.seconds


class _Measuring:
    """Measures the seconds of a block, and keeps what the JSON line says besides them."""

    seconds = 0.0

    def __enter__(self) -> "_Measuring":
        _measured["began_at"] = time.time()
        self._began, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._began
        _measured["cpu_seconds"] = time.process_time() - self._cpu


async def pace(rate: float, seconds: float, send: Callable[[float], Awaitable[object]]) -> int:
    """Call `send(at)` at the rate, one at a time; `at` is the time just before the call. Return how often."""
    began, count = time.monotonic(), int(rate * seconds)
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        await send(time.time())
    return count


def pace_each(rate: float, seconds: float, send: Callable[[float], object]) -> int:
    """Like `send_each`, without asyncio."""
    began, count = time.monotonic(), int(rate * seconds)
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        send(time.time())
    return count


def say_ready() -> None:
    """Tell the scenario that this worker consumes."""
    print("ready", flush=True)


async def until_terminated() -> None:
    """Return at SIGTERM or SIGINT."""
    wanted = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, wanted.set)
    await wanted.wait()


def run(
    *,
    setup: Callable[[], Any],
    submit: Callable[[str, int], Any],
    lag: Callable[[float, float], Any],
    burst: Callable[[int, float], Any] | None = None,
    work: Callable[[str], Any],
) -> None:
    """Run what the command line names."""
    match sys.argv[1:]:
        case ["setup"]:
            _call(setup)
        case ["submit", mode, count]:
            _say(count=int(count), seconds=_call(submit, mode, int(count)), **_measured)
        case ["lag", rate, seconds]:
            _say(count=_call(lag, float(rate), float(seconds)))
        case ["burst", count, at] if burst is not None:
            _say(count=int(count), seconds=_call(burst, int(count), float(at)), **_measured)
        case ["work", file]:
            _call(work, file)
        case _:
            sys.exit("usage: setup | submit MODE COUNT | lag RATE SECONDS | burst COUNT AT | work FILE")


def _call(function: Callable[..., Any], *arguments: object) -> Any:
    if not inspect.iscoroutinefunction(function):
        return function(*arguments)
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(function(*arguments))


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)
