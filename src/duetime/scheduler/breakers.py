"""The breakers of this node: one for each tenant and host that its executor calls.

They live in the process that feeds the tenant, whose executor makes its calls.
`breaker_states` stores what they learn, for the process that feeds the tenant next.
Breakers that are forced by hand are stored, and every node obeys them.  No I/O.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping

import structlog

from duetime.model.breaker import Breaker
from duetime.model.breaker_config import DEFAULT, BreakerConfig
from duetime.model.breaker_memory import BreakerMemory
from duetime.model.breaker_status import FREE, BreakerStatus, Ending, Forced
from duetime.model.origin import host_of
from duetime.model.task import LaneKey, LeasedTask
from duetime.signals import Signal

log = structlog.get_logger()
MAX_BREAKERS = 10_000
_SWEEP_EVERY_MS = 60_000


class Breakers:
    def __init__(
        self,
        key_of: Callable[[int], LaneKey | None],
        now_ms: Callable[[], int],
        *,
        config: BreakerConfig = DEFAULT,
        chance: random.Random | None = None,
        name_of: Callable[[int], str | int] = lambda tenant: tenant,
        most: int = MAX_BREAKERS,
    ) -> None:
        self._key_of = key_of
        self._now_ms = now_ms
        self._config = config
        self._chance = chance or random.Random()
        self._name_of = name_of
        self._most = most
        self._breakers: dict[tuple[int, str], Breaker] = {}
        self._forced: Mapping[tuple[int, str], Forced] = {}
        self._swept_ms: int | None = None
        #: Hosts whose calls are restricted, by tenant; a ramp ends by itself.
        self._slowed: dict[int, set[str]] = {}
        self._ramping: set[tuple[int, str]] = set()
        #: Sent when the breaker of a tenant and host may let through more or less than before.
        self.changed = Signal[int, str]()
        #: Sent before `changed`, when something was learned or forgotten that may have to be written.
        self.learned = Signal[int, str]()

    def __len__(self) -> int:
        return len(self._breakers)

    def find(self, tenant: int, host: str) -> Breaker | None:
        """The breaker of a host that was called or is forced; None: nothing is known against the host."""
        return self._breakers.get((tenant, host))

    def of(self, tenant: int, host: str) -> Breaker:
        """The breaker of a host, made if there is none."""
        breaker = self._breakers.get((tenant, host))
        if breaker is None:
            if len(self._breakers) >= self._most:
                self._make_room()
            breaker = self._breakers[tenant, host] = Breaker(self._now_ms(), self._config, self._chance)
        return breaker

    def is_slowed(self, tenant: int, host: str) -> bool:
        """Whether calls to the host have to ask its breaker."""
        return host in self._slowed.get(tenant, ())

    def has_slowed(self, tenant: int) -> bool:
        return tenant in self._slowed

    def begin(self, tenant: int, host: str, now: int) -> Breaker | None:
        """Count an unrestricted call at its breaker; None: the call has to ask the breaker."""
        breaker = self.of(tenant, host)
        if self.is_slowed(tenant, host):
            breaker.available(now)
            if breaker.state != "closed":
                return None
            # Its ramp has ended since.
            self._changed(tenant, host)
        if breaker.begin(1, now):
            return breaker
        self._changed(tenant, host)
        return None

    def begin_all(self, tenant: int, hosts: Mapping[str, int], now: int) -> bool:
        """Count the calls of a tenant without a slowed host; False: a host is slowed now, and no call was counted."""
        full = [host for host, count in hosts.items() if not self.of(tenant, host).begin(count, now)]
        if not full:
            return True
        for host, count in hosts.items():
            if host in full:
                self._changed(tenant, host)
            else:
                self.of(tenant, host).gave_back(count, now)
        return False

    def began(self, tenant: int, host: str, count: int, now: int) -> None:
        """Count calls that start in any case, allowed or not."""
        breaker = self.of(tenant, host)
        breaker.took(count, now)
        if breaker.state == "ramping" and not self.is_slowed(tenant, host):
            self._changed(tenant, host)

    def report(self, task: LeasedTask, ending: Ending, retry_after: float | None = None, detail: str = "") -> None:
        """Note the end of a task; the executor reports it once for each task that it has taken."""
        target = task.options.target if task.options is not None else None
        host = host_of(target.url) if target is not None else ""
        key = self._key_of(task.lane)
        if key is None or not host:
            return
        has_verdict = ending not in ("abandoned", "returned")
        breaker = self.of(key.tenant, host) if has_verdict else self.find(key.tenant, host)
        if breaker is None:
            return
        now, before = self._now_ms(), breaker.state
        if ending == "ok" and before in ("closed", "ramping"):
            breaker.ended("ok", now)
            return
        started_ms = int(task.picked_at.timestamp() * 1000)
        if ending == "abandoned":
            breaker.abandoned(now, started_ms=started_ms)
        elif ending == "returned":
            breaker.gave_back(1, now, started_ms=started_ms)
        else:
            breaker.ended(ending, now, retry_after, detail=detail, started_ms=started_ms)
        if breaker.state != before:
            name = self._name_of(key.tenant)
            log.info("breaker", tenant=name, host=host, state=breaker.state, before=before, reason=breaker.reason)
        self._changed(key.tenant, host)

    def obey(self, forced: Mapping[tuple[int, str], Forced]) -> None:
        """Force these breakers and no others; called twice a second, so it also ends ramps and forgets idle ones."""
        now = self._now_ms()
        if forced != self._forced:
            before, self._forced = self._forced, dict(forced)
            for place in sorted({*before, *forced}):
                if before.get(place) != forced.get(place):
                    self.of(*place).force(forced.get(place), now)
                    self._changed(*place)
        for place in sorted(self._ramping):
            self._changed(*place)
        if self._swept_ms is None or not 0 <= now - self._swept_ms < _SWEEP_EVERY_MS:
            self._swept_ms = now
            self._forget_idle(now)

    def remember(self, tenant: int, host: str) -> BreakerMemory | None:
        """What the next caller of the host has to know; None: nothing is known against the host."""
        breaker = self.find(tenant, host)
        return None if breaker is None else breaker.remember(self._now_ms())

    def recall(self, tenant: int, host: str, memory: BreakerMemory, stored_ms: int) -> None:
        """Take over what another process learned at that time; what this node has learned since then counts more."""
        known = self.find(tenant, host)
        if known is not None and known.forced is not None:
            return
        if known is not None and known.state not in ("closed", "ramping") and known.touched_ms > stored_ms:
            return
        if known is None and len(self._breakers) >= self._most:
            self._make_room()
        self._breakers[tenant, host] = Breaker.recall(memory, self._now_ms(), self._config, self._chance)
        self._changed(tenant, host)

    def states(self, tenant: int) -> list[BreakerStatus]:
        """The breakers of a tenant that are forced or not fully closed, by host."""
        now = self._now_ms()
        seen = [breaker.status(host, now) for (owner, host), breaker in list(self._breakers.items()) if owner == tenant]
        return sorted(
            (each for each in seen if each.state != "closed" or each.forced is not None), key=lambda each: each.host
        )

    async def describe(self, tenant: int) -> list[BreakerStatus]:
        """`states`, in the form that is needed when several nodes share the tenants."""
        return self.states(tenant)

    def _changed(self, tenant: int, host: str) -> None:
        breaker = self._breakers.get((tenant, host))
        self.learned(tenant, host)
        slowed = self._slowed.get(tenant, set())
        is_free = breaker is None or breaker.available(self._now_ms()) == FREE
        self._ramping.discard((tenant, host))
        if breaker is not None and breaker.state == "ramping":
            self._ramping.add((tenant, host))
        # A ramp restricts a host only while calls have to wait for it.
        if breaker is not None and not is_free and breaker.state != "closed":
            slowed.add(host)
            self._slowed[tenant] = slowed
        else:
            slowed.discard(host)
            if not slowed:
                self._slowed.pop(tenant, None)
        self.changed(tenant, host)

    def _forget_idle(self, now: int) -> None:
        for place in [place for place, breaker in self._breakers.items() if breaker.is_idle(now)]:
            self._forget(place)

    def _make_room(self) -> None:
        """Forget at least a tenth, so that this is rarely needed: idle ones, then closed ones, the oldest first."""
        self._forget_idle(self._now_ms())
        excess = len(self._breakers) - self._most + max(1, self._most // 10)
        if excess <= 0:
            return
        free = [place for place, breaker in self._breakers.items() if breaker.forced is None]
        free.sort(key=lambda place: self._breakers[place].state != "closed")
        for place in free[:excess]:
            self._forget(place)

    def _forget(self, place: tuple[int, str]) -> None:
        del self._breakers[place]
        if self.is_slowed(*place):
            self._changed(*place)


def strictest(found: Iterable[BreakerStatus]) -> list[BreakerStatus]:
    """One breaker for each host, sorted by host: if several nodes call it, the one that lets through the least."""
    kept: dict[str, BreakerStatus] = {}
    for each in found:
        other = kept.get(each.host)
        if other is None or _rate(each) < _rate(other):
            kept[each.host] = each
    return sorted(kept.values(), key=lambda each: each.host)


def _rate(status: BreakerStatus) -> float:
    return math.inf if status.allowed_rate is None else status.allowed_rate
