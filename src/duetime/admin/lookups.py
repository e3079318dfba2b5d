"""Look keys up: many in one statement, one statement at a time, and a pause after a statement that found wrong keys.

So a flood of wrong keys costs the database the same few statements a second,
however many connections and addresses it comes from.  Keys that were valid
before go first, and are never turned away because many others wait.
"""

import asyncio
import time
from collections import deque
from typing import NamedTuple

import asyncpg

from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import TooManyWrongKeys

#: Keys per statement.
BATCH = 100
#: The pause after a statement that found a wrong key: at most twenty statements a second, each with up to 100 keys.
REST_SECONDS = 0.05
#: How many unknown keys may wait to be looked up: half a second's worth.
WAITING_AT_MOST = 1_000

_SQL = load(__package__, "keys.sql")


class Found(NamedTuple):
    """The database's answer, and when it was asked. No row: nobody has this key."""

    row: asyncpg.Record | None
    asked_at: float


class KeyLookups:
    def __init__(self, database: Database, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        #: The keys that wait, and those in the current statement.
        self._asked: dict[bytes, asyncio.Future[Found]] = {}
        self._under_way: dict[bytes, asyncio.Future[Found]] = {}
        self._known: deque[bytes] = deque()
        self._unknown: deque[bytes] = deque()
        self._running: asyncio.Task[None] | None = None

    async def find(self, hashed: bytes, *, was_valid: bool) -> Found:
        """Whose key it is. Two callers that ask for the same key share one look-up."""
        future = self._asked.get(hashed)
        if future is None:
            if not was_valid and len(self._unknown) >= WAITING_AT_MOST:
                raise TooManyWrongKeys(1.0)
            future = self._asked[hashed] = asyncio.get_running_loop().create_future()
            # The caller may be gone when the answer comes.
            future.add_done_callback(_retrieve)
            (self._known if was_valid else self._unknown).append(hashed)
            if self._running is None:
                self._running = asyncio.create_task(self._run(), name="key look-ups")
        return await asyncio.shield(future)

    def forget(self, hashed: bytes) -> None:
        """The current look-up may give an answer that is outdated: callers from now on do not get it."""
        if hashed in self._under_way:
            self._asked.pop(hashed, None)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            while batch := self._take_batch():
                if await self._look_up(batch):
                    await asyncio.sleep(REST_SECONDS)
        finally:
            self._running = None
            for future in self._asked.values():
                future.cancel()
            self._asked.clear()

    def _take_batch(self) -> dict[bytes, asyncio.Future[Found]]:
        batch: dict[bytes, asyncio.Future[Found]] = {}
        for waiting in (self._known, self._unknown):
            while waiting and len(batch) < BATCH:
                hashed = waiting.popleft()
                future = self._asked.get(hashed)
                if future is not None:
                    batch[hashed] = future
        return batch

    async def _look_up(self, batch: dict[bytes, asyncio.Future[Found]]) -> bool:
        """Answer all of them. Return whether one was wrong."""
        self._under_way, asked_at = batch, self._monotonic()
        try:
            rows = {row["hash"]: row for row in await self._database.run(_SQL["find"], hashes=list(batch))}
        except Exception as error:
            for future in batch.values():
                future.set_exception(error)
            return False
        except asyncio.CancelledError:
            for future in batch.values():
                future.cancel()
            raise
        finally:
            self._under_way = {}
            for hashed, future in batch.items():
                if self._asked.get(hashed) is future:
                    del self._asked[hashed]
        for hashed, future in batch.items():
            future.set_result(Found(rows.get(hashed), asked_at))
        return len(rows) < len(batch)


def _retrieve(future: "asyncio.Future[Found]") -> None:
    if not future.cancelled():
        future.exception()
