"""What a handler can read about its attempt, and what the worker stores about it."""

import asyncio
import enum
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, overload

from duetime.sdk.drivers import AsyncpgConnection, AwaitedConnection, PlainConnection
from duetime.sdk.errors import TaskCancelled
from duetime.sdk.once import once
from duetime.sdk.worker.protocol import LeasedTask, Settlement

if TYPE_CHECKING:
    from duetime.sdk.worker.handlers import Handler


_NO_LIMIT = float("inf")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """The time by this machine's clock in microseconds since 1970."""
    return time.time_ns() // 1000


class Stop(enum.Enum):
    """Why a running handler has to stop."""

    CANCELLED = "the task was cancelled"
    LOST = "the attempt is no longer this worker's"
    TIMED_OUT = "the attempt's time is over"
    SHUTDOWN = "the worker is shutting down"


class Held:
    """One leased attempt, from its lease until its settlement is acknowledged.

    Compared by identity: a later attempt of the same task is another one.
    Only the worker's event loop changes it.
    """

    __slots__ = (
        "began",
        "begin_by",
        "deadline",
        "error",
        "handler",
        "has_started",
        "running",
        "settlement",
        "started_us",
        "stop",
        "task",
    )

    def __init__(self, task: LeasedTask, handler: "Handler", begin_by: float = _NO_LIMIT) -> None:
        self.task = task
        #: In monotonic time. After it, the attempt begins only if a beat has confirmed that this worker still holds
        #: it.
        self.begin_by = begin_by
        self.handler = handler
        #: Sent to the server in beats: only started attempts are charged when this worker dies.
        self.has_started = False
        #: In microseconds since 1970.
        self.started_us: int | None = None
        #: Both in monotonic time.
        self.began = self.deadline = 0.0
        self.stop: Stop | None = None
        #: The asyncio task of an async handler.
        self.running: asyncio.Task[None] | None = None
        #: The exception that the handler raised, until it is logged.
        self.error: BaseException | None = None
        #: The settlement that is reported. Set once.
        self.settlement: Settlement | None = None

    def begin(self) -> None:
        self.has_started = True
        self.started_us = now_us()
        self.began = time.monotonic()
        self.deadline = self.began + self.timeout

    @property
    def timeout(self) -> float:
        of_task, of_handler = self.task.timeout, self.handler.timeout
        if of_task is None:
            return _NO_LIMIT if of_handler is None else of_handler
        return of_task if of_handler is None or of_task < of_handler else of_handler


class Context:
    """The second argument of a handler that takes two."""

    __slots__ = ("_held", "_worker")

    def __init__(self, held: Held, worker: str) -> None:
        self._held = held
        self._worker = worker

    def __repr__(self) -> str:
        return f"<Context {self.type} {self.task_id} attempt {self.attempt}>"

    @property
    def task_id(self) -> str:
        return self._held.task.id

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of the task: pass it on to services that the handler calls."""
        return self._held.task.id

    @property
    def type(self) -> str:
        return self._held.task.type

    @property
    def queue(self) -> str:
        return self._held.task.queue

    @property
    def priority(self) -> str:
        return self._held.task.priority

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self._held.task.attempt

    @property
    def worker(self) -> str:
        """The name of the worker process."""
        return self._worker

    @property
    def run_at(self) -> datetime | None:
        return self._held.task.run_at

    @property
    def labels(self) -> dict[str, str]:
        return self._held.task.labels or {}

    @property
    def trace(self) -> str | None:
        return self._held.task.trace

    @property
    def deadline(self) -> datetime | None:
        """When the attempt times out. None: it has no limit."""
        started_us, timeout = self._held.started_us, self._held.timeout
        if started_us is None or timeout == _NO_LIMIT:
            return None
        return _EPOCH + timedelta(microseconds=started_us, seconds=timeout)

    @property
    def is_cancelled(self) -> bool:
        """True when the handler should stop: cancelled, timed out, taken over, or shutting down."""
        return self._held.stop is not None

    def check(self) -> None:
        """Raise TaskCancelled when the handler should stop."""
        if self._held.stop is not None:
            raise TaskCancelled(self._held.stop.value)

    @overload
    def once(self, connection: PlainConnection, name: str = "") -> bool: ...
    @overload
    def once(self, connection: AwaitedConnection | AsyncpgConnection, name: str = "") -> Awaitable[bool]: ...
    def once(
        self, connection: PlainConnection | AwaitedConnection | AsyncpgConnection, name: str = ""
    ) -> bool | Awaitable[bool]:
        """True exactly once per task and `name`, in the connection's own transaction; see `duetime.once`."""
        return once(connection, self.task_id, name)
