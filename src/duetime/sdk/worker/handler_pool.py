"""Run handlers: queue attempts and run them, on the event loop and in threads.

The pool does not talk to the server.  A slot stays taken until its handler has
really returned, even when the attempt was reported long before (a thread that
timed out cannot be ended from outside).
"""

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Iterable

from duetime.sdk.worker import attempt_log, handlers
from duetime.sdk.worker.context import Held, Stop
from duetime.sdk.worker.protocol import Settlement
from duetime.sdk.worker.settings import WorkerSettings
from duetime.sdk.worker.threads import Finished, Threads

#: If a cancelled async handler has not ended after this time, the attempt is reported without waiting for it.
_CLEANUP_SECONDS = 5.0
#: Handlers that never wait share the event loop with everything else. One turn of them takes about this long.
_STEP_SECONDS = 0.002


class _Runner:
    """One asyncio task that runs async handlers."""

    __slots__ = ("has_suspended", "is_busy", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        #: A handler is running.
        self.is_busy = False
        self.has_suspended = False


class HandlerPool:
    def __init__(
        self,
        settings: WorkerSettings,
        worker: str,
        may_begin: Callable[[], bool],
        on_finished: Callable[[Held], None],
        report: Callable[[Held, Settlement], None],
        on_late: Callable[[], None],
    ) -> None:
        """`on_late` is called with attempts that are too late to begin. `confirm` lets them begin."""
        self._worker = worker
        self._may_begin = may_begin
        self._on_late = on_late
        self._on_finished = on_finished
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(settings.threads, self._perform_plain, self._collect)
        self._async_slots = settings.concurrency
        self._plain_slots = settings.threads
        self._waiting_async: deque[Held] = deque()
        self._waiting_plain: deque[Held] = deque()
        #: Another worker may have these by now. In the order of their arrival.
        self._late: dict[Held, None] = {}
        self.running: set[Held] = set()
        #: Created by the code that waits for it.
        self._idle: asyncio.Event | None = None
        self._context = contextvars.copy_context()
        self._is_launching = False
        self._look_at = float("inf")
        self._look_timer: asyncio.TimerHandle | None = None

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting_async or self._waiting_plain)

    @property
    def load(self) -> int:
        """The attempts that wait or run."""
        return len(self._waiting_async) + len(self._waiting_plain) + len(self._late) + len(self.running)

    def add(self, held: Held) -> None:
        (self._waiting_async if held.handler.is_async else self._waiting_plain).append(held)

    def take_waiting(self) -> list[Held]:
        waiting = [*self._late, *self._waiting_async, *self._waiting_plain]
        self._late.clear()
        self._waiting_async.clear()
        self._waiting_plain.clear()
        return waiting

    def free_slots(self, is_async: bool) -> int:
        return self._async_slots if is_async else self._plain_slots

    def add_first(self, held: Iterable[Held]) -> None:
        """Add attempts that begin before the waiting ones."""
        for each in reversed(list(held)):
            (self._waiting_async if each.handler.is_async else self._waiting_plain).appendleft(each)

    def confirm(self, confirmed: Iterable[Held]) -> None:
        """The server has confirmed that this worker still holds these: they may begin whenever there is room."""
        for held in confirmed:
            held.begin_by = float("inf")
        if self._late:
            ours = [held for held in self._late if held.begin_by == float("inf")]
            for held in ours:
                del self._late[held]
            self.add_first(ours)

    def _is_late(self, held: Held) -> bool:
        if held.begin_by >= time.monotonic():
            return False
        self._late[held] = None
        self._on_late()
        return True

    def begin_waiting(self) -> None:
        """Begin as many attempts as there are free slots, if anything may begin now."""
        is_hand_needed = self._waiting_async and self._async_slots > 0 and not self._is_launching
        if not (is_hand_needed or (self._waiting_plain and self._plain_slots > 0)) or not self._may_begin():
            return
        if is_hand_needed:
            self._launch()
        while self._waiting_plain and self._plain_slots > 0:
            held = self._waiting_plain.popleft()
            if self._is_late(held):
                continue
            self._plain_slots -= 1
            self._note_begun(held)
            self._threads.put(held)

    def _note_begun(self, held: Held) -> None:
        held.begin()
        if attempt_log.logs_starts():
            attempt_log.started(held)
        if held.deadline < self._look_at:
            self._look_again(held.deadline)
        self.running.add(held)

    def _launch(self) -> None:
        """Start one more runner. When its first step is over, check whether another is needed."""
        self._is_launching = True
        runner = _Runner()
        # Use the pool's own context: this may be called from within a handler's.
        runner.task = self._loop.create_task(self._work_off(runner), context=self._context.copy())
        self._loop.call_soon(self._after_first_step, runner)

    def _after_first_step(self, runner: "_Runner") -> None:
        self._is_launching = False
        runner.has_suspended = runner.is_busy
        self.begin_waiting()

    async def _work_off(self, runner: "_Runner") -> None:
        """Run async handlers one after the other as long as none of them waits for anything.

        A handler that suspends keeps this asyncio task from then on. A handler that
        changed the context or was stopped is its last one: no handler can see what
        another left behind.  So one asyncio task is created for each handler that
        waits, and one for all handlers that do not.
        """
        clean = contextvars.copy_context()
        until = time.monotonic() + _STEP_SECONDS
        while self._waiting_async and self._async_slots > 0 and self._may_begin():
            held = self._waiting_async.popleft()
            if self._is_late(held):
                continue
            self._async_slots -= 1
            held.running = runner.task
            self._note_begun(held)
            runner.is_busy = True
            try:
                result = await held.handler.function(*handlers.arguments_of(held, self._worker))
                settlement = handlers.succeeded(held, result)
            except (Exception, asyncio.CancelledError, SystemExit) as error:
                settlement = handlers.failed(held, error)
            runner.is_busy = False
            self._finish(held, settlement)
            if runner.has_suspended or held.stop is not None:
                return
            if held.began > until or contextvars.copy_context() != clean:
                return

    def _perform_plain(self, held: Held) -> Settlement:
        try:
            return handlers.succeeded(held, held.handler.function(*handlers.arguments_of(held, self._worker)))
        except BaseException as error:
            return handlers.failed(held, error)

    def _collect(self, finished: list[Finished]) -> None:
        for held, settlement in finished:
            self._finish(held, settlement)

    def _finish(self, held: Held, settlement: Settlement) -> None:
        self.running.discard(held)
        if held.handler.is_async:
            self._async_slots += 1
        else:
            self._plain_slots += 1
        # A result that comes after the timeout does not count.
        self._report(held, handlers.stopped(held) if held.stop is Stop.TIMED_OUT else settlement)
        self._on_finished(held)
        if self._idle is not None and not self.running:
            self._idle.set()

    def stop(self, held: Held, reason: Stop) -> None:
        """Tell the handler to stop. An attempt that still waits is dropped."""
        if held in self.running:
            held.stop = held.stop or reason
            if held.running is not None:
                held.running.cancel()
        elif held in self._late:
            del self._late[held]
        else:
            waiting = self._waiting_async if held.handler.is_async else self._waiting_plain
            if held in waiting:
                waiting.remove(held)

    def stop_all(self, reason: Stop) -> None:
        for held in list(self.running):
            self.stop(held, reason)

    def _look_again(self, at: float) -> None:
        """Set one timer for all deadlines, at the earliest of them."""
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._look_at = at
        self._look_timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._stop_overdue)

    def _stop_overdue(self) -> None:
        self._look_timer, self._look_at = None, float("inf")
        now = time.monotonic()
        nearest = float("inf")
        for held in list(self.running):
            if held.settlement is not None:
                continue
            if now >= held.deadline:
                if held.running is None or held.stop is not None:
                    # A thread cannot be ended, and a handler that ignores its cancellation is not waited for.
                    held.stop = held.stop or Stop.TIMED_OUT
                    self._report(held, handlers.stopped(held))
                    continue
                self.stop(held, Stop.TIMED_OUT)
                held.deadline = now + _CLEANUP_SECONDS
            nearest = min(nearest, held.deadline)
        if nearest < float("inf"):
            # Not sooner than the resolution of a timer.
            self._look_again(max(nearest, now + 0.001))

    async def wait_idle(self, seconds: float) -> None:
        if not self.running:
            return
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._threads.close()
