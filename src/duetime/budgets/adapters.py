"""Which stores of budgets exist, and what to do when one does not answer."""

import time
from collections.abc import Callable, Mapping

import structlog

from duetime.budgets.contract import Budgets, Want
from duetime.budgets.postgres import PostgresBudgets
from duetime.database.pool import Database
from duetime.errors import Unavailable

log = structlog.get_logger()
#: The wait before a store that did not answer is asked again.
REST_SECONDS = 5.0


def open_budgets(database: Database, redis_url: str | None) -> Budgets:
    """Redis if it is configured, with PostgreSQL behind it."""
    if redis_url is None:
        return PostgresBudgets(database)
    from duetime.budgets.redis import RedisBudgets

    return BudgetsInTurn(RedisBudgets(redis_url), PostgresBudgets(database))


class BudgetsInTurn:
    """The first store, or the second while the first does not answer.

    The second does not know what the first granted: each change between them may grant
    up to one burst more.
    """

    def __init__(self, first: Budgets, second: Budgets, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._first = first
        self._second = second
        self._monotonic = monotonic
        self._is_away = False
        self._asked_again_at = 0.0

    async def take(self, wanted: Mapping[str, Want]) -> dict[str, float]:
        if not self._is_away or self._monotonic() >= self._asked_again_at:
            try:
                granted = await self._first.take(wanted)
            except Unavailable as error:
                self._asked_again_at = self._monotonic() + REST_SECONDS
                if not self._is_away:
                    self._is_away = True
                    log.warning("budgets are kept in the database for now", error=str(error))
            else:
                if self._is_away:
                    self._is_away = False
                    log.info("budgets are kept in Redis again")
                return granted
        return await self._second.take(wanted)

    async def close(self) -> None:
        await self._first.close()
        await self._second.close()
