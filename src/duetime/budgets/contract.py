"""What a store of budgets does.

A budget is a token bucket under a name: it fills at `rate` tokens a second up to
`burst`.  Whoever takes says both, so that a store knows nothing of quotas; the
last who took has said what holds.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

#: A bucket that nobody knows of begins with what it fills in so long, not full: a store that lost its
#: memory cannot tell what was taken before.
FIRST_SECONDS = 1.0


class Want(NamedTuple):
    rate: float
    burst: float
    tokens: float


class Budgets(Protocol):
    """Takes are atomic for each name, and time is the store's own.

    Of one name, all takers together are granted at most `rate * t + burst` tokens in any
    t seconds, as long as the store does not forget.
    """

    async def take(self, wanted: Mapping[str, Want]) -> dict[str, float]:
        """How many of the wanted tokens were there, for each name; raises Unavailable when the store does not answer.

        Only whole tokens are granted: what is less stays and grows.
        """
        ...

    async def close(self) -> None: ...


def first_tokens(rate: float, burst: float) -> float:
    """What a bucket has that nobody knows of."""
    return min(burst, max(1.0, rate * FIRST_SECONDS))
