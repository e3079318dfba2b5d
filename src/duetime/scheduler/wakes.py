"""Report rows that were put into due: to this node's feeder, or to the node that feeds their lane.

Reports to another node are repeated until it has received them; only the first row of
each lane is kept for it, so the number of lanes limits what waits to be sent.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable

from duetime.ids import lane_of

#: The time between two tries, while the views of two nodes differ.
PAUSE_SECONDS = 0.02


class WakeRouter:
    def __init__(
        self,
        name: str,
        owner_of: Callable[[int], str | None],
        wake: Callable[[Collection[uuid.UUID]], None],
        tell: Callable[[str, list[uuid.UUID]], Awaitable[bool]],
        later: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """`name` is this node; `owner_of` finds the feeder of a lane, `tell` returns whether another node received."""
        self._name = name
        self._owner_of = owner_of
        self._wake = wake
        self._tell = tell
        self._later = later
        self._outboxes: dict[str, dict[int, uuid.UUID]] = {}

    def route(self, wakes: Iterable[uuid.UUID]) -> None:
        first: dict[int, uuid.UUID] = {}
        for wake in wakes:
            lane = lane_of(wake)
            if lane not in first or wake < first[lane]:
                first[lane] = wake
        self._route(first)

    def route_again(self) -> None:
        """Route again what was not sent yet: it may be for another node now."""
        for outbox in list(self._outboxes.values()):
            waiting = dict(outbox)
            outbox.clear()
            self._route(waiting)

    def _route(self, first: dict[int, uuid.UUID]) -> None:
        own = []
        for lane, wake in first.items():
            owner = self._owner_of(lane)
            if owner == self._name:
                own.append(wake)
            elif owner is not None:
                outbox = self._outboxes.get(owner)
                if outbox is None:
                    outbox = self._outboxes[owner] = {}
                    self._later(self._tell_all(owner, outbox))
                if lane not in outbox or wake < outbox[lane]:
                    outbox[lane] = wake
        if own:
            self._wake(own)

    async def _tell_all(self, owner: str, outbox: dict[int, uuid.UUID]) -> None:
        try:
            while outbox:
                telling = dict(outbox)
                outbox.clear()
                if not await self._tell(owner, list(telling.values())):
                    await asyncio.sleep(PAUSE_SECONDS)
                    self._route(telling)
        finally:
            del self._outboxes[owner]
