"""Evaluate recurrences in the event loop without holding it up.

What may take longer than a moment is done in pieces that take turns with all
other long pieces of work of the node.  A tenant has one such evaluation at a
time: with a hundred at once it would have a hundred turns before the next
tenant has one.
"""

import asyncio
from collections.abc import Generator
from typing import Protocol, TypeVar

from duetime.errors import InvalidInput, TooComplex
from duetime.long_work import LongWork
from duetime.recurrence import PIECE_STEPS, SpecError, TooCostly

Result = TypeVar("Result")


class Runner(Protocol):
    """Runs the pieces of long work."""

    async def run(self, tenant: int, work: Generator[None, None, Result]) -> Result: ...


class Loops:
    """For a loop that serves all tenants. It waits for no tenant's turn, and counts the steps that it spent."""

    def __init__(self) -> None:
        #: About how many steps were done in pieces so far.
        self.steps = 0

    async def run(self, tenant: int, work: Generator[None, None, Result]) -> Result:
        while True:
            try:
                next(work)
            except StopIteration as done:
                result: Result = done.value
                return result
            self.steps += PIECE_STEPS
            await asyncio.sleep(0)


class Evaluations:
    def __init__(self, turns: LongWork | None = None) -> None:
        self._turns = LongWork() if turns is None else turns
        #: The tenants that evaluate something now, and how many such calls each has.
        self._locks: dict[int, tuple[asyncio.Lock, int]] = {}
        #: How many pieces were done in turns so far.
        self.pieces = 0

    async def run(self, tenant: int, work: Generator[None, None, Result]) -> Result:
        """Do the work piece by piece. Other work gets its turn in between."""
        lock, calls = self._locks.get(tenant) or (asyncio.Lock(), 0)
        self._locks[tenant] = (lock, calls + 1)
        try:
            async with lock:
                return await self._in_turns(work)
        finally:
            lock, calls = self._locks.pop(tenant)
            if calls > 1:
                self._locks[tenant] = (lock, calls - 1)

    async def _in_turns(self, work: Generator[None, None, Result]) -> Result:
        while True:
            await self._turns.take()
            self.pieces += 1
            try:
                next(work)
            except StopIteration as done:
                result: Result = done.value
                return result


def refusal_of(error: SpecError) -> InvalidInput:
    """What the API says of a definition that cannot be used."""
    kind = TooComplex if isinstance(error, TooCostly) else InvalidInput
    return kind.at(error.path, error.message)
