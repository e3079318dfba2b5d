"""What can be said of a breaker, and to it."""

from typing import Literal

import msgspec

State = Literal["closed", "ramping", "slowed", "open", "half_open", "closing"]
Verdict = Literal["ok", "failed", "overloaded"]
Forced = Literal["open", "closed"]
#: How a task that was taken is over: with a verdict, without one, or before its call was begun.
Ending = Verdict | Literal["abandoned", "returned"]

#: The name of a tenant's own breaker among those of its hosts, which all have a port.
TENANT_HOST = "tenant"
#: What is available where nothing is limited.
FREE = 1_000_000


class BreakerStatus(msgspec.Struct, frozen=True):
    """What can be seen of a breaker; times are of the clock that it is told."""

    host: str
    state: State
    reason: str
    next_probe_ms: int | None
    #: Calls that may start in a second; None: not limited; 0: none, or only probes.
    allowed_rate: float | None
    calls: int
    failures: int
    forced: Forced | None
