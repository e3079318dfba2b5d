"""When each key was last used, and from where: gathered in memory, written once a minute.

A request costs a look into a set; only the first one of a key in ten seconds is
written down.  What a process gathered is stored in one statement for all keys
that were used, also when it stops.  Several nodes write the same rows: the
newest use stays.
"""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from duetime.admin.keys import Caller
from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Unavailable
from duetime.service import Loop

log = structlog.get_logger()

#: Within this time only the first use of a key counts.
LOOK_EVERY = timedelta(seconds=10)
WRITE_EVERY_SECONDS = 60.0
#: How many keys one process can note in a minute.
NOTED_AT_MOST = 100_000
_ROWS_AT_ONCE = 10_000

_SQL = load(__package__, "key_uses.sql")


class Use(NamedTuple):
    at: datetime
    #: The address of the peer; `local` for a socket without one.
    peer: str


class KeyUses:
    def __init__(self, database: Database, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        #: Hashes of the keys whose use was noted a moment ago.
        self.noted: set[bytes] = set()
        self._used: dict[int, Use] = {}
        self._written_at = monotonic()
        self.loop = Loop("key uses", self.step)

    def note(self, caller: Caller, peer: str) -> None:
        """Note that the key was used now, from that address."""
        if len(self._used) < NOTED_AT_MOST:
            self.noted.add(caller.hash)
            self._used[caller.key] = Use(self._database.clock.now(), peer)

    async def step(self) -> timedelta:
        """Let every key be noted again, and once a minute store what was noted."""
        self.noted.clear()
        if self._monotonic() - self._written_at >= WRITE_EVERY_SECONDS:
            await self.write()
        return LOOK_EVERY

    async def write(self) -> None:
        """Store what was noted so far. What cannot be stored is kept for the next time."""
        used, self._used = self._used, {}
        try:
            for rows in _pieces(sorted(used.items())):
                await self._database.run(
                    _SQL["note"],
                    keys=[key for key, _ in rows],
                    used_ats=[use.at for _, use in rows],
                    used_froms=[use.peer for _, use in rows],
                )
        except BaseException:
            self._used = used | self._used
            raise
        self._written_at = self._monotonic()

    async def close(self) -> None:
        """Store the rest; the loop has stopped."""
        try:
            await self.write()
        except Unavailable as error:
            log.warning("the last uses of API keys are not stored", keys=len(self._used), error=error.detail)


def _pieces(rows: list[tuple[int, Use]]) -> Iterator[list[tuple[int, Use]]]:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        yield rows[start : start + _ROWS_AT_ONCE]
