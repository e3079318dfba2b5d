"""One node's part of the budgets: what it may hand out now, without asking for each token.

A node that is alone keeps the buckets itself and is exact.  With other nodes it
fetches tokens from the store: the tokens wanted now, and as many more as it used in
the last second.  Fetched tokens are valid for one second, so that no node saves them
up; all nodes together hand out at most `rate * (t + 1) + burst` tokens in t seconds.
While no store answers, each node hands out the whole rate by itself.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from duetime.budgets.contract import Budgets, Want, first_tokens
from duetime.database.gather import Gatherer
from duetime.errors import Unavailable
from duetime.model.token_bucket import ROUNDING, TokenBucket

log = structlog.get_logger()
#: How long fetched tokens are valid.
PERIOD_SECONDS = 1.0
#: From this use a second on, tokens are fetched ahead; below it, one question for each token costs little.
FETCH_AHEAD_FROM = 10.0
#: After an answer with fewer tokens than wanted, the store is not asked again for this time.
DRY_SECONDS = 0.1
#: When tokens for less than this part of a second are left, the next are fetched.
_LOW = 0.3
MAX_BUCKETS_PER_CALL = 1_000

Monotonic = Callable[[], float]


@dataclass
class _Stock:
    """Tokens that were fetched and not handed out yet, and how many are used in a second."""

    tokens: float = 0.0
    good_until: float = 0.0
    dry_until: float = 0.0
    used: float = 0.0
    used_before: float = 0.0
    period_at: float = 0.0
    is_fetching: bool = False

    def look(self, now: float) -> None:
        if now >= self.good_until:
            self.tokens = 0.0
        if now >= self.period_at + PERIOD_SECONDS:
            self.used_before = self.used if now < self.period_at + 2 * PERIOD_SECONDS else 0.0
            self.used, self.period_at = 0.0, now

    def use(self, tokens: float) -> None:
        self.tokens -= tokens
        self.used += tokens

    def ahead(self, rate: float) -> float:
        """How many tokens the next second will need."""
        use = max(self.used, self.used_before)
        return min(use, rate * PERIOD_SECONDS) if use >= FETCH_AHEAD_FROM else 0.0

    def add(self, granted: float, asked: float, now: float) -> None:
        self.tokens += granted
        self.good_until = now + PERIOD_SECONDS
        if granted < asked:
            self.dry_until = now + DRY_SECONDS


@dataclass(frozen=True)
class _Ask:
    name: str
    want: Want


class Allowance:
    def __init__(self, budgets: Budgets | None, *, monotonic: Monotonic = time.monotonic) -> None:
        """`budgets`: the store that nodes share; None: this node is alone."""
        self._budgets = budgets
        self._monotonic = monotonic
        #: By names, whose number the callers bound.
        self._alone: dict[str, TokenBucket] = {}
        self._stocks: dict[str, _Stock] = {}
        self._gather: Gatherer[_Ask, float] = Gatherer(self._fetch, limit=MAX_BUCKETS_PER_CALL)
        self._background: set[asyncio.Task[None]] = set()
        self._is_lost = False

    def take_now(self, name: str, want: Want, *, is_whole: bool = False) -> int | None:
        """How many of the wanted tokens may be used, or with `is_whole` all or none; None: `take` has to ask."""
        now = self._monotonic()
        if self._budgets is None:
            return self._take_own(name, want, now, is_whole)
        stock = self._stocks.get(name)
        if stock is None:
            return None
        stock.look(now)
        if stock.tokens < want.tokens and now >= stock.dry_until:
            return None
        granted = _whole_part(stock.tokens, want.tokens, is_whole)
        stock.use(granted)
        ahead = stock.ahead(want.rate)
        if stock.tokens < _LOW * ahead and not stock.is_fetching and now >= stock.dry_until:
            self._fetch_ahead(name, stock, want._replace(tokens=math.ceil(ahead)))
        return granted

    async def take(self, name: str, want: Want, *, is_whole: bool = False) -> int:
        """Like `take_now`, but ask the store if necessary."""
        granted = self.take_now(name, want, is_whole=is_whole)
        if granted is not None:
            return granted
        stock = self._stocks.setdefault(name, _Stock())
        asked = math.ceil(want.tokens - stock.tokens + stock.ahead(want.rate))
        try:
            got = await self._gather.add(_Ask(name, want._replace(tokens=asked)))
        except Unavailable as error:
            return self._take_alone(name, want, is_whole, error)
        self._is_lost = False
        now = self._monotonic()
        stock.look(now)
        stock.add(got, asked, now)
        granted = _whole_part(stock.tokens, want.tokens, is_whole)
        stock.use(granted)
        return granted

    def seconds_until(self, name: str, want: Want) -> float:
        """When this many tokens may be there, if nobody else takes them."""
        found = self._alone.get(name) if self._budgets is None else None
        if found is not None:
            return found.seconds_until(min(want.tokens, want.burst))
        return min(want.tokens, want.burst) / want.rate

    async def close(self) -> None:
        await self._gather.close()
        if self._background:
            await asyncio.wait(self._background)
        if self._budgets is not None:
            await self._budgets.close()

    def _take_alone(self, name: str, want: Want, is_whole: bool, error: Unavailable) -> int:
        if not self._is_lost:
            self._is_lost = True
            log.warning("no store of budgets answers; this node hands out the rates by itself", error=str(error))
        return self._take_own(name, want, self._monotonic(), is_whole)

    def _take_own(self, name: str, want: Want, now: float, is_whole: bool) -> int:
        """Take from the bucket of this node alone; a new bucket has the tokens of one second."""
        now_ms = now * 1000
        bucket = self._alone.get(name)
        if bucket is None:
            bucket = TokenBucket(want.rate, want.burst, first_tokens(want.rate, want.burst), now_ms)
            self._alone[name] = bucket
        else:
            bucket.change(want.rate, want.burst)
            bucket.fill(now_ms)
        granted = _whole_part(bucket.tokens, want.tokens, is_whole)
        bucket.take(granted)
        return granted

    def _fetch_ahead(self, name: str, stock: _Stock, want: Want) -> None:
        stock.is_fetching = True
        task = asyncio.create_task(self._fetch_quietly(name, stock, want))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _fetch_quietly(self, name: str, stock: _Stock, want: Want) -> None:
        try:
            got = await self._gather.add(_Ask(name, want))
        except Unavailable:
            # The next caller that needs tokens asks again, and gets the error.
            return
        finally:
            stock.is_fetching = False
        now = self._monotonic()
        stock.look(now)
        stock.add(got, want.tokens, now)

    async def _fetch(self, asks: list[_Ask]) -> list[float]:
        assert self._budgets is not None
        totals: dict[str, Want] = {}
        for ask in asks:
            before = totals.get(ask.name)
            tokens = ask.want.tokens + (0.0 if before is None else before.tokens)
            totals[ask.name] = ask.want._replace(tokens=tokens)
        left = await self._budgets.take(totals)
        answers = []
        for ask in asks:
            granted = min(ask.want.tokens, left[ask.name])
            left[ask.name] -= granted
            answers.append(granted)
        return answers


def _whole_part(tokens: float, wanted: float, is_whole: bool) -> int:
    there = int(tokens + ROUNDING)
    if there >= wanted:
        return int(wanted)
    return 0 if is_whole else there
