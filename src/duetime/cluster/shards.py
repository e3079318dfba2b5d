"""Which node feeds which shard, by rendezvous hashing: no I/O, the same on every node.

Each shard goes to the node whose hash with it is highest.  A new node takes its share
evenly from all others, a node that goes leaves its shards to them evenly, and nothing
else moves.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from duetime.ids import SHARDS


def owner_of(what: str, names: Iterable[str]) -> str | None:
    """The node for one thing, such as a shard or a duty; None if there is no node."""
    return max(names, key=lambda name: (_weigh(what, name), name), default=None)


@lru_cache(maxsize=64)
def assign(names: frozenset[str]) -> tuple[str | None, ...]:
    """The owner of each shard."""
    return tuple(owner_of(f"shard {shard}", names) for shard in range(SHARDS))


def _weigh(what: str, name: str) -> bytes:
    return hashlib.blake2b(f"{what}\0{name}".encode(), digest_size=8).digest()
