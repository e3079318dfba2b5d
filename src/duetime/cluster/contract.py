"""Membership: what a coordinator promises to the nodes of one cluster.

It is advice: views of two nodes may differ for a while, and a node that is there may
be seen as gone, or the other way round.  Safety must not depend on it.

What every adapter must keep:
- a node that joined, and beats, is seen by every other within two beats;
- a node that left is seen as gone within two beats, a node that fell silent within
  `SILENCE_SECONDS` and two beats of the observer's own monotonic time;
- while its store is away a view stays as it was: no node counts as gone because the
  store did not answer;
- a node whose entry was lost joins again by itself; a node whose name was taken by a
  later start sees itself as gone, and stays so.
"""

from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec

#: A node whose counter stood still for this long counts as gone.
SILENCE_SECONDS = 4.0


class Member(msgspec.Struct, frozen=True, order=True):
    """One node from its start to its end."""

    name: str
    #: Distinguishes two starts under one name; 62 random bits.
    incarnation: int
    #: The address at which the other nodes reach it: host:port.
    address: str


class NodeView(msgspec.Struct, frozen=True):
    """A node as another one sees it."""

    name: str
    shards: Annotated[int, msgspec.Meta(description="How many of the 256 shards it feeds.")]
    answers: Annotated[bool, msgspec.Meta(description="Whether it is the node that gave this answer.")]


class Coordinator(Protocol):
    async def join(self, member: Member) -> None:
        """Become a member, replacing any node that had the name, and keep beating until `leave`.

        Raises `Unavailable` if the store does not answer.
        """
        ...

    async def leave(self) -> None:
        """Stop beating and be seen as gone. Never raises because the store is away."""
        ...

    def members(self) -> tuple[Member, ...]:
        """The members in this node's view, by name; itself among them while it is a member."""
        ...

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this whenever `members` has changed."""
        ...

    def doubt(self, member: Member) -> None:
        """The line to this node is closed: see it as gone until its counter moves again."""
        ...

    async def look(self) -> None:
        """Look now, not at the next beat: another node said that something has changed."""
        ...
