"""Task types: a schema for their payloads, defaults, limits, flow control; one that is not registered has none of it.

`Types` keeps every registered type compiled, and looks once in a while whether
any has changed: one row tells.
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

from duetime.admin.changes import read_changes
from duetime.admin.quotas import lock_quotas, read_quotas
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import FieldError, InvalidInput, NotFound
from duetime.model.flow import Debounce, RateLimit, Throttle, TypeDefaults, TypeRules, Unique
from duetime.model.limits import TypeLimits
from duetime.model.payload_schema import PayloadSchema, SchemaError
from duetime.model.quotas import DEFAULT_TYPES, Quotas

log = structlog.get_logger()
#: How many waiting tasks a changed schema is tried on.
SAMPLE = 10_000
_EXAMPLES = 10
_TRY_SECONDS = 1.0
_TRY_AT_ONCE_SECONDS = 0.01

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
    schema: PayloadSchema | None
    rules: TypeRules
    #: Of what runs, with the throttle among them.
    limits: TypeLimits | None


class Types:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._kinds: dict[tuple[int, str], TypeKind] = {}
        self._limited: frozenset[int] = frozenset()
        self._change = -1

    def kind(self, tenant: int, name: str) -> TypeKind | None:
        """All that a type says, as it was a moment ago."""
        return self._kinds.get((tenant, name))

    def find(self, tenant: int, name: str) -> PayloadSchema | None:
        """The schema of a type's payloads."""
        found = self._kinds.get((tenant, name))
        return None if found is None else found.schema

    def limits(self, tenant: int, name: str) -> TypeLimits | None:
        """What limits the type's attempts."""
        found = self._kinds.get((tenant, name))
        return None if found is None else found.limits

    def limited_tenants(self) -> frozenset[int]:
        """Those that have a type with limits."""
        return self._limited

    @property
    def change(self) -> int:
        """Another number whenever any type has changed."""
        return self._change

    def __bool__(self) -> bool:
        return bool(self._kinds)

    async def refresh(self, change: int | None = None) -> None:
        """Read them all again if any has changed; `change` is the number of changes, if it was read already."""
        if change is None:
            change = (await read_changes(self._database))["types"]
        if change == self._change:
            return
        kinds: dict[tuple[int, str], TypeKind] = {}
        for each in await self._database.run(_SQL["read_all"]):
            place = (each["tenant"], each["name"])
            known = self._kinds.get(place)
            if known is not None and known.updated_at == each["updated_at"]:
                kinds[place] = known
                continue
            kinds[place] = _kind_of(each)
        self._kinds, self._change = kinds, change
        self._limited = frozenset(tenant for (tenant, _), kind in kinds.items() if kind.limits is not None)

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
        """Store a type; whether it is new, and how waiting tasks of these lanes would fare."""
        compiled = compile_schema(schema)
        await self._is_new(tenant, name)
        tried = await self._try_on_waiting(compiled, name, lanes)
        stored_rules = None if rules.is_empty else msgspec.json.encode(rules)
        wanted: dict[str, object] = {"tenant": tenant, "name": name, "schema": schema, "rules": stored_rules, "by": by}
        count, put = _SQL["count_of_tenant"], _SQL["put"]
        async with self._database.connection() as connection, connection.transaction():
            quotas = await lock_quotas(connection, tenant)
            row = await connection.fetchrow(count.sql, *count.arguments({"tenant": tenant, "name": name}))
            is_new = _check_room(row, quotas)
            await connection.fetch(put.sql, *put.arguments(wanted))
        await self.refresh()
        stored = await self.get(tenant, name)
        return is_new, TypePut(name, stored.version, tried.sampled, tried.invalid)

    async def preview(self, tenant: int, name: str, schema: bytes | None, lanes: list[int]) -> TypePreview:
        """What `put` would answer, with some of the tasks that would not match; raises what it would raise."""
        compiled = compile_schema(schema)
        is_new = await self._is_new(tenant, name)
        tried = await self._try_on_waiting(compiled, name, lanes)
        return TypePreview(name, is_new, tried.sampled, tried.invalid, tried.examples)

    async def _is_new(self, tenant: int, name: str) -> bool:
        """Whether the type is new; raises if the tenant has no room for it now."""
        [row] = await self._database.run(_SQL["count_of_tenant"], tenant=tenant, name=name)
        return _check_room(row, await read_quotas(self._database, tenant))

    async def _try_on_waiting(self, schema: PayloadSchema | None, name: str, lanes: list[int]) -> "_Tried":
        if schema is None:
            return _Tried()
        return await _try_on(
            schema, await self._database.run(_SQL["sample_waiting"], lanes=lanes, most=SAMPLE, type=name)
        )

    async def get(self, tenant: int, name: str) -> TypeInfo:
        rows = await self._database.run(_SQL["read_one"], tenant=tenant, name=name)
        if not rows:
            raise NotFound(f"there is no registered type {name[:80]}")
        return _info_of(rows[0])

    async def page(self, tenant: int, after: str, limit: int, likes: list[str] | None = None) -> list[TypeInfo]:
        """Types by name; `likes` are patterns of which a name must fit one."""
        rows = await self._database.run(_SQL["read_of_tenant"], tenant=tenant, after=after, limit=limit, likes=likes)
        return [_info_of(row) for row in rows]

    async def delete(self, tenant: int, name: str, *, by: int | None = None) -> None:
        rows = await self._database.run(_SQL["delete"], tenant=tenant, name=name, by=by)
        if not rows:
            raise NotFound(f"there is no registered type {name[:80]}")
        await self.refresh()


