"""A database that explains each named statement before it runs it: what it reads, and by which way.

Both kinds of plan are looked at: the generic one that a prepared statement
keeps, and the custom one that a pooler without prepared statements gets.  An
explained statement is carried out and rolled back, then run for good.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from duetime.database.pool import Database
from duetime.database.statements import Statement

#: What the planner knows of tables that vacuum found without a row, and that have been filled since.
BELIEVE_EMPTY = """
UPDATE pg_class
   SET relpages = 1000, reltuples = 0
 WHERE relnamespace = 'duetime'::regnamespace
   AND relkind IN ('r', 'i')
"""
MODES = ("force_generic_plan", "force_custom_plan")
_OWN_TABLES = (
    *("task", "due", "attempt", "claim", "held", "dead", "holder", "idempotency_key", "request_key", "rescheduled"),
    *("schedule_state", "schedule", "fire", "backfill"),
    *("limit_slot", "budget", "flow_key", "submit_rate", "outbox", "listed"),
)


@dataclass
class Plan:
    """One statement's plan with what it did."""

    statement: str
    mode: str
    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    def scans(self) -> Iterator[dict[str, Any]]:
        """The nodes that read our tables, whether or not they had to run."""
        for node in self.nodes():
            if node["Node Type"] != "ModifyTable" and table_of(node) in _OWN_TABLES:
                yield node

    def rows_read(self) -> int:
        return sum(_rows(node) for node in self.scans())

    def rows_compared(self) -> int:
        """Rows read again from what the statement itself had gathered: a join of each with each shows here."""
        return sum(_rows(node) for node in self.nodes() if node["Node Type"] == "CTE Scan")

    def rows_sorted(self) -> int:
        return max((_rows(node) for node in self.nodes() if "Sort" in node["Node Type"]), default=0)

    def pages(self) -> int:
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    def wrong_ways(self) -> list[str]:
        """Scans of our tables that are led neither by an index condition nor by the rows' places."""
        return [
            f"{node['Node Type']} on {node['Relation Name']} by {node.get('Index Name', 'no index')}"
            for node in self.scans()
            if node["Node Type"] != "Tid Scan" and "Index Cond" not in node
        ]


def table_of(node: dict[str, Any]) -> str | None:
    """The table of a scan; of a partition the table that it belongs to."""
    name = node.get("Relation Name")
    return None if name is None else next((own for own in _OWN_TABLES if name == own or name.startswith(f"{own}_")), "")


def _rows(node: dict[str, Any]) -> int:
    # An average per loop: to two decimals in PostgreSQL 18, to a whole number in 15.
    seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return round(seen * node["Actual Loops"])


@dataclass
class Plans:
    """What was explained, by statement."""

    all: list[Plan] = field(default_factory=list)

    def of(self, statement: str) -> list[Plan]:
        return [plan for plan in self.all if plan.statement == statement]


class ExplainingDatabase(Database):
    plans: Plans | None = None

    async def run(self, statement: Statement, *, timeout: float = 10.0, **parameters: object) -> list[asyncpg.Record]:
        return await self.run_with(statement, parameters, timeout)

    async def run_with(
        self, statement: Statement, parameters: dict[str, object], timeout: float = 10.0
    ) -> list[asyncpg.Record]:
        await self._explain(statement, parameters)
        return await super().run_with(statement, parameters, timeout)

    async def run_in(
        self,
        connection: asyncpg.Connection,
        statement: Statement,
        parameters: dict[str, object],
        timeout: float = 10.0,
    ) -> list[asyncpg.Record]:
        await self._explain(statement, parameters)
        return await super().run_in(connection, statement, parameters, timeout)

    async def _explain(self, statement: Statement, parameters: dict[str, object]) -> None:
        if self.plans is not None:
            async with self.connection() as connection:
                for mode in MODES:
                    arguments = statement.arguments(parameters)
                    root = await explain(connection, statement.sql, arguments, mode)
                    self.plans.all.append(Plan(statement.name, mode, root))


async def explain(
    connection: asyncpg.Connection, sql: str, arguments: list[object], mode: str, *, prepared: str | None = None
) -> dict[str, Any]:
    """Carry out, look, and take back; `prepared` names a statement that the session has already."""
    literals = await _literals(connection, sql, arguments)
    name = prepared or "explained"
    if prepared is None:
        await connection.execute(f"PREPARE explained AS {sql}")
    change = connection.transaction()
    await change.start()
    try:
        await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        told = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {name}{literals}"
        )
    finally:
        await change.rollback()
        if prepared is None:
            await connection.execute("DEALLOCATE explained")
    root: dict[str, Any] = json.loads(told)[0]["Plan"]
    return root


async def _literals(connection: asyncpg.Connection, sql: str, arguments: list[object]) -> str:
    """The arguments as SQL, written by the server itself: EXPLAIN EXECUTE takes no parameters."""
    if not arguments:
        return ""
    types = [f"{kind.name}" for kind in (await connection.prepare(sql)).get_parameters()]
    casts = ", ".join(f"quote_nullable(${place}::{kind}::text)" for place, kind in enumerate(types, 1))
    row = await connection.fetchrow(f"SELECT {casts}", *arguments)
    return "(" + ", ".join(f"{text}::{kind}" for text, kind in zip(row, types, strict=True)) + ")"
