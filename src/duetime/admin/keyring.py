"""Find whose key a request has, and for which tenant it acts.

`Keys` caches what it looked up for a second, so a revoked key ends within that
time on every node.  Keys that are in use are looked up again before that, all of
them at once, so that no call has to wait for it.  So are the keys of calls that
wait, which are told when their key ends.  Unknown keys are looked up as
`wrong_keys.py` allows.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import asyncpg
import structlog

from duetime import metrics
from duetime.admin.key_uses import KeyUses
from duetime.admin.key_watch import KeyWatch
from duetime.admin.keys import Caller, Role, hash_key, is_readable
from duetime.admin.lookups import KeyLookups
from duetime.admin.tenants import Tenant, find_tenant
from duetime.admin.wrong_keys import WrongKeys
from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import KeyNotAllowedHere
from duetime.model.networks import IPAddress
from duetime.service import Loop
from duetime.telemetry import Sparing

REMEMBER_SECONDS = 1.0
REFRESH_EVERY = timedelta(seconds=0.4)
#: A key that was unused for this long is looked up when it comes again.
IN_USE_SECONDS = 10.0
#: The most keys that are refreshed; the most recently used go first.
REFRESH_AT_MOST = 1_000
#: Cached entries are small, and a caller can only fill the cache with keys that exist.
REMEMBER_AT_MOST = 10_000

#: For keys that are used from where they are not allowed: five log lines in this time.
_OUT_OF_PLACE_SECONDS = 10.0

log = structlog.get_logger()
_SQL = load(__package__, "keys.sql")


@dataclass(slots=True)
class _Known:
    caller: Caller
    #: When the database must be asked again.
    until: float
    used_at: float


def _nowhere() -> str:
    return "local"


class Keys:
    """Finds the caller of a key, and the tenant of a name, and caches both for a while."""

    def __init__(self, database: Database, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._callers: dict[bytes, _Known] = {}
        self._tenants: dict[str, tuple[float, Tenant]] = {}
        #: Calls that wait while their keys may end.
        self.watch = KeyWatch()
        self.uses = KeyUses(database, monotonic)
        self._wrong = WrongKeys(monotonic)
        self._out_of_place = Sparing(monotonic=monotonic, seconds=_OUT_OF_PLACE_SECONDS)
        self._lookups = KeyLookups(database, monotonic)
        #: How often a key was forgotten or made. Answers to earlier questions are not cached.
        self._changes = 0
        self.loop = Loop("keys", self.refresh, jitter=0.0)

    def recall(self, hashed: bytes) -> Caller | None:
        """The caller of a key, if it was looked up a moment ago."""
        known = self._callers.get(hashed)
        if known is None or known.until <= (now := self._monotonic()):
            return None
        known.used_at = now
        return known.caller

    async def resolve(self, key: str, peer: Callable[[], str] = _nowhere) -> Caller | None:
        """The caller of a key; None if nobody has this key. `peer` is the sender, as allowances count it."""
        hashed = hash_key(key)
        known = self.recall(hashed)
        if known is not None:
            return known
        if not is_readable(key):
            self._wrong.charge(peer(), key, is_readable=False)
            return None
        was_valid = self._wrong.was_valid(hashed)
        if not was_valid:
            if self._wrong.is_wrong(hashed):
                self._wrong.charge(peer(), key, is_readable=True)
                return None
            self._wrong.check(peer(), key)
        caller = await self._look_up(hashed, was_valid=was_valid)
        if caller is None:
            self._wrong.charge_lookup(peer(), key)
        return caller

    async def is_valid(self, caller: Caller) -> bool:
        """Whether the key of a caller that was accepted before is still valid."""
        return self.recall(caller.hash) is not None or await self._look_up(caller.hash, was_valid=True) is not None

    async def _look_up(self, hashed: bytes, *, was_valid: bool) -> Caller | None:
        changes = self._changes
        row, asked_at = await self._lookups.find(hashed, was_valid=was_valid)
        is_current = changes == self._changes
        if row is None:
            if is_current:
                self._callers.pop(hashed, None)
                self._wrong.note_wrong(hashed, asked_at)
            return None
        caller = _caller(row)
        if is_current:
            if len(self._callers) >= REMEMBER_AT_MOST:
                self._callers.clear()
            self._callers[hashed] = _Known(caller, asked_at + REMEMBER_SECONDS, asked_at)
            self._wrong.note_valid(hashed)
        return caller

    def check_place(self, caller: Caller, address: IPAddress | None) -> None:
        """Raise if the key may not be used from that address."""
        if caller.is_allowed_at(address):
            return
        metrics.KEYS_OUT_OF_PLACE.inc()
        where = "a local socket" if address is None else str(address)
        if (left_out := self._out_of_place.take()) is not None:
            log.warning(
                "an API key was used from where it is not allowed",
                key=caller.key,
                tenant=caller.tenant_name,
                peer=where,
                left_out=left_out,
            )
        raise KeyNotAllowedHere(f"this API key may not be used from {where}: it is not among the key's allowed_ips")

    async def delay_refusal(self, peer: str) -> None:
        """Wait before refusing a peer that was refused often: otherwise it takes up the node's time."""
        penalty = self._wrong.penalty_seconds(peer)
        if penalty:
            await asyncio.sleep(penalty)

    async def refresh(self) -> timedelta:
        """Look up the keys in use again, and forget those that are not in use or no longer valid."""
        self._wrong.tidy()
        asked_at = self._monotonic()
        used = [hashed for hashed, known in self._callers.items() if known.used_at > asked_at - IN_USE_SECONDS]
        if len(used) > REFRESH_AT_MOST:
            used = heapq.nlargest(REFRESH_AT_MOST, used, key=lambda hashed: self._callers[hashed].used_at)
        watched = self.watch.hashes()
        found = {}
        if used or watched:
            rows = await self._database.run(_SQL["find"], hashes=list({*used, *watched}))
            found = {row["hash"]: _caller(row) for row in rows}
        for hashed in used:
            # A key that was revoked here in the meantime is gone and must not come back; one that changed may have
            # been looked up again since.
            known = self._callers.get(hashed)
            if known is None or known.until > asked_at + REMEMBER_SECONDS:
                continue
            if hashed in found:
                known.caller, known.until = found[hashed], asked_at + REMEMBER_SECONDS
            else:
                del self._callers[hashed]
        self.watch.compare(watched, found)
        now = self._monotonic()
        self._callers = {hashed: known for hashed, known in self._callers.items() if known.until > now}
        return REFRESH_EVERY

    async def find_tenant(self, name: str) -> Tenant | None:
        known = self._tenants.get(name)
        if known is not None and known[0] > self._monotonic():
            return known[1]
        # PostgreSQL's text has no NUL, so no tenant's name has one either.
        tenant = await find_tenant(self._database, name) if "\0" not in name else None
        if tenant is not None:
            if len(self._tenants) >= REMEMBER_AT_MOST:
                self._tenants.clear()
            self._tenants[name] = (self._monotonic() + REMEMBER_SECONDS, tenant)
        return tenant

    def forget(self, hashed: bytes) -> None:
        """The key was revoked here."""
        self.changed(hashed)
        self.watch.ended(hashed)

    def changed(self, hashed: bytes) -> None:
        """The key may have changed since it was read: look it up again before it is trusted."""
        self._changes += 1
        self._lookups.forget(hashed)
        self._callers.pop(hashed, None)

    def welcome(self, hashed: bytes) -> None:
        """A key was made, or is valid again: it works at once, even if it was tried before."""
        self.changed(hashed)
        self._wrong.note_valid(hashed)

    async def close(self) -> None:
        await self.uses.close()
        await self._lookups.close()


def _caller(row: asyncpg.Record) -> Caller:
    types, queues = tuple(row["types"]), tuple(row["queues"])
    return Caller(
        row["tenant"],
        row["tenant_name"],
        row["id"],
        cast(Role, row["role"]),
        types,
        queues,
        row["hash"],
        row["family"],
        tuple(row["allowed_ips"]),
    )
