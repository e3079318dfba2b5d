"""Limits that a tenant sets: for a queue, with its state, and for keys that tasks name.

`LimitRules` keeps them all compiled, and looks once in a while whether any has
changed: one row tells, and those of the tenants that did are read.  Finding the
limit of a key takes one look for its name, and one for each length that a pattern of the tenant has.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import asyncpg
import msgspec
import structlog
from msgspec import UNSET, UnsetType

from duetime.admin.changes import Change, read_changes
from duetime.admin.tenants import read_names
from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import InvalidInput, NotFound
from duetime.ids import just_after
from duetime.model.limits import Limits, LimitScope

log = structlog.get_logger()
MAX_RULES_PER_TENANT = 1_000
#: Running and waiting tasks are counted up to this number.
MAX_COUNTED = 10_000

QueueState = Literal["active", "paused"]

_SQL = load(__package__, "limits.sql")
_NOUNS = {LimitScope.QUEUE: "queue", LimitScope.KEY: "limit"}
_WORDS = {LimitScope.QUEUE: "state or limits of a queue", LimitScope.KEY: "limit of a key"}
_decode = msgspec.json.Decoder(Limits).decode
_encode = msgspec.json.Encoder().encode


class LimitRule(msgspec.Struct, frozen=True):
    """The rule that is stored under one name."""

    name: str
    limits: Limits
    state: QueueState
    version: int
    updated_at: datetime
    #: Of a queue: how long workers that take from it may be silent.
    max_silence: float | None = None


class Counted(msgspec.Struct, frozen=True):
    """Attempts that run and tasks that wait past their time, each up to 10,000."""

    running: int
    due: int


class _Keys:
    """The limits of one tenant's keys."""

    def __init__(self) -> None:
        self._exact: dict[str, tuple[str, Limits]] = {}
        self._prefixes: dict[str, tuple[str, Limits]] = {}
        self._lengths: tuple[int, ...] = ()

    def add(self, name: str, limits: Limits) -> None:
        if name.endswith("*"):
            self._prefixes[name[:-1]] = (name, limits)
            self._lengths = tuple(sorted({len(prefix) for prefix in self._prefixes}, reverse=True))
        else:
            self._exact[name] = (name, limits)

    def find(self, key: str) -> tuple[str, Limits] | None:
        found = self._exact.get(key)
        if found is not None:
            return found
        for length in self._lengths:
            found = self._prefixes.get(key[:length])
            if found is not None:
                return found
        return None


