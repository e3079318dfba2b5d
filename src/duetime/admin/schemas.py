"""Compiled schemas of types: compiled when they are needed, off the loop, and kept within a budget of memory.

One is compiled at a time, and each tenant has at most one in the queue for that.
When there is no room for another, the tenant that holds the most gives up the one
that it has not used for longest: who has small schemas keeps them.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import InvalidInput
from duetime.model.payload_schema import PayloadSchema, SchemaError

log = structlog.get_logger()
#: How much memory compiled schemas may take on a node: those of one tenant, and all of them.
TENANT_BYTES = 128 * 1024 * 1024
NODE_BYTES = 256 * 1024 * 1024

#: After a compilation that took longer than this, its tenant waits several times as long before its next one.
_LONG_SECONDS = 0.05
_REST = 4
_MAX_REST_SECONDS = 5.0

_SQL = load(__package__, "types.sql")
_ANYTHING = b"true"


@dataclass(eq=False, slots=True)
class StoredSchema:
    """The schema of a type, compiled or not."""

    tenant: int
    name: str
    compiled: PayloadSchema | None = None
    #: Why it cannot be used.
    problem: str | None = None
    is_forgotten: bool = False


class JudgeLaterError(Exception):
    """The payload cannot be judged at once: the schema is not compiled, or judging needs a turn of its own."""

    def __init__(self, schema: StoredSchema, schemas: "Schemas") -> None:
        super().__init__(f"the schema of type {schema.name} is not ready")
        self.schema = schema
        self.schemas = schemas


@dataclass(slots=True)
class _Held:
    """The compiled schemas of one tenant, the most recently used last."""

    schemas: OrderedDict[StoredSchema, None] = field(default_factory=OrderedDict)
    bytes: int = 0


class Schemas:
    def __init__(self, database: Database, *, tenant_bytes: int = TENANT_BYTES, node_bytes: int = NODE_BYTES) -> None:
        self._database = database
        self._tenant_bytes = tenant_bytes
        self._node_bytes = node_bytes
        self._held: dict[int, _Held] = {}
        self._bytes = 0
        self._turn = asyncio.Lock()
        #: How long the last one took to compile.
        self._took = 0.0
        #: For tenants that compile or judge now: the lock, and how many calls wait for it.
        self._tenants: dict[int, tuple[asyncio.Lock, list[None]]] = {}

    @property
    def held_bytes(self) -> int:
        """The most memory that all of them may take."""
        return self._bytes

    def find(self, schema: StoredSchema) -> PayloadSchema:
        """The compiled schema; raises JudgeLaterError if it is not compiled, InvalidInput if it cannot be."""
        if schema.problem is not None:
            raise unusable(schema.name, schema.problem)
        if schema.compiled is None:
            raise JudgeLaterError(schema, self)
        self._held[schema.tenant].schemas.move_to_end(schema)
        return schema.compiled

    async def prepare(self, schema: StoredSchema) -> None:
        """Compile it, if that was not done yet."""
        async with self.one_at_a_time(schema.tenant):
            await self.prepare_alone(schema)

    async def prepare_alone(self, schema: StoredSchema) -> None:
        """The same, for a caller that already holds the tenant's lock."""
        if schema.compiled is not None or schema.problem is not None:
            return
        rows = await self._database.run(_SQL["read_schema"], tenant=schema.tenant, name=schema.name)
        # A schema that was replaced in the meantime is not needed.
        text = rows[0]["schema"] if rows else None
        try:
            compiled = await self._compile(_ANYTHING if text is None else text)
        except SchemaError as error:
            # Another version of the library, or other limits, accepted it when it was stored.
            log.error("a type's schema cannot be used", tenant=schema.tenant, type=schema.name, error=str(error))
            schema.problem = str(error)
            return
        self.keep(schema, compiled)
        await self._rest()

    async def compile(self, tenant: int, text: bytes) -> PayloadSchema:
        """A new schema of a tenant; raises SchemaError."""
        async with self.one_at_a_time(tenant):
            try:
                return await self._compile(text)
            finally:
                await self._rest()

    async def _compile(self, text: bytes) -> PayloadSchema:
        async with self._turn:
            began = time.perf_counter()
            try:
                return await asyncio.to_thread(PayloadSchema, text)
            finally:
                self._took = time.perf_counter() - began

    async def _rest(self) -> None:
        """A thread takes time from the event loop: a tenant whose schemas compile slowly gets a share of it."""
        if self._took > _LONG_SECONDS:
            await asyncio.sleep(min(_MAX_REST_SECONDS, _REST * self._took))

    def keep(self, schema: StoredSchema, compiled: PayloadSchema) -> None:
        if schema.compiled is not None or schema.is_forgotten:
            return
        held = self._held.setdefault(schema.tenant, _Held())
        schema.compiled = compiled
        held.schemas[schema] = None
        held.bytes += compiled.held_bytes
        self._bytes += compiled.held_bytes
        while held.bytes > self._tenant_bytes and len(held.schemas) > 1:
            self._drop_oldest(held)
        while self._bytes > self._node_bytes:
            largest = max(self._held.values(), key=lambda each: each.bytes)
            if len(largest.schemas) == 1 and schema in largest.schemas:
                break
            self._drop_oldest(largest)

    def forget(self, schema: StoredSchema) -> None:
        """It is no longer the type's schema."""
        schema.is_forgotten = True
        if schema.compiled is not None:
            self._drop(self._held[schema.tenant], schema)

    def _drop_oldest(self, held: _Held) -> None:
        self._drop(held, next(iter(held.schemas)))

    def _drop(self, held: _Held, schema: StoredSchema) -> None:
        del held.schemas[schema]
        if schema.compiled is not None:
            held.bytes -= schema.compiled.held_bytes
            self._bytes -= schema.compiled.held_bytes
            schema.compiled = None
        if not held.schemas:
            del self._held[schema.tenant]

    @asynccontextmanager
    async def one_at_a_time(self, tenant: int) -> AsyncIterator[None]:
        """Only one call of a tenant at a time does costly work."""
        lock, users = self._tenants.setdefault(tenant, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._tenants[tenant]


def unusable(name: str, problem: str) -> InvalidInput:
    return InvalidInput.at(
        "type", f"the schema of type {name[:80]} cannot be used any more: it {problem}; register the type again"
    )
