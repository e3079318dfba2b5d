"""Decorated functions: still what they were, and a way to submit tasks that run them.

    @worker.task
    def send(payload): ...

    send({"to": "ada@example.com"})                        # here and now
    send.submit({"to": "ada@example.com"}, delay="5m")     # as a task

Submitting needs no running worker: whoever imports the function can do it.
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

    The clients are made when they are first needed.  They are safe across forks
    and event loops, so every process and every loop may use the same ones.
    """

    def __init__(self, url: str | None, key: str | None, proxy: str | None, queue: str | None) -> None:
        self._url, self._key, self._proxy = url, key, proxy
        #: None: the server's choice, by the task's type.
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
    """A handler as its decorator leaves it: called, it is the function itself."""

    def __init__(self, type: str, function: Callable[P, R], submitter: Submitter) -> None:
        # Not the attributes of its own that an object may have: they could be called like ours.
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
        """The same, without blocking the event loop; whether the handler is plain or async does not matter."""
        return await self._submitter.submit_async(self.type, payload, options)

    def __repr__(self) -> str:
        return f"<task {self.type}: {self.function!r}>"

    def __reduce__(self) -> str:
        # By its name, as functions are: other processes import it.
        return getattr(self.function, "__qualname__", repr(self.function))


class Register(Protocol):
    """What `@worker.task(…)` gives back, to be called with the function."""

    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...


def bare(function: Any) -> Any:
    """The function itself, of what another decorator may have made of it already."""
    return function.function if isinstance(function, TaskFunction) else function


def type_of(function: Callable[..., object]) -> str:
    """The type of a handler that was given none: its module and its name."""
    name = getattr(function, "__name__", "")
    type = f"{name_of_module(getattr(function, '__module__', None) or '')}.{name}"
    if not name.isidentifier() or not _TYPE.fullmatch(type):
        raise ConfigurationError(f'no type of tasks can be made of "{type}": give it one, @worker.task("email.send")')
    return type


def name_of_module(name: str) -> str:
    """The name by which others import a module that may be run as a script: then that of its file."""
    # `__mp_main__`: the script, in a process that multiprocessing has spawned.
    if name not in ("__main__", "__mp_main__"):
        return name
    module = sys.modules.get(name)
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return Path(file).stem if file else name