class LimitRules:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._queues: dict[tuple[int, str], Limits] = {}
        self._paused: frozenset[tuple[int, str]] = frozenset()
        self._keys: dict[int, _Keys] = {}
        self._keyed: frozenset[int] = frozenset()
        #: By tenant and queue, how long workers may be silent.
        self._silences: dict[int, dict[str, float]] = {}
        self._change = 0
        #: How many rules were read so far.
        self.read_count = 0
        self._seen: Change | None = None
        self._reading = asyncio.Lock()

    # The cached rules

    @property
    def change(self) -> int:
        """A number that changes whenever anything has changed."""
        return self._change

    def of_queue(self, tenant: int, queue: str) -> Limits | None:
        return self._queues.get((tenant, queue))

    def queue_limits(self) -> Mapping[tuple[int, str], Limits]:
        """By tenant and queue; those without any are left out."""
        return self._queues

    def paused_queues(self) -> frozenset[tuple[int, str]]:
        return self._paused

    def silence_of(self, tenant: int, queues: frozenset[str] | None) -> float | None:
        """How long a worker of these queues (None: of all) may be silent: the longest setting of any of them."""
        said = self._silences.get(tenant)
        if said is None:
            return None
        return max((seconds for queue, seconds in said.items() if queues is None or queue in queues), default=None)

    def of_key(self, tenant: int, key: str) -> tuple[str, Limits] | None:
        """The name that fits a key, and its limits: the key itself comes before the longest pattern."""
        keys = self._keys.get(tenant)
        return None if keys is None else keys.find(key)

    def keyed_tenants(self) -> frozenset[int]:
        """The tenants that limit any key. The keys of other tenants' tasks need no look."""
        return self._keyed

    async def refresh(self, change: Change | None = None) -> None:
        """Read what has changed; `change` is the latest change, if it was read already."""
        async with self._reading:
            if change is None:
                change = (await read_changes(self._database))["limits"]
            if change == self._seen:
                return
            if self._seen is not None and change.follows(self._seen):
                rows = await self._database.run(_SQL["read_changed"], seen=self._seen.number)
            else:
                rows = await self._database.run(_SQL["read_all"])
                self._forget(self._tenants())
            self._forget({row["tenant"] for row in rows})
            unusable = self._compile([row for row in rows if row["name"] is not None])
            self._seen = change
            self._change += 1
            self.read_count += len(rows)
            await self._tell(unusable)

    def _tenants(self) -> set[int]:
        return {tenant for tenant, _ in (*self._queues, *self._paused)} | {*self._keys, *self._silences}

    def _forget(self, tenants: set[int]) -> None:
        """Forget the rules of these tenants."""
        self._queues = {place: limits for place, limits in self._queues.items() if place[0] not in tenants}
        self._paused = frozenset(place for place in self._paused if place[0] not in tenants)
        self._keys = {tenant: keys for tenant, keys in self._keys.items() if tenant not in tenants}
        self._silences = {tenant: said for tenant, said in self._silences.items() if tenant not in tenants}

    def _compile(self, rows: Sequence[asyncpg.Record]) -> list[tuple[int, str, str]]:
        """Add these rules. Return those that cannot be used: tenant, name, why."""
        unusable: list[tuple[int, str, str]] = []
        queues, paused, keys, silences = self._queues, {*self._paused}, self._keys, self._silences
        for row in rows:
            tenant, name = row["tenant"], row["name"]
            if row["max_silence"] is not None:
                silences.setdefault(tenant, {})[name] = row["max_silence"]
            if row["state"] == "paused":
                paused.add((tenant, name))
            try:
                limits = _decode(row["limits"])
            except msgspec.DecodeError as error:
                # Another version of duetime stored it, and accepted it.
                unusable.append((tenant, name, str(error)))
                continue
            if limits.is_empty:
                continue
            if row["scope"] == LimitScope.KEY:
                keys.setdefault(tenant, _Keys()).add(name, limits)
            elif row["scope"] == LimitScope.QUEUE:
                queues[tenant, name] = limits
        self._paused, self._keyed = frozenset(paused), frozenset(keys)
        return unusable

    async def _tell(self, unusable: Sequence[tuple[int, str, str]]) -> None:
        if unusable:
            names = await read_names(self._database, [tenant for tenant, _, _ in unusable])
            for tenant, name, error in unusable:
                log.error("a limit cannot be used", tenant=names.get(tenant, tenant), name=name, error=error)

    # The stored rules

    async def put(
        self,
        tenant: int,
        scope: LimitScope,
        name: str,
        *,
        limits: Limits | None = None,
        state: QueueState | None = None,
        max_silence: float | UnsetType | None = UNSET,
        by: int | None = None,
    ) -> tuple[bool, LimitRule]:
        """Store a rule. What is None or not set stays as it is. Return whether it is new, and the stored rule."""
        rows = await run_once(
            self._database,
            _SQL["put"],
            tenant=tenant,
            scope=int(scope),
            name=name,
            limits=None if limits is None else _encode(limits),
            state=state,
            sets_silence=max_silence is not UNSET,
            max_silence=None if max_silence is UNSET else max_silence,
            most=MAX_RULES_PER_TENANT,
            noun=_NOUNS[scope],
            by=by,
        )
        if rows:
            await self.refresh()
            return rows[0]["version"] == 1, _rule(rows[0])
        same = await self.find(tenant, scope, name)
        if same is None:
            raise InvalidInput.at("name", f"a tenant has at most {MAX_RULES_PER_TENANT:,} limits of queues and keys")
        return False, same

    async def delete(self, tenant: int, scope: LimitScope, name: str, *, by: int | None = None) -> None:
        rows = await run_once(
            self._database, _SQL["delete"], tenant=tenant, scope=int(scope), name=name, noun=_NOUNS[scope], by=by
        )
        if not rows:
            raise _missing(scope, name)
        await self.refresh()

    async def find(self, tenant: int, scope: LimitScope, name: str) -> LimitRule | None:
        rows = await self._database.run(_SQL["read_one"], tenant=tenant, scope=int(scope), name=name)
        return _rule(rows[0]) if rows else None

    async def get(self, tenant: int, scope: LimitScope, name: str) -> LimitRule:
        found = await self.find(tenant, scope, name)
        if found is None:
            raise _missing(scope, name)
        return found

    async def page(self, tenant: int, scope: LimitScope, after: str, limit: int) -> list[LimitRule]:
        rows = await self._database.run(_SQL["read_page"], tenant=tenant, scope=int(scope), after=after, limit=limit)
        return [_rule(row) for row in rows]

    async def count_tasks(self, lanes: Sequence[int]) -> Counted:
        """Count what runs and waits in these lanes."""
        if not lanes:
            return Counted(0, 0)
        until = just_after(self._database.clock.now_ms())
        [row] = await self._database.run(_SQL["count_tasks"], lanes=sorted(lanes), most=MAX_COUNTED, until=until)
        return Counted(row["running"], row["due"])


def _missing(scope: LimitScope, name: str) -> NotFound:
    return NotFound(f"there is no {_WORDS[scope]} under the name {name[:80]}")


def _rule(row: asyncpg.Record) -> LimitRule:
    return LimitRule(
        row["name"], _decode(row["limits"]), row["state"], row["version"], row["updated_at"], row["max_silence"]
    )
