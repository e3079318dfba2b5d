"""What readers see of a breaker, and what can be reported to it."""

from typing import Literal

import msgspec

State = Literal["closed", "ramping", "slowed", "open", "half_open", "closing"]
Verdict = Literal["ok", "failed", "overloaded"]
Forced = Literal["open", "closed"]
#: How a task that was taken is over: with a verdict, without one, or before its call began.
Ending = Verdict | Literal["abandoned", "returned"]

#: The name of a tenant's own breaker among those of its hosts, which all have a port.
TENANT_HOST = "tenant"
#: What is available if nothing is limited.
FREE = 1_000_000


class BreakerStatus(msgspec.Struct, frozen=True):
    """What readers see of a breaker; times are of the clock that its callers give."""

    host: str
    state: State
    reason: str
    next_probe_ms: int | None
    #: How many calls may start in a second; None: not limited; 0: none, or only probes.
    allowed_rate: float | None
    calls: int
    failures: int
    forced: Forced | None
