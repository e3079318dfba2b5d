"""What a store of budgets does.

A budget is a token bucket under a name: it fills at `rate` tokens a second up to
`burst`.  Each taker gives both, so that a store knows nothing of quotas; the values
of the last taker hold.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

#: An unknown bucket begins with the tokens of this time, not full: a store that lost its memory cannot know what was
#: taken before.
FIRST_SECONDS = 1.0


class Want(NamedTuple):
    rate: float
    burst: float
    tokens: float


class Budgets(Protocol):
    """Takes are atomic for each name, and the store uses its own time.

    For one name, all takers together are granted at most `rate * t + burst` tokens in any
    t seconds, as long as the store does not forget.
    """

    async def take(self, wanted: Mapping[str, Want]) -> dict[str, float]:
        """Return how many of the wanted tokens were there, for each name. Raises Unavailable if no store answers.

        Only whole tokens are granted: a fraction stays in the bucket and grows.
        """
        ...

    async def close(self) -> None: ...


def first_tokens(rate: float, burst: float) -> float:
    """The tokens that an unknown bucket begins with."""
    return min(burst, max(1.0, rate * FIRST_SECONDS))
