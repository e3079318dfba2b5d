"""Task types with a schema for their payloads; a type that is not registered takes any payload.

`Types` keeps every registered type compiled, and looks once in a while whether
any has changed: one row tells.
"""

from datetime import datetime

import msgspec
import structlog
from msgspec import Raw

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import InvalidInput, NotFound
from duetime.model.payload_schema import PayloadSchema, SchemaError

log = structlog.get_logger()
MAX_TYPES_PER_TENANT = 1_000
#: How many waiting tasks a changed schema is tried on.
SAMPLE = 10_000

_SQL = load(__package__, "types.sql")


class TypeInfo(msgspec.Struct, frozen=True):
    name: str
    schema: Raw
    version: int
    updated_at: datetime


class TypePut(msgspec.Struct, frozen=True):
    """The type as it is now, and what it means for tasks that wait."""

    name: str
    version: int
    #: Waiting tasks of the type that were looked at, at most 10,000, and how many of them do not match.
    waiting_sampled: int
    waiting_invalid: int


class Types:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._compiled: dict[tuple[int, str], tuple[int, PayloadSchema]] = {}
        self._change = -1

    def find(self, tenant: int, name: str) -> PayloadSchema | None:
        """The schema of a type's payloads, as it was a moment ago."""
        found = self._compiled.get((tenant, name))
        return None if found is None else found[1]

    def __bool__(self) -> bool:
        return bool(self._compiled)

    async def refresh(self) -> None:
        """Read them all again if any has changed."""
        [row] = await self._database.run(_SQL["read_change"])
        change = row["change"] if row["is_called"] else 0
        if change == self._change:
            return
        compiled: dict[tuple[int, str], tuple[int, PayloadSchema]] = {}
        for each in await self._database.run(_SQL["read_all"]):
            place = (each["tenant"], each["name"])
            known = self._compiled.get(place)
            if known is not None and known[0] == each["version"]:
                compiled[place] = known
                continue
            try:
                compiled[place] = (each["version"], PayloadSchema(each["schema"]))
            except SchemaError as error:
                # It was right when it was stored, by another version of the library.
                log.error("a type's schema cannot be used", type=each["name"], error=str(error))
        self._compiled, self._change = compiled, change

    async def put(
        self, tenant: int, name: str, schema: bytes, lanes: list[int], *, by: int | None = None
    ) -> tuple[bool, TypePut]:
        """Store a type; whether it is new, and how waiting tasks of these lanes would fare."""
        try:
            compiled = PayloadSchema(schema)
        except SchemaError as error:
            raise InvalidInput.at("schema", str(error)) from error
        known = await self._database.run(_SQL["read_one"], tenant=tenant, name=name)
        if not known:
            [row] = await self._database.run(_SQL["count_of_tenant"], tenant=tenant)
            if row["types"] >= MAX_TYPES_PER_TENANT:
                raise InvalidInput.at("name", f"a tenant has at most {MAX_TYPES_PER_TENANT} registered types")
        rows = await self._database.run(_SQL["sample_waiting"], lanes=lanes, most=SAMPLE, type=name)
        invalid = sum(not compiled.is_valid(msgspec.json.decode(row["payload"])) for row in rows)
        await self._database.run(_SQL["put"], tenant=tenant, name=name, schema=schema, by=by)
        await self.refresh()
        stored = await self.get(tenant, name)
        return not known, TypePut(name, stored.version, len(rows), invalid)

    async def get(self, tenant: int, name: str) -> TypeInfo:
        rows = await self._database.run(_SQL["read_one"], tenant=tenant, name=name)
        if not rows:
            raise NotFound(f"there is no registered type {name[:80]}")
        return TypeInfo(rows[0]["name"], Raw(rows[0]["schema"]), rows[0]["version"], rows[0]["updated_at"])

    async def page(self, tenant: int, after: str, limit: int) -> list[TypeInfo]:
        rows = await self._database.run(_SQL["read_of_tenant"], tenant=tenant, after=after, limit=limit)
        return [TypeInfo(row["name"], Raw(row["schema"]), row["version"], row["updated_at"]) for row in rows]

    async def delete(self, tenant: int, name: str, *, by: int | None = None) -> None:
        rows = await self._database.run(_SQL["delete"], tenant=tenant, name=name, by=by)
        if not rows:
            raise NotFound(f"there is no registered type {name[:80]}")
        await self.refresh()
