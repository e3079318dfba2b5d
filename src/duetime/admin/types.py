"""Task types: a schema for their payloads, defaults, limits, flow control; one that is not registered has none of it.

`Types` keeps what every registered type says, and looks once in a while whether
any has changed: one row tells.  Then it reads those that did; schemas are read
and compiled by `Schemas`, when a payload has to be judged.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg
import msgspec
import structlog
from msgspec import Raw

from duetime.admin.changes import Change, read_changes
from duetime.admin.quotas import lock_quotas, read_quotas
from duetime.admin.schemas import TENANT_BYTES, Schemas, StoredSchema
from duetime.database.changing import changing, run_once
from duetime.database.pages import PAGE_BYTES, cut_page
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import FieldError, InvalidInput, NotFound
from duetime.long_work import LongWork
from duetime.model.flow import Debounce, RateLimit, Throttle, TypeDefaults, TypeRules, Unique
from duetime.model.limits import TypeLimits
from duetime.model.payload_schema import PayloadSchema, SchemaError
from duetime.model.quotas import Quotas

log = structlog.get_logger()
#: How many waiting tasks a changed schema is tried on.
SAMPLE = 10_000
_EXAMPLES = 10
_LEARNT_AT_ONCE = 1_000
_TRY_SECONDS = 1.0
_TRY_AT_ONCE_SECONDS = 0.01
#: Payloads of the sample that are in memory at once, 13 MB at the most.
_TRY_AT_ONCE = 200

_SQL = load(__package__, "types.sql")
_decode_rules = msgspec.json.Decoder(TypeRules).decode
_NO_RULES = TypeRules()


class TypeInfo(msgspec.Struct, frozen=True):
    """A registered type; what it does not say is null."""

    name: str
    schema: Raw | None
    defaults: TypeDefaults | None
    limits: TypeLimits | None
    throttle: Throttle | None
    rate_limit: RateLimit | None
    debounce: Debounce | None
    unique: Unique | None
    version: int
    updated_at: datetime


class TypePut(msgspec.Struct, frozen=True):
    """The type as it is now, and what it means for tasks that wait."""

    name: str
    version: int
    #: Waiting tasks of the type that were looked at, at most 10,000, and how many of them do not match.
    waiting_sampled: int
    waiting_invalid: int


class TypeMismatch(msgspec.Struct, frozen=True):
    """A waiting task whose payload does not match, and where."""

    task: uuid.UUID
    errors: list[FieldError]


class TypePreview(msgspec.Struct, frozen=True):
    """What registering the type would mean; nothing is stored."""

    name: str
    is_new: bool
    #: As in TypePut.
    waiting_sampled: int
    waiting_invalid: int
    #: The first few of those that do not match.
    examples: list[TypeMismatch]


@dataclass(frozen=True, slots=True)
class TypeKind:
    """A type as submissions meet it."""

    #: When it was stored; one that was forgotten and registered again begins with the first version.
    updated_at: datetime
    schema: StoredSchema | None
    rules: TypeRules
    #: Of what runs, with the throttle among them.
    limits: TypeLimits | None


class Types:
    def __init__(self, database: Database, schemas: Schemas | None = None, turns: LongWork | None = None) -> None:
        self._database = database
        self.schemas = schemas or Schemas(database)
        self._turns = turns or LongWork()
        self._kinds: dict[int, dict[str, TypeKind]] = {}
        #: How many types of a tenant have limits.
        self._limits: dict[int, int] = {}
        self._limited: frozenset[int] = frozenset()
        self._limits_change = 0
        self._seen: Change | None = None
        #: How many types were read so far.
        self.read_count = 0
        # Of two concurrent reads, the one with the older rows must not write last.
        self._reading = asyncio.Lock()

    def kind(self, tenant: int, name: str) -> TypeKind | None:
        """The cached rules of a type."""
        kinds = self._kinds.get(tenant)
        return None if kinds is None else kinds.get(name)

    def limits(self, tenant: int, name: str) -> TypeLimits | None:
        """What limits the type's attempts."""
        found = self.kind(tenant, name)
        return None if found is None else found.limits

    def limited_tenants(self) -> frozenset[int]:
        """The tenants that have a type with limits."""
        return self._limited

    @property
    def limits_change(self) -> int:
        """A number that changes whenever the limits of any type have changed."""
        return self._limits_change

    def __bool__(self) -> bool:
        return bool(self._kinds)

    async def refresh(self, change: Change | None = None) -> None:
        """Read what has changed; `change` is the latest change, if it was read already."""
        async with self._reading:
            if change is None:
                change = (await read_changes(self._database))["types"]
            if change == self._seen:
                return
            if self._seen is not None and change.follows(self._seen):
                await self._read_changed(self._seen.number)
            else:
                await self._read_all()
            self._seen = change
            limited = self._limits.keys()
            if self._limited != limited:
                self._limited = frozenset(limited)

    async def _read_all(self) -> None:
        rows = await self._database.run(_SQL["read_all"])
        stored: dict[int, set[str]] = {}
        for place, row in enumerate(rows, 1):
            stored.setdefault(row["tenant"], set()).add(row["name"])
            self._learn(row)
            if place % _LEARNT_AT_ONCE == 0:
                await asyncio.sleep(0)
        for tenant in list(self._kinds):
            self._forget_all_but(tenant, stored.get(tenant, set()))

    async def _read_changed(self, seen: int) -> None:
        counts: dict[int, int] = {}
        for place, row in enumerate(await self._database.run(_SQL["read_changed"], seen=seen), 1):
            counts[row["tenant"]] = row["types"]
            if row["name"] is not None:
                self._learn(row)
            if place % _LEARNT_AT_ONCE == 0:
                await asyncio.sleep(0)
        # New types are known by now. If more types are known than are stored, some were deleted.
        shrunk = [tenant for tenant, count in counts.items() if len(self._kinds.get(tenant, ())) != count]
        if shrunk:
            stored: dict[int, set[str]] = {tenant: set() for tenant in shrunk}
            for row in await self._database.run(_SQL["read_names"], tenants=shrunk):
                stored[row["tenant"]].add(row["name"])
            for tenant, names in stored.items():
                self._forget_all_but(tenant, names)

    def _learn(self, row: asyncpg.Record) -> None:
        """This type is stored; it may be known."""
        tenant, name = row["tenant"], row["name"]
        known = self.kind(tenant, name)
        self.read_count += 1
        if known is None or known.updated_at != row["updated_at"]:
            self._replace(tenant, name, _kind_of(row))

    def _forget_all_but(self, tenant: int, names: set[str]) -> None:
        for name in [name for name in self._kinds.get(tenant, ()) if name not in names]:
            self._replace(tenant, name, None)

    def _replace(self, tenant: int, name: str, kind: TypeKind | None) -> None:
        kinds = self._kinds.setdefault(tenant, {})
        old = kinds.pop(name, None)
        if kind is not None:
            kinds[name] = kind
        elif not kinds:
            del self._kinds[tenant]
        if old is not None and old.schema is not None:
            self.schemas.forget(old.schema)
        before, after = (None if each is None else each.limits for each in (old, kind))
        if before != after:
            self._limits_change += 1
            count = self._limits.get(tenant, 0) + (after is not None) - (before is not None)
            self._limits[tenant] = count
            if not count:
                del self._limits[tenant]

    async def put(
        self,
        tenant: int,
        name: str,
        schema: bytes | None,
        lanes: list[int],
        *,
        rules: TypeRules = _NO_RULES,
        by: int | None = None,
    ) -> tuple[bool, TypePut]:
        """Store a type. Return whether it is new, and how waiting tasks of these lanes would fare."""
        compiled = await self.compile(tenant, schema)
        held_bytes = 0 if compiled is None else compiled.held_bytes
        await self._is_new(tenant, name, held_bytes)
        tried = await self._try_on_waiting(compiled, tenant, name, lanes)
        stored_rules = None if rules.is_empty else msgspec.json.encode(rules)
        wanted: dict[str, object] = {"tenant": tenant, "name": name, "schema": schema, "rules": stored_rules, "by": by}
        count, put = _SQL["count_of_tenant"], _SQL["put"]
        async with changing(self._database) as connection:
            quotas = await lock_quotas(connection, tenant)
            row = await connection.fetchrow(count.sql, *count.arguments({"tenant": tenant, "name": name}))
            is_new = _check_room(row, quotas, name, held_bytes)
            stored_rows = await connection.fetch(put.sql, *put.arguments(wanted | {"held_bytes": held_bytes}))
        await self.refresh()
        if compiled is not None and stored_rows:
            kind = self.kind(tenant, name)
            if kind is not None and kind.schema is not None and kind.updated_at == stored_rows[0]["updated_at"]:
                self.schemas.keep(kind.schema, compiled)
        stored = await self.get(tenant, name)
        return is_new, TypePut(name, stored.version, tried.sampled, tried.invalid)

    async def compile(self, tenant: int, schema: bytes | None) -> PayloadSchema | None:
        """Check a requested schema; raises InvalidInput."""
        try:
            return None if schema is None else await self.schemas.compile(tenant, schema)
        except SchemaError as error:
            raise InvalidInput.at("schema", str(error)) from error

    async def preview(self, tenant: int, name: str, schema: bytes | None, lanes: list[int]) -> TypePreview:
        """What `put` would answer, with some of the tasks that would not match. Raises what `put` would raise."""
        compiled = await self.compile(tenant, schema)
        is_new = await self._is_new(tenant, name, 0 if compiled is None else compiled.held_bytes)
        tried = await self._try_on_waiting(compiled, tenant, name, lanes)
        return TypePreview(name, is_new, tried.sampled, tried.invalid, tried.examples)

    async def _is_new(self, tenant: int, name: str, held_bytes: int) -> bool:
        """Whether the type is new. Raises if the tenant has no room for it now."""
        [row] = await self._database.run(_SQL["count_of_tenant"], tenant=tenant, name=name)
        return _check_room(row, await read_quotas(self._database, tenant), name, held_bytes)

    async def _try_on_waiting(self, schema: PayloadSchema | None, tenant: int, name: str, lanes: list[int]) -> "_Tried":
        """How many tasks were judged, and how many do not match.  Ends after a second; other work gets its turn."""
        tried = _Tried()
        if schema is None:
            return tried
        async with self.schemas.one_at_a_time(tenant):
            sample = await self._database.run(_SQL["sample_waiting"], lanes=lanes, most=SAMPLE, type=name)
            for at in range(0, len(sample), _TRY_AT_ONCE):
                some = sample[at : at + _TRY_AT_ONCE]
                rows = await self._database.run(
                    _SQL["read_payloads"],
                    lanes=[each["lane"] for each in some],
                    tasks=[each["id"] for each in some],
                )
                await self._try_on(schema, rows, tried)
                if tried.seconds >= _TRY_SECONDS:
                    break
        return tried

    async def _try_on(self, schema: PayloadSchema, rows: Sequence[asyncpg.Record], tried: "_Tried") -> None:
        left = iter(rows)
        while tried.seconds < _TRY_SECONDS:
            await self._turns.give_way()
            began = time.perf_counter()
            for row in left:
                _try_one(schema, row, tried)
                if time.perf_counter() - began >= _TRY_AT_ONCE_SECONDS:
                    break
            else:
                return
            tried.seconds += time.perf_counter() - began

    async def get(self, tenant: int, name: str) -> TypeInfo:
        rows = await self._database.run(_SQL["read_one"], tenant=tenant, name=name)
        if not rows:
            raise NotFound(f"there is no registered type {name[:80]}")
        return _info_of(rows[0])

    async def page(
        self, tenant: int, after: str, limit: int, likes: list[str] | None = None
    ) -> tuple[list[TypeInfo], bool]:
        """The types after a name, and whether there are more. A name must fit one of the patterns `likes`."""
        found = await self._database.run(
            _SQL["read_of_tenant"], tenant=tenant, after=after, limit=limit + 1, likes=likes, bytes=PAGE_BYTES
        )
        rows, has_more = cut_page(found, limit)
        return [_info_of(row) for row in rows], has_more

    async def delete(self, tenant: int, name: str, *, by: int | None = None) -> None:
        rows = await run_once(self._database, _SQL["delete"], tenant=tenant, name=name, by=by)
        if not rows:
            raise NotFound(f"there is no registered type {name[:80]}")
        await self.refresh()


