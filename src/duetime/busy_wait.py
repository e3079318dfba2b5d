"""Keep the event loop spinning for a moment while one client asks again and again.

A process that waits for an event sleeps. Waking it takes a part of the time that a commit takes, and meanwhile
the processor's caches have lost what the process needs. So while a client sends each request right after the
reply to the one before, the event loop spins without waiting, for at most a millisecond. A request that comes
alone costs nothing.
"""

import asyncio
import os
import time
from collections.abc import Callable

#: How long to spin while waiting for the reply and for the next request.
ANSWER_SECONDS = 0.001
QUESTION_SECONDS = 0.0003


def _count_processors() -> int:
    """The processors that this process may use, or all of them if the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BusyWait:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic, processors: int | None = None) -> None:
        self._monotonic = monotonic
        #: With a single processor, a process that spins delays the reply.
        self._may_stay = (processors or _count_processors()) > 1
        self._answered_at = -1.0
        #: The last request came right after a reply.
        self._is_asked_on = False
        self._until = 0.0
        self._is_going_round = False

    def asked(self) -> None:
        """Note a request that came while no other was under way."""
        now = self._monotonic()
        self._is_asked_on = self._may_stay and now - self._answered_at < QUESTION_SECONDS
        if self._is_asked_on:
            self._stay_until(now + ANSWER_SECONDS)

    def answered(self) -> None:
        """Note that no request is under way any more."""
        now = self._answered_at = self._monotonic()
        if self._is_asked_on:
            self._stay_until(now + QUESTION_SECONDS)

    def _stay_until(self, until: float) -> None:
        self._until = until
        if not self._is_going_round:
            self._is_going_round = True
            asyncio.get_running_loop().call_soon(self._go_round)

    def _go_round(self) -> None:
        if self._monotonic() < self._until:
            asyncio.get_running_loop().call_soon(self._go_round)
        else:
            self._is_going_round = False
