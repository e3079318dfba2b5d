"""Time: monotonic time of this process, and a lower bound of the database's clock.

The database's clock decides what is due.  A node keeps a lower bound of it:
the last answer plus the monotonic time since.  The bound may go back when the
database does (a failover to a slower clock); it is never ahead, so nothing
that is due by it is early.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Monotonic = Callable[[], float]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: PostgreSQL counts from here.
_DATABASE_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class DatabaseClock:
    """A lower bound of the database's time in microseconds since 1970."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._answered_us = 0
        self._answered_at = 0.0
        self._is_set = False

    def observe(self, answered_us: int) -> int:
        """Take an answer of the database; returns by how many µs its clock jumped.

        Call it when the answer has arrived: the database read its clock before
        that, so the answer plus the time since is never ahead of it.
        """
        expected_us = self.now_us() if self._is_set else answered_us
        self._answered_us, self._answered_at, self._is_set = answered_us, self._monotonic(), True
        return answered_us - expected_us

    def now_us(self) -> int:
        if not self._is_set:
            raise RuntimeError("the database has not told its time yet")
        return self._answered_us + int((self._monotonic() - self._answered_at) * 1_000_000)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def now(self) -> datetime:
        return from_us(self.now_us())


def from_us(us: int) -> datetime:
    return _EPOCH + timedelta(0, 0, us)


def from_ms(ms: int) -> datetime:
    return from_us(ms * 1000)


def from_database(sent: bytes) -> datetime:
    """What `timestamptz_send` gives."""
    return _DATABASE_EPOCH + timedelta(0, 0, int.from_bytes(sent, "big", signed=True))


def to_us(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def to_ms_rounded_up(instant: datetime) -> int:
    return -(-to_us(instant) // 1000)
