"""Signals: one part of the program reports an event to others, and knows none of them.

A signal is made first and given to the part that sends it.  Other parts add their
listeners before anything is started.  So every part is complete when it is
constructed, and no two of them need each other's constructor first.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, ParamSpec

Told = ParamSpec("Told")


class Signal(Generic[Told]):
    """Calls its listeners at once, in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: list[Callable[Told, object]] = []

    def listen(self, listener: Callable[Told, object]) -> None:
        self._listeners.append(listener)

    def __call__(self, *args: Told.args, **kwargs: Told.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)


class AwaitedSignal(Generic[Told]):
    """Awaits its listeners: the sender goes on when all of them are done."""

    def __init__(self) -> None:
        self._listeners: list[Callable[Told, Awaitable[None]]] = []

    def listen(self, listener: Callable[Told, Awaitable[None]]) -> None:
        self._listeners.append(listener)

    async def __call__(self, *args: Told.args, **kwargs: Told.kwargs) -> None:
        for listener in self._listeners:
            await listener(*args, **kwargs)


def ignore(*_: object) -> None:
    """A listener that ignores the event."""
