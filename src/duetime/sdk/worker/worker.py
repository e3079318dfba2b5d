"""`Worker`: run tasks in the tenant's own process.

    worker = Worker(queues=["mail"])

    @worker.task("email.send", timeout="30s")
    async def send(payload, context): ...

    @worker.schedule(cron="0 2 * * *", timezone="Europe/Berlin")
    def clean_up(payload): ...

    worker.run()

It needs only the HTTP API and a key.  The event loop, the threads, the leases,
beats and reports of one run are in `run`, its schedules in `declared`.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from duetime.sdk.errors import ConfigurationError, Duration
from duetime.sdk.server import find_server
from duetime.sdk.shapes.durations import seconds_of
from duetime.sdk.shapes.schedules import DeclareOptions
from duetime.sdk.worker.declared import DeclaredSchedule, name_of_program, put_declared
from duetime.sdk.worker.functions import Register, Submitter, TaskFunction, bare, type_of
from duetime.sdk.worker.handlers import Handler
from duetime.sdk.worker.settings import WorkerSettings
from duetime.sdk.worker.signals import stopping_on_signals

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class _Stopper:
    """Lets any thread, or a signal, ask a run to stop.

    After a fork it refers to no run: in the child nothing runs.
    """

    loop: asyncio.AbstractEventLoop
    process: int = field(default_factory=os.getpid)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        self.loop.call_soon_threadsafe(self.wanted.set)


class Worker:
    """Handlers by type, and how to run them."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        queues: Iterable[str] | None = ("default",),
        tags: Iterable[str] = (),
        concurrency: int = 100,
        threads: int = 8,
        prefetch: int | None = None,
        name: str | None = None,
        shutdown_timeout: Duration = 25.0,
        max_silence: Duration | None = None,
        proxy: str | None = None,
    ) -> None:
        self._url, self._key, self._proxy = url, key, proxy
        self._queues = None if queues is None else _names(queues)
        self._tags = _names(tags)
        self._concurrency = concurrency
        self._threads = threads
        self._prefetch = prefetch
        self._shutdown_timeout = seconds_of(shutdown_timeout)
        self._max_silence = None if max_silence is None else seconds_of(max_silence)
        self._handlers: dict[str, Handler] = {}
        self._schedules: list[DeclaredSchedule] = []
        #: Handlers that only a schedule has registered so far, by the types made from their names.
        self._unnamed: dict[str, Callable[..., Any]] = {}
        self._prefix = name
        # Schedules belong to the code: settings of the command line for one process do not change them.
        self._code_name, self._code_queues = name, self._queues
        self._submitter = Submitter(url, key, proxy, None if self._own_queue == "default" else self._own_queue)
        self._stopper: _Stopper | None = None
        self._name_now: tuple[int, str] | None = None

    @property
    def name(self) -> str:
        """The name of this process from its start to its end. A forked child has its own."""
        if self._name_now is None or self._name_now[0] != os.getpid():
            prefix = (self._prefix or socket.gethostname() or "worker")[:150]
            self._name_now = os.getpid(), f"{prefix}-{os.getpid()}-{secrets.token_hex(6)}"
        return self._name_now[1]

    @property
    def types(self) -> list[str]:
        """The types that it has handlers for."""
        return sorted(self._handlers)

    @overload
    def task(self, type: Callable[P, R], /) -> TaskFunction[P, R]: ...
    @overload
    def task(self, type: str | None = None, *, timeout: Duration | None = None) -> Register: ...
    def task(self, type: Any = None, *, timeout: Duration | None = None) -> Any:
        """Register the decorated function, plain or async, of (payload) or (payload, context).

        Without a type, also as a bare `@worker.task`, the type is the function's
        module and name: `emails.send`.  The function can still be called, and
        `submit` submits tasks that run it.

        A payload parameter with a type that msgspec knows (a Struct, a
        dataclass, a TypedDict) gets the payload as that; one that does not
        fit is a permanent failure.  `timeout` can only shorten the task's own.
        """

        if type is None or isinstance(type, str):
            return lambda function: self._register(type, function, timeout)
        if not callable(type):
            raise TypeError(f"the type of a task is a string, not {type!r}")
        return self._register(None, type, timeout)

    def _register(self, type: str | None, given: Callable[P, R], timeout: Duration | None = None) -> TaskFunction[P, R]:
        function: Callable[P, R] = bare(given)
        if type is None:
            type = type_of(function)
        for derived in [each for each, known in self._unnamed.items() if known is function]:
            del self._handlers[derived], self._unnamed[derived]
        if type in self._handlers:
            raise ConfigurationError(f"there are two handlers for {type}")
        self._handlers[type] = Handler(type, function, timeout)
        return TaskFunction(type, function, self._submitter)

    def schedule(
        self, *, name: str | None = None, payload: object = None, **options: Unpack[DeclareOptions]
    ) -> Callable[[F], F]:
        """Run the decorated function by a schedule, which the worker puts to the server when it starts.

        Together with `task` the schedule makes tasks of that type; without it, the function
        is registered under its own name.  The default name of the schedule is the type.
        Its tasks go to the first of the worker's queues.
        """

        def declare(given: F) -> F:
            function = bare(given)
            if all(handler.function is not function for handler in self._handlers.values()):
                type = getattr(function, "__name__", "").lstrip("_")
                if not type.isidentifier():
                    raise ConfigurationError("a function without a name needs @worker.task(type) under its schedule")
                self._register(type, function)
                self._unnamed[type] = function
            self._schedules.append(DeclaredSchedule(function, name, payload, options))
            return given

        return declare

    def configure(
        self,
        *,
        url: str | None = None,
        key: str | None = None,
        queues: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        concurrency: int | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
        name: str | None = None,
        shutdown_timeout: Duration | None = None,
        max_silence: Duration | None = None,
        proxy: str | None = None,
    ) -> None:
        """Replace settings before it runs. A setting of None stays as it is."""
        self._url = url or self._url
        self._key = key or self._key
        self._proxy = self._proxy if proxy is None else proxy
        self._submitter.configure(self._url, self._key, self._proxy)
        self._queues = self._queues if queues is None else _names(queues)
        self._tags = self._tags if tags is None else _names(tags)
        self._concurrency = self._concurrency if concurrency is None else concurrency
        self._threads = self._threads if threads is None else threads
        self._prefetch = self._prefetch if prefetch is None else prefetch
        self._prefix = name or self._prefix
        if shutdown_timeout is not None:
            self._shutdown_timeout = seconds_of(shutdown_timeout)
        if max_silence is not None:
            self._max_silence = seconds_of(max_silence)

    def _settings(self) -> WorkerSettings:
        url, key = find_server(self._url, self._key)
        if not self._handlers:
            raise ConfigurationError("the worker has no handlers: decorate functions with @worker.task(type)")
        return WorkerSettings(
            url,
            key,
            self._queues,
            self._tags,
            self._concurrency,
            self._threads,
            self._prefetch,
            self._shutdown_timeout,
            self._max_silence,
            self._proxy,
        )

    @property
    def _own_queue(self) -> str:
        """The queue of tasks that the code submits and schedules: one that its workers take from."""
        queues = self._code_queues
        return "default" if not queues or "default" in queues else queues[0]

    def _shaped_schedules(self) -> list[dict[str, Any]]:
        """Return its schedules in the form of the API."""
        types = {id(handler.function): type for type, handler in self._handlers.items()}
        shaped: dict[str, dict[str, Any]] = {}
        for each in self._schedules:
            source = self._code_name or name_of_program(self, each.function)
            schedule = each.shape(types[id(each.function)], self._own_queue, source)
            if schedule["name"] in shaped:
                raise ConfigurationError(f"there are two schedules named {schedule['name']}: give one of them a name=")
            shaped[schedule["name"]] = schedule
        return list(shaped.values())

    def run(self) -> None:
        """Work until SIGTERM or SIGINT: the first stops it gracefully, the second at once."""
        try:
            import uvloop

            factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
        except ImportError:
            factory = None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(self._run_with_signals())

    async def run_async(self) -> None:
        """Work until `stop` is called, on the caller's loop. Signals are left to the caller."""
        from duetime.sdk.worker.run import WorkerRun

        if self._stopper is not None and self._stopper.process == os.getpid():
            raise ConfigurationError("the worker is running already")
        settings = self._settings()
        shaped = self._shaped_schedules()
        self._stopper = _Stopper(asyncio.get_running_loop())
        try:
            if shaped:
                await _unless(self._stopper.wanted, put_declared(settings, shaped))
            if not self._stopper.wanted.is_set():
                await WorkerRun(settings, self._handlers, self.name, self._stopper.wanted).run()
        finally:
            self._stopper = None

    def stop(self) -> None:
        """Ask for a graceful stop, from any thread. `run` and `run_async` return when it is done."""
        if self._stopper is not None and self._stopper.process == os.getpid():
            self._stopper.ask()

    async def _run_with_signals(self) -> None:
        with stopping_on_signals(self.stop):
            await self.run_async()


async def _unless(stop_wanted: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run something to its end, or until a stop is requested."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop_wanted.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    """Return a list of names. A single string is one name, not its letters."""
    return (names,) if isinstance(names, str) else tuple(names)
