"""What of a breaker outlives the process that keeps it: as little as makes its successor as careful.

A ramp is not in it.  Whoever knows nothing of a target begins with one, and that
is the most careful state a ramp has.
"""

from typing import Literal

import msgspec

#: A rate that differs by less is the same, so that one that grows is written a few times and not with every call.
_ALIKE = 1.5
#: So are the ends of two pauses.
_ALIKE_MS = 1_000


class BreakerMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Times are milliseconds of the database's clock."""

    #: An open one whose time is up is probed, so `half_open` needs no word of its own.
    phase: Literal["closed", "slowed", "open", "closing"]
    #: Open: when it is probed.  Slowed: when its pause ends.
    until_ms: int
    #: How often it has opened, and when that is forgiven.
    openings: int = 0
    forgiven_ms: int = 0
    rate: float | None = None
    why: str = ""

    def is_like(self, other: "BreakerMemory") -> bool:
        """Whether a successor would do the same with either, nearly enough."""
        if (self.phase, self.openings, self.forgiven_ms) != (other.phase, other.openings, other.forgiven_ms):
            return False
        if abs(self.until_ms - other.until_ms) > _ALIKE_MS:
            return False
        if self.rate is None or other.rate is None:
            return self.rate is other.rate
        return max(self.rate, other.rate) < _ALIKE * min(self.rate, other.rate)
