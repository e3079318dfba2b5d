"""Beats: tell the server every few seconds that this worker lives, and what it holds.

They come from a thread of their own with a connection of its own, so that a
handler that blocks the event loop does not make its worker look dead.  An
acknowledged beat also tells how long this worker may be sure that what it
holds is still its own: `is_fresh`.  The last one signs off, so that nobody
waits for a worker that has stopped.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection

import msgspec

from duetime.http1.messages import ExchangeError
from duetime.sdk.errors import ApiError, ServerUnreachable
from duetime.sdk.transport.pool import Pool
from duetime.sdk.transport.route import Route, failure_of
from duetime.sdk.worker.context import Held
from duetime.sdk.worker.protocol import (
    BEAT_EVERY_SECONDS,
    BEAT_PATH,
    BeatRequest,
    NamedAttempt,
    Verdicts,
    encode,
    read_verdicts,
)

logger = logging.getLogger("duetime.worker")

#: Nothing is begun when the time after which the worker counts as dead may be two thirds over.
_FRESH_SHARE = 2.0 / 3.0
#: That time, as long as the server has not said it.
_USUAL_SILENCE_SECONDS = 9.0
_TIMEOUT_SECONDS = 4.0
#: A stop does not wait longer for the server to hear of it.
SIGN_OFF_SECONDS = 2.0
_FIRST_WAIT_AFTER_ERROR = 0.2

#: The attempts that a beat named, each with whether it was named as started.
Named = list[tuple[Held, bool]]


class Beats(threading.Thread):
    """The thread that beats, from `start` to `close`."""

    def __init__(
        self,
        route: Route,
        worker: str,
        held: Collection[Held],
        on_answer: Callable[[Named, Verdicts], None],
        on_error: Callable[[ApiError], None],
    ) -> None:
        super().__init__(name="duetime-beats", daemon=True)
        self.every = BEAT_EVERY_SECONDS
        self.max_silence = _USUAL_SILENCE_SECONDS
        self._pool = Pool(route, max_kept=1)
        self._through = "" if route.proxy is None else f" through the proxy {route.proxy.name}"
        self._worker = worker
        self._held = held
        self._on_answer = on_answer
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Event()
        self._is_closing = False
        self._is_heard = False
        self._acknowledged_at = float("-inf")

    def is_fresh(self, now: float) -> bool:
        """Whether an acknowledged beat is recent enough for something new to be begun."""
        return now - self._acknowledged_at < _FRESH_SHARE * self.max_silence

    def beat_now(self) -> None:
        self._wanted.set()

    def close(self) -> None:
        """Beat no more; the last word says that the worker is gone."""
        self._is_closing = True
        self._wanted.set()

    def run(self) -> None:
        wait_after_error = _FIRST_WAIT_AFTER_ERROR
        try:
            while not self._is_closing:
                self._wanted.clear()
                sent_at = time.monotonic()
                # Copied in one step: the event loop adds and removes while we write.
                named = [(held, held.has_started) for held in list(self._held)]
                try:
                    verdicts = self._send(named)
                except ApiError as error:
                    self._is_heard = False
                    self._tell(self._on_error, error)
                    wait = wait_after_error
                    wait_after_error = min(2 * wait_after_error, self.every / 2)
                else:
                    self._is_heard = True
                    self._tell(self._acknowledge, sent_at, named, verdicts)
                    wait = sent_at + self.every - time.monotonic()
                    wait_after_error = _FIRST_WAIT_AFTER_ERROR
                if wait > 0 and not self._is_closing:
                    self._wanted.wait(wait)
            if self._is_heard:
                self._sign_off()
        finally:
            self._pool.close()

    def _sign_off(self) -> None:
        """What is still held, because its report was not acknowledged, is given back with this."""
        try:
            self._send([(held, held.started_us is not None) for held in list(self._held)], is_last=True)
        except ApiError as error:
            logger.warning("the server was not told that the worker has stopped: %s", error)

    def _send(self, named: Named, is_last: bool = False) -> Verdicts:
        attempts = [NamedAttempt(held.task.id, held.task.attempt, started) for held, started in named]
        try:
            answer = self._pool.request(
                "POST",
                BEAT_PATH,
                encode(BeatRequest(self._worker, attempts, is_last)),
                timeout=SIGN_OFF_SECONDS if is_last else _TIMEOUT_SECONDS,
            )
        except ExchangeError as error:
            raise failure_of(f"no answer to a beat{self._through}", error) from error
        answer.raise_for_status()
        try:
            return read_verdicts(answer.body)
        except msgspec.DecodeError as error:
            raise ServerUnreachable(f"the answer to a beat cannot be read: {error}") from error

    def _acknowledge(self, sent_at: float, named: Named, verdicts: Verdicts) -> None:
        """On the event loop: nothing may be begun between being fresh and hearing what is lost."""
        self._acknowledged_at = sent_at
        self._on_answer(named, verdicts)

    def _tell(self, receiver: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(receiver, *arguments)
        except RuntimeError:
            # The loop was closed under us: nobody is left to be told.
            self._is_closing = True