@dataclass(slots=True)
class _Tried:
    """How a schema fared on waiting tasks."""

    sampled: int = 0
    invalid: int = 0
    examples: list[TypeMismatch] = field(default_factory=list)


def _check_room(row: asyncpg.Record, quotas: Quotas) -> bool:
    """Whether the type is new, by what the tenant has; raises if there is no room for it."""
    most = DEFAULT_TYPES if quotas.max_types is None else quotas.max_types
    if not row["is_known"] and row["types"] >= most:
        raise InvalidInput.at("name", f"a tenant has at most {most:,} registered types (max_types)")
    return not row["is_known"]


def compile_schema(schema: bytes | None) -> PayloadSchema | None:
    try:
        return None if schema is None else PayloadSchema(schema)
    except SchemaError as error:
        raise InvalidInput.at("schema", str(error)) from error


async def _try_on(schema: PayloadSchema, rows: Sequence[asyncpg.Record]) -> _Tried:
    """How many were judged, and how many do not match; others are served meanwhile, and it ends after a second."""
    spent, tried = 0.0, _Tried()
    while tried.sampled < len(rows) and spent < _TRY_SECONDS:
        began = time.perf_counter()
        while tried.sampled < len(rows) and time.perf_counter() - began < _TRY_AT_ONCE_SECONDS:
            _try_one(schema, rows[tried.sampled], tried)
        spent += time.perf_counter() - began
        await asyncio.sleep(0)
    return tried


def _try_one(schema: PayloadSchema, row: asyncpg.Record, tried: _Tried) -> None:
    payload = msgspec.json.decode(row["payload"])
    tried.sampled += 1
    if schema.is_valid(payload):
        return
    tried.invalid += 1
    if len(tried.examples) < _EXAMPLES:
        wrong = [FieldError(f"payload{path}", message) for path, message in schema.errors(payload)]
        tried.examples.append(TypeMismatch(row["id"], wrong))


def _kind_of(row: asyncpg.Record) -> TypeKind:
    schema = None
    try:
        schema = None if row["schema"] is None else PayloadSchema(row["schema"])
    except SchemaError as error:
        # It was right when it was stored, by another version of the library.
        log.error("a type's schema cannot be used", type=row["name"], error=str(error))
    rules = _NO_RULES
    try:
        rules = _rules_of(row)
    except msgspec.DecodeError as error:
        # A newer node has stored what this one does not know.
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
