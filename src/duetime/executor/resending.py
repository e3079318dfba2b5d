"""Send items in batches, and repeat each batch until it is acknowledged.

While the database is away nothing is dropped: the items wait here, and the caller
that added them counts them as held.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

from duetime.errors import Unavailable

Item = TypeVar("Item")

_FIRST_WAIT_SECONDS = 0.05
_LAST_WAIT_SECONDS = 2.0
_MAX_BATCH = 1_000

log = structlog.get_logger(__name__)


class Resender(Generic[Item]):
    """Sends items. `send` raises Unavailable when it should be repeated; `done` is called once for each item."""

    def __init__(self, send: Callable[[Sequence[Item]], Awaitable[None]], done: Callable[[Item], None]) -> None:
        self._send = send
        self._done = done
        self._items: list[Item] = []
        self._has_items = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def add(self, item: Item) -> None:
        self._items.append(item)
        self._has_items.set()
        self._is_empty.clear()

    async def emptied(self) -> None:
        """Wait until everything is acknowledged."""
        await self._is_empty.wait()

    async def run(self) -> None:
        while True:
            await self._has_items.wait()
            batch, self._items = self._items[:_MAX_BATCH], self._items[_MAX_BATCH:]
            if not self._items:
                self._has_items.clear()
            await self._deliver(batch)
            if not self._has_items.is_set():
                self._is_empty.set()

    async def _deliver(self, batch: Sequence[Item]) -> None:
        wait_seconds = _FIRST_WAIT_SECONDS
        while True:
            try:
                await self._send(batch)
            except Unavailable as error:
                log.warning("not acknowledged, will be repeated", items=len(batch), error=str(error))
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(wait_seconds * 2, _LAST_WAIT_SECONDS)
                continue
            except Exception:
                if len(batch) > 1:
                    # One item cannot be sent; it must not hold back the others.
                    for item in batch:
                        await self._deliver([item])
                    return
                # Beats stop naming it, so it is released and tried again.
                log.exception("cannot be acknowledged, dropped", item=repr(batch[0])[:500])
            for item in batch:
                self._done(item)
            return
