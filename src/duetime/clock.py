"""Time: monotonic time of this process, and a lower bound of the database's clock.

The database's clock decides what is due.  A node keeps a lower bound of it:
the last answer plus the monotonic time since.  The bound may go back when the
database does (a failover to a slower clock); it is never ahead, so nothing
that is due by it is early.

The node asks for the time once a second.  The answers of other statements
carry the time as well: the first one that contradicts the bound shows a jump.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from duetime.signals import Signal

Monotonic = Callable[[], float]

#: Smaller jumps are normal corrections of the clock, and are not reported.
JUMP_US = 500_000
#: After a larger jump nothing is claimed or fired until the clock has been read again.
HOLD_US = 5_000_000
#: An answer that took longer than this is less precise than the one before it.
_SLOW_US = 100_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: PostgreSQL counts time from here.
_DATABASE_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class SentAt(NamedTuple):
    """What was known when a statement was sent."""

    bound_us: int
    jumps: int


class DatabaseClock:
    """A lower bound of the database's time in microseconds since 1970."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._answered_us = 0
        self._answered_at = 0.0
        self._is_set = False
        self._jumps = 0
        #: The clock has jumped far, and was not read since: it may be about to jump back.
        self.is_held = False
        #: Sent with the number of µs by which the clock has jumped.
        self.jumped = Signal[int]()
        #: Sent when a clock that was held has been read again.
        self.settled = Signal[[]]()

    def ask(self) -> SentAt:
        """Call this before sending a statement whose answer carries the time."""
        return SentAt(self._bound_us() if self._is_set else 0, self._jumps)

    def observe(self, answered_us: int, asked: SentAt | None = None) -> int:
        """Take the answer to a query for the time; returns by how many µs the clock jumped.

        Call it when the answer has arrived: the database read its clock before
        that, so the answer plus the time since is never ahead of it.
        """
        if not self._is_set:
            self._set(answered_us)
            return 0
        if asked is not None and asked.jumps != self._jumps:
            # It was read before a jump that is known now.
            return 0
        now_us = self._bound_us()
        jump_us = _jump_of(answered_us, now_us if asked is None else asked.bound_us, now_us)
        if jump_us or now_us - answered_us <= _SLOW_US:
            self._set(answered_us)
        was_held, self.is_held = self.is_held, abs(jump_us) > HOLD_US
        self._tell(jump_us)
        if was_held and not self.is_held:
            self.settled()
        return jump_us

    def hear(self, asked: SentAt, answered_at: datetime) -> None:
        """Take the time that a statement's answer carries: it counts if it contradicts what is known."""
        if not self._is_set or asked.jumps != self._jumps:
            return
        answered_us, now_us = to_us(answered_at), self._bound_us()
        jump_us = _jump_of(answered_us, asked.bound_us, now_us)
        if jump_us >= 0 and jump_us <= JUMP_US:
            return
        self._set(answered_us)
        self.is_held = self.is_held or abs(jump_us) > HOLD_US
        self._tell(jump_us)

    def now_us(self) -> int:
        if not self._is_set:
            raise RuntimeError("the database has not told its time yet")
        return self._answered_us + int((self._monotonic() - self._answered_at) * 1_000_000)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def now(self) -> datetime:
        return from_us(self.now_us())

    def _bound_us(self) -> int:
        # `now_us` computes the same without this call: it is read several times for each task.
        return self._answered_us + int((self._monotonic() - self._answered_at) * 1_000_000)

    def _set(self, answered_us: int) -> None:
        self._answered_us, self._answered_at, self._is_set = answered_us, self._monotonic(), True

    def _tell(self, jump_us: int) -> None:
        if abs(jump_us) > JUMP_US:
            self._jumps += 1
            self.jumped(jump_us)


def _jump_of(answered_us: int, asked_us: int, now_us: int) -> int:
    """By how much an answer lies outside the time between its statement and its arrival."""
    return max(answered_us - now_us, 0) or min(answered_us - asked_us, 0)


def from_us(us: int) -> datetime:
    return _EPOCH + timedelta(0, 0, us)


def from_ms(ms: int) -> datetime:
    return from_us(ms * 1000)


def from_database(sent: bytes) -> datetime:
    """Decode the output of `timestamptz_send`."""
    return _DATABASE_EPOCH + timedelta(0, 0, int.from_bytes(sent, "big", signed=True))


def to_us(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def to_ms_rounded_up(instant: datetime) -> int:
    return -(-to_us(instant) // 1000)
