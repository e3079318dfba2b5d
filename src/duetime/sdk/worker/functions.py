"""Decorated functions: they can still be called, and can also submit tasks that run them.

    @worker.task
    def send(payload): ...

    send({"to": "ada@example.com"})                        # here and now
    send.submit({"to": "ada@example.com"}, delay="5m")     # as a task

Submitting needs no running worker: any program that imports the function can do it.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack

from duetime.sdk.client.async_client import AsyncClient
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import ConfigurationError
from duetime.sdk.shapes.tasks import SubmitOptions, Task

P = ParamSpec("P")
R = TypeVar("R")

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


class Submitter:
    """Submits for the functions of one worker, to the queue that the worker takes from.

    The clients are created when they are first needed.  They are safe across forks
    and event loops, so all processes and loops may use the same ones.
    """

    def __init__(self, url: str | None, key: str | None, proxy: str | None, queue: str | None) -> None:
        self._url, self._key, self._proxy = url, key, proxy
        #: None: the server chooses by the task's type.
        self._queue = queue
        self._client: Client | None = None
        self._async_client: AsyncClient | None = None

    def configure(self, url: str | None, key: str | None, proxy: str | None) -> None:
        self._url, self._key, self._proxy = url, key, proxy
        self._client = self._async_client = None

    def submit(self, type: str, payload: object, options: SubmitOptions) -> Task:
        if (client := self._client) is None:
            client = self._client = Client(self._url, self._key, proxy=self._proxy)
        return client.submit(type, payload, **self._complete(options))

    async def submit_async(self, type: str, payload: object, options: SubmitOptions) -> Task:
        if (client := self._async_client) is None:
            client = self._async_client = AsyncClient(self._url, self._key, proxy=self._proxy)
        return await client.submit(type, payload, **self._complete(options))

    def _complete(self, options: SubmitOptions) -> SubmitOptions:
        return options if self._queue is None else {"queue": self._queue, **options}


class TaskFunction(Generic[P, R]):
    """What the decorator returns for a handler: calling it calls the function itself."""

    def __init__(self, type: str, function: Callable[P, R], submitter: Submitter) -> None:
        # The attributes of the wrapped object are not copied: they could have the same names as ours.
        functools.update_wrapper(self, function, updated=())
        self.type = type
        self.function = function
        self._submitter = submitter
        if sys.version_info >= (3, 12) and inspect.iscoroutinefunction(function):
            inspect.markcoroutinefunction(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def submit(self, payload: object = None, **options: Unpack[SubmitOptions]) -> Task:
        """Submit a task of this type, with the options of `Client.submit`; in a coroutine use `submit_async`."""
        return self._submitter.submit(self.type, payload, options)

    async def submit_async(self, payload: object = None, **options: Unpack[SubmitOptions]) -> Task:
        """Do the same without blocking the event loop. The handler may be plain or async."""
        return await self._submitter.submit_async(self.type, payload, options)

    def __repr__(self) -> str:
        return f"<task {self.type}: {self.function!r}>"

    def __reduce__(self) -> str:
        # Pickled by name, as functions are: other processes import it.
        return getattr(self.function, "__qualname__", repr(self.function))


class Register(Protocol):
    """The decorator that `@worker.task(…)` returns."""

    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...


def bare(function: Any) -> Any:
    """Return the function itself, if another decorator has wrapped it already."""
    return function.function if isinstance(function, TaskFunction) else function


def type_of(function: Callable[..., object]) -> str:
    """Return the default type of a handler: its module and its name."""
    name = getattr(function, "__name__", "")
    type = f"{name_of_module(getattr(function, '__module__', None) or '')}.{name}"
    if not name.isidentifier() or not _TYPE.fullmatch(type):
        raise ConfigurationError(f'no type of tasks can be made of "{type}": give it one, @worker.task("email.send")')
    return type


def name_of_module(name: str) -> str:
    """Return the name by which other programs import a module. For a script it comes from the file."""
    # `__mp_main__` is the script in a process that multiprocessing has spawned.
    if name not in ("__main__", "__mp_main__"):
        return name
    module = sys.modules.get(name)
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return Path(file).stem if file else name
