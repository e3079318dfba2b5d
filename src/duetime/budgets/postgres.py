"""Budgets in the database that every node has anyway."""

from collections.abc import Mapping

from duetime.budgets.contract import Want, first_tokens
from duetime.database.pool import Database
from duetime.database.statements import load

TIMEOUT_SECONDS = 1.0

_SQL = load(__package__, "postgres.sql")


class PostgresBudgets:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, wanted: Mapping[str, Want]) -> dict[str, float]:
        asked = sorted(wanted.items())
        rows = await self._database.run(
            _SQL["take"],
            timeout=TIMEOUT_SECONDS,
            names=[name for name, _ in asked],
            rates=[want.rate for _, want in asked],
            bursts=[want.burst for _, want in asked],
            firsts=[first_tokens(want.rate, want.burst) for _, want in asked],
            wanted=[want.tokens for _, want in asked],
        )
        return {row["name"]: row["granted"] for row in rows}

    async def close(self) -> None:
        """Close nothing: the owner of the database closes it."""
