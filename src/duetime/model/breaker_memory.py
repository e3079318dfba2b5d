"""What is kept of a breaker when its process ends: just enough to make its successor as careful.

A ramp is not part of it.  A breaker that knows nothing of a target begins with a
ramp, and that is the most careful state a ramp has.
"""

from typing import Literal

import msgspec

#: Rates that differ by less than this count as equal, so that a growing rate is written a few times and not with every
#: call.
_ALIKE = 1.5
#: Ends of pauses that differ by less than this count as equal, too.
_ALIKE_MS = 1_000


class BreakerMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Times are milliseconds of the database's clock."""

    #: A breaker that is open and whose time is up is probed, so `half_open` needs no value here.
    phase: Literal["closed", "slowed", "open", "closing"]
    #: Open: when it is probed. Slowed: when its pause ends.
    until_ms: int
    #: How often it has opened, and when that is forgiven.
    openings: int = 0
    forgiven_ms: int = 0
    rate: float | None = None
    why: str = ""

    def is_like(self, other: "BreakerMemory") -> bool:
        """Whether a successor would do nearly the same with either."""
        if (self.phase, self.openings, self.forgiven_ms) != (other.phase, other.openings, other.forgiven_ms):
            return False
        if abs(self.until_ms - other.until_ms) > _ALIKE_MS:
            return False
        if self.rate is None or other.rate is None:
            return self.rate is other.rate
        return max(self.rate, other.rate) < _ALIKE * min(self.rate, other.rate)
