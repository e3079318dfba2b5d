"""Whether this node should get requests: it runs, feeds shards, and can write to the database.

Only a write proves that writing works: with a full disk, a read-only server or
a `statement_timeout` of a millisecond, reads may be answered as before.  A node
writes when it is asked, at most once a second for all callers.  One failure makes no
node unready and one success makes none ready again: the node repeats the write by
itself until it is sure, so that a balancer does not see it come and go.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg
import structlog

from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Unavailable

SQL = load(__package__, "readiness.sql")
log = structlog.get_logger()
#: The time between two proofs.
PROVE_EVERY_SECONDS = 1.0
#: A write that takes longer has failed.
TIMEOUT_SECONDS = 3.0
#: A caller waits this long for the proof under way, and then gets the last result.
_PATIENCE_SECONDS = 0.8
#: This many failures in a row make a ready node unready, and this many successes an unready one ready.
FAILURES = 2
SUCCESSES = 3
# Makes each row of the table fill a page.
_FILLER = bytes(7_000)
_UNKNOWN = "the database has not answered yet"

Why = Callable[[], str | None]
Pause = Callable[[float], Awaitable[object]]


class Readiness:
    def __init__(
        self,
        database: Database,
        node: str,
        why_not: Why,
        monotonic: Monotonic = time.monotonic,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._database = database
        self._node = node
        #: Other reasons why the node cannot serve requests.
        self._why_not = why_not
        self._monotonic = monotonic
        self._pause = pause
        #: Why the database cannot be written to; None: it can.
        self._problem: str | None = _UNKNOWN
        #: Proofs in a row that contradict the present result.
        self._against = 0
        self._proved_at = float("-inf")
        self._has_proof = asyncio.Event()
        self._proving: asyncio.Task[None] | None = None

    async def why_not_ready(self) -> str | None:
        """Why this node should get no requests now; None when it should."""
        reason = self._why_not()
        if reason is not None:
            return reason
        if self._proving is None and self._monotonic() - self._proved_at >= PROVE_EVERY_SECONDS:
            self._has_proof.clear()
            self._proving = asyncio.create_task(self._prove(), name="readiness")
            self._proving.add_done_callback(self._proved)
        if self._problem is None or self._problem is _UNKNOWN:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._has_proof.wait()
            except TimeoutError:
                pass
        return self._problem

    async def settled(self) -> None:
        """Wait until it is known whether the database can be written to."""
        if self._proving is not None:
            await asyncio.wait([self._proving])

    async def close(self) -> None:
        if self._proving is not None:
            self._proving.cancel()
            await asyncio.wait([self._proving])

    async def _prove(self) -> None:
        """Write until it is certain whether the node is ready."""
        while True:
            self._hear(await self._try())
            self._proved_at = self._monotonic()
            self._has_proof.set()
            if not self._against:
                return
            await self._pause(PROVE_EVERY_SECONDS)

    async def _try(self) -> str | None:
        """Write once; returns why it failed, or None if it succeeded."""
        try:
            await self._database.run(SQL["prove_write"], node=self._node, filler=_FILLER, timeout=TIMEOUT_SECONDS)
        except (Unavailable, asyncpg.PostgresError) as error:
            return f"the database cannot be written to: {error}"
        return None

    def _hear(self, why: str | None) -> None:
        if self._problem is _UNKNOWN:
            self._problem = why
        elif (why is None) is (self._problem is None):
            self._against = 0
            self._problem = why
        else:
            self._against += 1
            if self._against >= (SUCCESSES if why is None else FAILURES):
                self._against = 0
                self._problem = why
                if why is None:
                    log.info("the node is ready again: the database can be written to")
                else:
                    log.warning("the node is not ready", error=why)

    def _proved(self, proving: asyncio.Task[None]) -> None:
        self._proving = None
        if not proving.cancelled() and (error := proving.exception()) is not None:
            log.error("the proof of readiness broke", exc_info=error)
