"""UUIDs of version 7 (RFC 9562): 48 bits of milliseconds, then 74 bits that never go back.

The bits after the time are random in each new millisecond and counted up within
one (RFC 9562, 6.2, method 2), so ids of one process sort as they were made,
also when the clock is set back a little; after a big step back they follow it.
"""

import os
import threading
import time
import uuid

_RANDOM_BITS = 74
_LOW_MASK = (1 << 62) - 1
#: The server accepts only ids of the last hour, so ids must not stay ahead of a corrected clock.
_LARGEST_STEP_BACK_MS = 10_000

#: The lock with its process: a forked child must not wait for a lock that a thread of its parent held.
_lock = os.getpid(), threading.Lock()
_last_ms = 0
_last_tail = 0


def _lock_of_child() -> threading.Lock:
    """Start new random bits in a forked child, so that it does not count on from its parent's."""
    global _last_ms, _lock
    _last_ms, _lock = 0, (os.getpid(), threading.Lock())
    return _lock[1]


if hasattr(os, "register_at_fork"):
    # While the child has one thread yet.  It also sees for itself: a server that embeds Python may fork without this.
    os.register_at_fork(after_in_child=_lock_of_child)


def make_uuid7(now_ms: int | None = None) -> uuid.UUID:
    """Return a new UUIDv7. `now_ms`, in milliseconds since 1970, replaces the clock."""
    global _last_ms, _last_tail
    process, lock = _lock
    with lock if process == os.getpid() else _lock_of_child():
        ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        if ms > _last_ms or ms < _last_ms - _LARGEST_STEP_BACK_MS:
            # The top bit stays clear, so that counting cannot overflow within a millisecond.
            _last_ms, _last_tail = ms, _random_bits(_RANDOM_BITS - 1)
        else:
            # The steps are random, so that an id does not reveal the next one.
            _last_tail += 1 + _random_bits(32)
            if _last_tail >> _RANDOM_BITS:
                _last_ms, _last_tail = _last_ms + 1, _random_bits(_RANDOM_BITS - 1)
        ms, tail = _last_ms, _last_tail
    return uuid.UUID(int=ms << 80 | 7 << 76 | (tail >> 62) << 64 | 2 << 62 | tail & _LOW_MASK)


def _random_bits(count: int) -> int:
    # The same as secrets.randbits, without its two layers of Python.
    return int.from_bytes(os.urandom((count + 7) // 8), "big") >> (-count % 8)
