"""Room for tasks that the service itself makes: of schedules, of the outbox, of redriven dead letters.

They count like submissions, so whoever makes some asks for room first, and
gives back what it did not use.  What finds no room is not made: a time of a
schedule is skipped, a backfill and the outbox wait, a call is refused.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from duetime.errors import TooManyRequests


class Granted(NamedTuple):
    """How many of the tasks may be made, from the first on, and why not more."""

    most: int
    refusal: TooManyRequests | None = None


class Room(Protocol):
    async def make_room(self, tenant: int, sizes: Sequence[int], *, is_whole: bool = False) -> Granted:
        """Reserve room for tasks of the tenant with payloads of these sizes; with `is_whole` for all or none."""
        ...

    def give_back(self, tenant: int, count: int) -> None:
        """Give back room for this many tasks that were not made."""
        ...


class _Boundless:
    async def make_room(self, tenant: int, sizes: Sequence[int], *, is_whole: bool = False) -> Granted:
        return Granted(len(sizes))

    def give_back(self, tenant: int, count: int) -> None:
        return None


#: For tenants without quotas.
BOUNDLESS: Room = _Boundless()
