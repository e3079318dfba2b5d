"""Beats: tell the server every few seconds that this worker is alive, and what it holds.

A separate thread with a separate connection sends them, so that a handler that
blocks the event loop does not make its worker look dead.  An acknowledged beat
also tells how long this worker may be sure that it still holds its attempts:
`is_fresh`.  The last beat signs off, so that nobody waits for a stopped worker.
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

#: Nothing begins when two thirds of the time after which the worker counts as dead may be over.
_FRESH_SHARE = 2.0 / 3.0
#: That time, until the server has said it.
_USUAL_SILENCE_SECONDS = 9.0
_TIMEOUT_SECONDS = 4.0
#: A stop waits no longer than this for the last beat.
SIGN_OFF_SECONDS = 2.0
_FIRST_WAIT_AFTER_ERROR = 0.2

#: The attempts that a beat named, and whether each was named as started.
Named = list[tuple[Held, bool]]


class Beats(threading.Thread):
    """The thread that sends beats, from `start` to `close`."""

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
        """Whether a beat was acknowledged recently enough to begin something new."""
        return now - self._acknowledged_at < _FRESH_SHARE * self.max_silence

    def beat_now(self) -> None:
        self._wanted.set()

    def close(self) -> None:
        """Stop sending beats. The last one says that the worker is leaving."""
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
        """Send the last beat, which also releases attempts whose report was not acknowledged."""
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
        """Runs in one step on the event loop. Nothing may begin after `is_fresh` is renewed until lost ones stop."""
        self._acknowledged_at = sent_at
        self._on_answer(named, verdicts)

    def _tell(self, receiver: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(receiver, *arguments)
        except RuntimeError:
            # The loop was closed meanwhile: there is nothing left to inform.
            self._is_closing = True
