"""Store what breakers learned, so that it outlives the process that keeps them, and read it in the next one.

A write follows not every call but every change that a successor would act on; one
statement writes all changes of a second.  Rows are read before the lanes of a shard
are fed.  A row may be wrong: of two nodes that feed parts of a tenant, the last one
that learned something has written it, and a host may have recovered.  That costs a
few seconds, because the reader probes the host as usual.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta
from itertools import islice

import structlog

from duetime.admin.breaker_states import Place, StoredMemory, put_memories, read_memories, remove_memories
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import SHARDS
from duetime.lifecycle.lanes import Lanes
from duetime.model.breaker_memory import BreakerMemory
from duetime.scheduler.breakers import Breakers
from duetime.service import Loop

log = structlog.get_logger()
#: A node writes at most once in this time.
WRITE_EVERY = timedelta(seconds=1)
_LOOK_AT_LEAST_EVERY_SECONDS = 0.5
_MAX_ROWS_PER_WRITE = 1_000
#: The most rows that a node writes for one tenant, whose number of targets has no limit.
MAX_ROWS_PER_TENANT = 1_000
#: A correct row is written again after this time, because a row that is not updated counts as old.
_REPEAT = timedelta(minutes=5)
_SWEEP_EVERY = timedelta(minutes=1)


class BreakerStates:
    def __init__(self, database: Database, lanes: Lanes, breakers: Breakers) -> None:
        self._database = database
        self._lanes = lanes
        self._breakers = breakers
        #: The rows of the table that this node has written or read.
        self._stored: dict[Place, StoredMemory] = {}
        self._rows: Counter[int] = Counter()
        self._swept_at = database.clock.now()
        #: Breakers whose state may differ from what was written last.
        self._news: set[Place] = set()
        self._has_news = asyncio.Event()
        breakers.learned.listen(self._note)
        self.loop = Loop("breakers", self.step, jitter=0.0)

    def _note(self, tenant: int, host: str) -> None:
        self._news.add((tenant, host))
        self._has_news.set()

    async def step(self) -> timedelta:
        """Wait for changes and write them; once a minute remove breakers that have recovered without a change."""
        now = self._database.clock.now()
        if now - self._swept_at >= _SWEEP_EVERY:
            self._swept_at = now
            self._news |= {place for place in self._stored if self._breakers.remember(*place) is None}
        elif not self._news:
            try:
                async with asyncio.timeout(_LOOK_AT_LEAST_EVERY_SECONDS):
                    await self._has_news.wait()
            except TimeoutError:
                return timedelta(0)
        await self.save()
        return WRITE_EVERY

    async def start(self) -> None:
        self.loop.start()

    async def close(self) -> None:
        """Write the last changes, if the database accepts them."""
        await self.loop.stop()
        try:
            await self.save()
        except Unavailable as error:
            log.warning("what breakers found out last is lost", error=str(error))

    async def save(self) -> None:
        """Write all changes; those of a failed write stay to be written."""
        self._has_news.clear()
        while changed := set(islice(self._news, _MAX_ROWS_PER_WRITE)):
            # A change during the write is noted again.
            self._news -= changed
            try:
                await self._save(changed)
            except BaseException:
                self._news |= changed
                raise

    async def _save(self, changed: Collection[Place]) -> None:
        now = self._database.clock.now()
        wanted: dict[Place, BreakerMemory] = {}
        over: dict[Place, datetime] = {}
        new: Counter[int] = Counter()
        for place in changed:
            memory, stored = self._breakers.remember(*place), self._stored.get(place)
            if memory is None:
                over |= {} if stored is None else {place: stored.stored_at}
            elif stored is None:
                if self._rows[place[0]] + new[place[0]] < MAX_ROWS_PER_TENANT:
                    new[place[0]] += 1
                    wanted[place] = memory
            elif not memory.is_like(stored.memory) or now - stored.stored_at > _REPEAT:
                wanted[place] = memory
        if wanted:
            self._stored |= await put_memories(self._database, wanted)
            self._rows += new
        if over:
            await remove_memories(self._database, over)
            for place in over:
                del self._stored[place]
            self._rows -= Counter(tenant for tenant, _ in over)

    async def recall(self, shards: frozenset[int] | None) -> None:
        """Read what is known about the targets of tenants that this node feeds from now on."""
        lanes = self._lanes.all()
        tenants = {key.tenant for lane, key in lanes.items() if shards is None or lane % SHARDS in shards}
        if not tenants:
            return
        found = await read_memories(self._database, tenants)
        for place, read in found.items():
            if (stored := self._stored.get(place)) is not None and stored.stored_at == read.stored_at:
                continue
            if stored is None:
                self._rows[place[0]] += 1
            self._stored[place] = read
            self._breakers.recall(*place, read.memory, int(read.stored_at.timestamp() * 1000))
