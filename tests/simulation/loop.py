"""An event loop in simulated time, and processes in it that stand still and die.

When nothing is ready, time jumps to the next timer.  A round of the loop takes a
moment of that time, so that whoever waits for a clock by going round gets there.
Nothing here depends on anything but what is run: the same work takes the same
rounds in the same order.

All processes of a simulated world run in one loop.  Each has a context of its own,
which its tasks and callbacks inherit; by that the loop knows whose turn it is.
What belongs to a process that stands still waits until that is over.  A process
that dies has its tasks cancelled; what they still do on their way out reaches
nobody, because the lines to the others (`server`, `lines`) are dead.
"""

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol

#: What a round of the loop takes.
ROUND_SECONDS = 0.000_02
_TIDY_AT = 200
_running: ContextVar["Process | None"] = ContextVar("running", default=None)


class Network(Protocol):
    """How the processes of a simulation reach each other."""

    async def listen(self, make: Callable[[], asyncio.BaseProtocol], host: str, process: "Process") -> Any: ...

    async def connect(
        self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int, process: "Process"
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """Run it with `run_until`; it never waits."""

    def __init__(self) -> None:
        self._is_running = False
        super().__init__()
        self.now = 0.0
        #: How many callbacks were run.
        self.steps = 0
        self.network: Network | None = None
        self._soon: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self.now

    def run_until(self, is_enough: Callable[[], bool]) -> None:
        """Until that is so, or nothing will ever happen any more."""
        events._set_running_loop(self)
        self._is_running = True
        try:
            while (self._soon or self._timers) and not is_enough():
                self._go_round()
        finally:
            self._is_running = False
            events._set_running_loop(None)

    def _go_round(self) -> None:
        soon, timers = self._soon, self._timers
        self.now += ROUND_SECONDS
        if not soon and timers:
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            soon.append(heapq.heappop(timers)[2])
        for _ in range(len(soon)):
            handle = soon.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_running)
            if process is not None and process.paused_until > self.now:
                process.held.append(handle)
                continue
            self.steps += 1
            handle._context.run(handle._callback, *handle._args)

    # What asyncio asks of a loop

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_task(self, coroutine: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=self, name=name or "", context=context)
        process = _running.get()
        if process is not None:
            process.keep(task)
        return task

    def is_running(self) -> bool:
        return self._is_running

    async def create_server(self, make: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        process = _running.get()
        assert self.network is not None
        assert process is not None
        return await self.network.listen(make, host, process)

    async def create_connection(self, make: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        process = _running.get()
        assert self.network is not None
        assert process is not None
        return await self.network.connect(make, host, port, process)


class Process:
    """One life of a process: its tasks, and whether it stands still."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_dead = False
        self.paused_until = 0.0
        #: What is to be run when it goes on.
        self.held: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = copy_context()
        self._context.run(_running.set, self)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def current(cls) -> "Process | None":
        return _running.get()

    def keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        if len(self._tasks) % _TIDY_AT == 0:
            self._tasks = {each: None for each in self._tasks if not each.done()}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._context.run(self.loop.create_task, work)
        return task

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Something reached it from outside: it sees to it when it does not stand still."""
        self._context.run(self.loop.call_soon, act, *arguments)

    def pause(self, seconds: float) -> None:
        self.paused_until = self.loop.now + seconds
        self.loop.call_at(self.paused_until, self._go_on, context=Context())

    def _go_on(self) -> None:
        if self.paused_until <= self.loop.now:
            self.loop._soon.extend(self.held)
            self.held.clear()

    def resume(self) -> None:
        self.paused_until = 0.0
        self._go_on()

    def kill(self) -> None:
        self.is_dead = True
        self.resume()
        for task in self._tasks:
            task.cancel()
