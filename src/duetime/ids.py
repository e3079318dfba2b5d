"""Task ids and wakes: UUIDs that hold the time, the place and the order.

Layout (version 8): 48 bits of due time in milliseconds, 42 unique bits (12
before the variant, 30 after it), 32 bits of lane whose low 8 bits are the
shard.  Ids therefore sort by due time, and an id alone names its partition,
its lane and its shard.  A task's first wake is its id; later wakes have the
same layout and are made in SQL (`mint_wake`), from the database's clock.
"""

import random
import secrets
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

# The driver's UUID class: a subclass of Python's, made, compared and hashed in C.
from asyncpg.pgproto.pgproto import UUID as DriverUUID

SHARDS = 256
#: Lower numbers are the schedule lanes of the shards; lanes of tasks begin here.
SCHEDULE_LANES_END = SHARDS
_UNIQUE_BITS = 42
_UNIQUE_MASK = (1 << _UNIQUE_BITS) - 1
_LOW_MASK = (1 << 30) - 1
_STEP = 1 << 32
_VERSION_AND_VARIANT = 8 << 76 | 2 << 62
_VERSION_AND_VARIANT_MASK = 0xF << 76 | 3 << 62
#: The bytes of the count after the first id of a row; a list of ids never has this length.
_COUNT_BYTES = 3

#: Sorts before every wake.
EARLIEST = uuid.UUID(int=0)
#: Sorts after every wake.
LATEST = uuid.UUID(int=(1 << 128) - 1)
#: The last millisecond that fits into 48 bits would be in the year 10889.
LATEST_MS = (1 << 48) - 1


def parse_uuid(text: str) -> uuid.UUID:
    """The UUID in a text; raises ValueError if there is none."""
    parsed: uuid.UUID = DriverUUID(text)
    return parsed


def uuid_of(value: int) -> uuid.UUID:
    """The UUID with this number of 128 bits."""
    made: uuid.UUID = DriverUUID(value.to_bytes(16, "big"))
    return made


def make_id(due_ms: int, unique: int, lane: int) -> uuid.UUID:
    """One id; `unique` is cut to its 42 bits."""
    unique &= _UNIQUE_MASK
    return uuid_of(due_ms << 80 | _VERSION_AND_VARIANT | (unique >> 30) << 64 | (unique & _LOW_MASK) << 32 | lane)


def make_ids(slots: Sequence[tuple[int, int]]) -> list[uuid.UUID]:
    """Ids for (due_ms, lane) pairs of one batch: a random start, then counting.

    Counting keeps a batch in the order in which it was given.
    """
    count = make_id(0, _first_of(len(slots)), 0).int
    ids: list[uuid.UUID] = []
    for due_ms, lane in slots:
        ids.append(DriverUUID((due_ms << 80 | lane | count).to_bytes(16, "big")))
        count += _STEP
    return ids


def make_row(due_ms: int, lane: int, count: int) -> list[uuid.UUID]:
    """The same for a batch with one time and one lane."""
    first = make_id(due_ms, _first_of(count), lane).int
    return [DriverUUID(value.to_bytes(16, "big")) for value in range(first, first + count * _STEP, _STEP)]


#: The source of random bits.
_draw_bits: Callable[[int], int] = secrets.randbits


def draw_bits(count: int) -> int:
    """A random number of this many bits, for values that must be unique."""
    return _draw_bits(count)


@contextmanager
def repeatable(chance: random.Random) -> Iterator[None]:
    """Let a simulation draw the random bits, so that it can be repeated from its seed."""
    global _draw_bits, _next_salt
    before = _draw_bits
    _draw_bits, _next_salt = chance.getrandbits, 0
    try:
        yield
    finally:
        _draw_bits = before


#: The next number that this process uses; it starts in the lower half of all numbers.
_next_salt = secrets.randbits(_UNIQUE_BITS - 1)


def take_salts(count: int) -> int:
    """Reserve this many unique parts of wakes, and return the first.

    They come after those of the call before: the wakes that two statements make in one
    millisecond have the order of the statements.
    """
    global _next_salt
    first = _next_salt
    _next_salt = (first + count) & _UNIQUE_MASK
    return first


def _first_of(count: int) -> int:
    """A random start whose low bits have room to count, so that each id differs from the one before by one step."""
    unique = draw_bits(_UNIQUE_BITS)
    while (unique & _LOW_MASK) + count > _LOW_MASK:
        unique = draw_bits(_UNIQUE_BITS)
    return unique


def pack_ids(ids: Sequence[uuid.UUID], *, is_row: bool) -> bytes:
    """Pack the ids of one call for storing; a row, of one time and lane, needs only its first id and its length."""
    if is_row and len(ids) > 1:
        return ids[0].bytes + len(ids).to_bytes(_COUNT_BYTES, "big")
    return b"".join([identifier.bytes for identifier in ids])


def count_ids(packed: bytes) -> int:
    return int.from_bytes(packed[16:], "big") if len(packed) == 16 + _COUNT_BYTES else len(packed) // 16


def unpack_ids(packed: bytes) -> list[uuid.UUID]:
    if len(packed) == 16 + _COUNT_BYTES:
        first = int.from_bytes(packed[:16], "big")
        return [uuid.UUID(int=first + (place << 32)) for place in range(count_ids(packed))]
    return [uuid.UUID(bytes=packed[place : place + 16]) for place in range(0, len(packed), 16)]


def due_ms_of(identifier: uuid.UUID) -> int:
    return identifier.int >> 80


def lane_of(identifier: uuid.UUID) -> int:
    return identifier.int & 0xFFFFFFFF


def just_after(due_ms: int) -> uuid.UUID:
    """The first wake after every wake of that millisecond."""
    return uuid.UUID(int=(due_ms + 1) << 80)


def just_before(due_ms: int) -> uuid.UUID:
    """A wake before every wake of that millisecond, and after all earlier ones."""
    return uuid.UUID(int=due_ms << 80)


def looks_like_id(identifier: uuid.UUID) -> bool:
    return identifier.int & _VERSION_AND_VARIANT_MASK == _VERSION_AND_VARIANT


def names_a_request(identifier: uuid.UUID) -> bool:
    """Whether it is of version 7, which begins with its creation time."""
    return identifier.int & _VERSION_AND_VARIANT_MASK == 7 << 76 | 2 << 62
