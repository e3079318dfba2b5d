"""How much of a tenant that is stopped, resumes, or is held open by hand one node lets start; no I/O."""

from duetime.admin.tenant_breakers import TenantBreakerRow
from duetime.model.attempt import Attempt
from duetime.model.breaker_status import TENANT_HOST, BreakerStatus, Forced
from duetime.model.tenant_breaker import FREE_RATE, Resumption
from duetime.scheduler.feeding_nodes import FeedingNodes

#: The right to a probe expires when it is not used for this long.
UNUSED_MS = 30_000
#: For how many probes the end is awaited.
_MAX_PROBES = 20
#: How often to ask whether this node may let the next probe through.
_ASK_AGAIN_MS = 250


class TenantGate:
    """A meter that every lane of the tenant has to pass (`limits.Throttle`)."""

    def __init__(self, tenant: int, nodes: FeedingNodes) -> None:
        self.tenant = tenant
        self._nodes = nodes
        self.row: TenantBreakerRow | None = None
        self.forced: Forced | None = None
        #: A task of the tenant could run here if it were not for this gate.
        self.is_wanted = False
        #: Probes whose end is awaited, and when each was let through.
        self.probes: dict[Attempt, int] = {}
        self._free_probes = 0
        self._granted_ms = 0
        self._resumption: Resumption | None = None

    def become(self, row: TenantBreakerRow | None, forced: Forced | None) -> bool:
        """Set the state that holds from now on; returns whether it differs from the last one."""
        row_before, forced_before = self.row, self.forced
        self.row, self.forced = row, forced
        state = None if row is None else (row.state, row.since_ms)
        state_before = None if row_before is None else (row_before.state, row_before.since_ms)
        if state != state_before:
            self._free_probes = 0
            self._resumption = Resumption(row.since_ms) if row is not None and row.state == "closing" else None
            if self._resumption is not None or row is None:
                self.probes.clear()
        return (state, forced) != (state_before, forced_before)

    def want(self) -> None:
        """Note that a task of the tenant could run here if it were not for this gate."""
        self.is_wanted = True

    def grant(self, now_ms: int) -> None:
        """Let one task start, as a probe."""
        self._free_probes, self._granted_ms, self.is_wanted = 1, now_ms, False

    def started(self, attempt: Attempt, now_ms: int) -> None:
        """Note that a task of the tenant was given to its holder."""
        if self.row is not None and self.row.state == "open" and len(self.probes) < _MAX_PROBES:
            self.probes[attempt] = now_ms

    # The methods of a throttle

    def available(self, now_ms: int) -> int:
        if self.forced == "open" or self.row is None:
            return 0
        if self._resumption is not None:
            return self._resumption.available(now_ms, self._nodes.of(self.tenant))
        if self._free_probes > 0 and now_ms - self._granted_ms > UNUSED_MS:
            self._free_probes = 0
        return max(0, self._free_probes)

    def took(self, count: int, now_ms: int) -> None:
        if self._resumption is not None:
            self._resumption.take(count)
        else:
            self._free_probes -= count

    def gave_back(self, count: int, now_ms: int) -> None:
        if self._resumption is not None:
            self._resumption.take(-count)
        else:
            self._free_probes = min(1, self._free_probes + count)

    def next_ms(self, now_ms: int) -> int | None:
        if self.forced == "open" or self.row is None:
            return None
        if self._resumption is not None:
            return self._resumption.next_ms(now_ms, self._nodes.of(self.tenant))
        return max(self.row.probe_ms, now_ms + _ASK_AGAIN_MS)

    @property
    def reason(self) -> str:
        if self.forced == "open":
            return "its tenant is held open by hand: nothing of it starts"
        if self.row is None:
            return ""
        if self.row.state == "open":
            return f"its tenant is stopped, because {self.row.reason}; one task at a time is let through as a probe"
        return f"its tenant resumes slowly: {self.row.reason}"

    # Its state

    def is_free(self, now_ms: int) -> bool:
        """Whether it resumes, and its rate restricts nothing any more."""
        return self._resumption is not None and self._resumption.rate(now_ms, 1) >= FREE_RATE

    def status(self, now_ms: int) -> BreakerStatus | None:
        row = self.row
        if row is None:
            return None
        rate = 0.0 if self._resumption is None else round(self._resumption.rate(now_ms, 1), 2)
        probe_ms = row.probe_ms if row.state == "open" else None
        return BreakerStatus(
            TENANT_HOST, row.state, row.reason, probe_ms, rate, row.attempts, row.failures, self.forced
        )
