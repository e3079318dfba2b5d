"""When a tenant whose attempts all fail is stopped, and how its attempts come back: pure rules, no I/O.

It judges attempts that ended, in buckets of ten seconds: how many, and how many of
them failed.  Short bursts open nothing: the failures must have gone on for the
whole window.

    closed ── failing goes on ──▶ open ── a probe succeeds ──▶ closing ── the rate has grown enough ──▶ closed
                                   ▲                              │
                                   └───────── failing again ──────┘
"""

from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from duetime.model.token_bucket import TokenBucket

BUCKET_MS = 10_000
MIN_WINDOW_SECONDS = 60.0
MAX_WINDOW_SECONDS = 3_600.0
MIN_FAILURE_RATE = 0.1
MAX_PROBE_SECONDS = 3_600.0
MAX_MIN_ATTEMPTS = 1_000_000
#: Attempts must be failing also in the first and in the last of this many parts of the window.
_PARTS = 5
#: Resuming: this many attempts a second at first, twice as many after this time, until the rate is no longer a limit.
FIRST_RATE = 1.0
DOUBLES_MS = 10_000
FREE_RATE = 1_000.0
#: What may start at once after a rest, in seconds of the rate.
_BURST_SECONDS = 0.5
#: After this many attempts since it resumed, the share of failures is judged again.
RELAPSE_ATTEMPTS = 5

TenantState = Literal["open", "closing"]


class BreakerRules(msgspec.Struct, frozen=True):
    """The settings of one tenant's breaker; docs/breakers.md says what each is for."""

    #: More than this share must fail; with 1 it never opens.
    failure_rate: float = 0.9
    window_seconds: float = 300.0
    probe_seconds: float = 60.0
    min_attempts: int = 20

    @property
    def is_on(self) -> bool:
        return self.failure_rate < 1.0

    @property
    def buckets(self) -> int:
        return max(_PARTS, int(self.window_seconds * 1000 / BUCKET_MS))


class Tally(NamedTuple):
    """Attempts that ended, and how many of them failed."""

    attempts: int = 0
    failures: int = 0

    def is_over(self, share: float) -> bool:
        """Whether more than this share of some attempts failed."""
        return self.failures > share * self.attempts

    def plus(self, other: "Tally") -> "Tally":
        return Tally(self.attempts + other.attempts, self.failures + other.failures)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a tenant's last attempts, by bucket number."""

    #: Since this bucket there have always been attempts in the window.
    since: int
    tallies: dict[int, Tally]

    def within(self, first: int, last: int) -> Tally:
        """What ended in these buckets, both ends included."""
        total = Tally()
        for number, tally in self.tallies.items():
            if first <= number <= last:
                total = total.plus(tally)
        return total


def bucket_of(now_ms: int) -> int:
    return now_ms // BUCKET_MS


def together(records: Iterable[Record]) -> Record | None:
    """Combine what several nodes know of one tenant."""
    tallies: dict[int, Tally] = {}
    since: int | None = None
    for record in records:
        since = record.since if since is None else min(since, record.since)
        for number, tally in record.tallies.items():
            tallies[number] = tallies.get(number, Tally()).plus(tally)
    return None if since is None else Record(since, tallies)


class Outcomes:
    """The attempts of one tenant that ended lately, as reported to one node."""

    __slots__ = ("_buckets", "_most", "since", "total")

    def __init__(self, bucket: int) -> None:
        self._buckets: deque[tuple[int, Tally]] = deque()
        self._most = int(MAX_WINDOW_SECONDS * 1000 / BUCKET_MS)
        self.since = bucket
        self.total = Tally()

    def add(self, bucket: int, tally: Tally) -> None:
        self.total = self.total.plus(tally)
        if self._buckets and bucket <= self._buckets[-1][0]:
            # A clock that goes back stands still here.
            number, before = self._buckets.pop()
            self._buckets.append((number, before.plus(tally)))
            return
        self._buckets.append((bucket, tally))

    def trim(self, bucket: int, rules: BreakerRules) -> bool:
        """Leave out what is too old. Return whether there is anything left."""
        earliest = bucket - min(rules.buckets, self._most) + 1
        while self._buckets and self._buckets[0][0] < earliest:
            _, gone = self._buckets.popleft()
            self.total = Tally(self.total.attempts - gone.attempts, self.total.failures - gone.failures)
        return bool(self._buckets)

    @property
    def record(self) -> Record:
        return Record(self.since, dict(self._buckets))


def find_failing(record: Record, now_ms: int, rules: BreakerRules) -> Tally | None:
    """The evidence for stopping a tenant; None: it may go on."""
    last, count = bucket_of(now_ms), rules.buckets
    first, part = last - count + 1, count // _PARTS
    if not rules.is_on or record.since > last - count:
        return None
    total = record.within(first, last)
    if total.attempts < rules.min_attempts or not total.is_over(rules.failure_rate):
        return None
    for tally in (record.within(first, first + part - 1), record.within(last - part + 1, last)):
        if not tally.attempts or not tally.is_over(rules.failure_rate):
            return None
    return total


def find_relapse(record: Record, resumed_ms: int, now_ms: int, rules: BreakerRules) -> Tally | None:
    """The evidence for stopping a tenant that resumes once more; None: it may go on."""
    total = record.within(bucket_of(resumed_ms), bucket_of(now_ms))
    return total if total.attempts >= RELAPSE_ATTEMPTS and total.is_over(rules.failure_rate) else None


def rate_after(resumed_ms: int, now_ms: int) -> float:
    """How many attempts a second may start by now, on all nodes together."""
    doublings = min(max(0, now_ms - resumed_ms) / DOUBLES_MS, 40.0)
    return float(FIRST_RATE * 2.0**doublings)


class Resumption:
    """The part of one node in the rate of a tenant that resumes, which doubles all the time."""

    __slots__ = ("_bucket", "_resumed_ms")

    def __init__(self, resumed_ms: int) -> None:
        self._resumed_ms = resumed_ms
        self._bucket = TokenBucket(0.0, 1.0, 1.0, resumed_ms)

    def rate(self, now_ms: int, nodes: int) -> float:
        return rate_after(self._resumed_ms, now_ms) / max(1, nodes)

    def available(self, now_ms: int, nodes: int) -> int:
        self._speed_up(now_ms, nodes)
        self._bucket.fill(now_ms)
        return self._bucket.whole

    def take(self, count: int) -> None:
        self._bucket.take(count)

    def next_ms(self, now_ms: int, nodes: int) -> int:
        self._speed_up(now_ms, nodes)
        return self._bucket.full_ms(1.0, now_ms)

    def _speed_up(self, now_ms: int, nodes: int) -> None:
        rate = self.rate(now_ms, nodes)
        self._bucket.change(rate, max(1.0, rate * _BURST_SECONDS))


def words(tally: Tally, rules: BreakerRules) -> str:
    """Why a tenant was stopped."""
    return f"{tally.failures:,} of {tally.attempts:,} attempts failed in the last {rules.window_seconds:g} s"
