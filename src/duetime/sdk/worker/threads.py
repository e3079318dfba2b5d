"""Threads for plain handlers: a fixed number, with batches for input and output.

The threads are daemons: a handler that never returns must not keep a worker from
ending.  Each run has its own context (contextvars).
"""

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable

from duetime.sdk.worker.context import Held
from duetime.sdk.worker.protocol import Settlement

Finished = tuple[Held, Settlement]


class Threads:
    def __init__(
        self, count: int, perform: Callable[[Held], Settlement], on_finished: Callable[[list[Finished]], None]
    ) -> None:
        self._count = count
        self._perform = perform
        self._on_finished = on_finished
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self._finished: deque[Finished] = deque()
        self._is_told = False
        self._started = 0

    def put(self, held: Held) -> None:
        """The caller never runs more than there are threads."""
        if self._started < self._count:
            self._started += 1
            threading.Thread(target=self._work, name=f"duetime-{self._started}", daemon=True).start()
        self._queue.put(held)

    def close(self) -> None:
        for _ in range(self._started):
            self._queue.put(None)

    def _work(self) -> None:
        while (held := self._queue.get()) is not None:
            settlement = contextvars.copy_context().run(self._perform, held)
            self._finished.append((held, settlement))
            # One call for all that finish before the loop handles it.
            if not self._is_told:
                self._is_told = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # The worker is gone; it has reported this attempt already.

    def _collect(self) -> None:
        # Cleared first: a thread that finishes from now on notifies the loop again.
        self._is_told = False
        finished = []
        while self._finished:
            finished.append(self._finished.popleft())
        self._on_finished(finished)