@dataclass(slots=True)
class _Tried:
    """How a schema fared on waiting tasks."""

    sampled: int = 0
    invalid: int = 0
    seconds: float = 0.0
    examples: list[TypeMismatch] = field(default_factory=list)


def _check_room(row: asyncpg.Record, quotas: Quotas, name: str, held_bytes: int) -> bool:
    """Whether the type is new, by what the tenant has. Raises if there is no room for it."""
    most = quotas.max_types
    if most is not None and not row["is_known"] and row["types"] >= most:
        raise InvalidInput.at("name", f"a tenant has at most {most:,} registered types (max_types)")
    if held_bytes and row["held_bytes"] + held_bytes > TENANT_BYTES:
        raise InvalidInput.at(
            "schema",
            f"with the schema of type {name[:80]} ({held_bytes // 1024:,} KiB when it is compiled) the schemas of this "
            f"tenant would take more than {TENANT_BYTES // 1024:,} KiB of memory; simplify some, or delete types",
        )
    return not row["is_known"]


def _try_one(schema: PayloadSchema, row: asyncpg.Record, tried: _Tried) -> None:
    payload, size = msgspec.json.decode(row["payload"]), len(row["payload"])
    tried.sampled += 1
    if len(tried.examples) >= _EXAMPLES:
        tried.invalid += not schema.is_valid(payload, size)
    elif found := schema.judge(payload, size):
        tried.invalid += 1
        wrong = [FieldError(f"payload{path}", message) for path, message in found]
        tried.examples.append(TypeMismatch(row["id"], wrong))


def _kind_of(row: asyncpg.Record) -> TypeKind:
    schema = StoredSchema(row["tenant"], row["name"]) if row["has_schema"] else None
    rules = _NO_RULES
    try:
        rules = _rules_of(row)
    except msgspec.DecodeError as error:
        # A newer node has stored something that this one does not know.
        log.error("a type's rules cannot be read", type=row["name"], error=str(error))
    return TypeKind(row["updated_at"], schema, rules, rules.limits_in_force())


def _rules_of(row: asyncpg.Record) -> TypeRules:
    return _NO_RULES if row["rules"] is None else _decode_rules(row["rules"])


def _info_of(row: asyncpg.Record) -> TypeInfo:
    rules = _rules_of(row)
    return TypeInfo(
        row["name"],
        None if row["schema"] is None else Raw(row["schema"]),
        rules.defaults,
        rules.limits,
        rules.throttle,
        rules.rate_limit,
        rules.debounce,
        rules.unique,
        row["version"],
        row["updated_at"],
    )
