"""Which calls may begin: how tenants and their hosts share the slots of an executor.

A slot is a call under way.  Slots that are held by a host that hangs come back
only when its calls time out, so nobody may take all of them: a tenant may begin
a call as long as it leaves as many slots free as it holds, and a host as long
as it leaves as many to its tenant as it holds.  A newcomer then finds slots
free, however many hosts of the others hang.

A host whose calls end quickly gives its slots back by itself.  Its calls are
told from the slow ones:

- calls to hosts that are slow do not begin in the last eighth of the slots, and
  those to hosts of which nothing is known only a few of each tenant;
- a host that answered more calls in the last second than it has under way may
  hold more: its tenant then leaves an eighth of the slots that it could have.

Pure: no I/O and no clock.  Each decision and each count is O(1).  Hosts are
those of a tenant: two tenants that call the same host share nothing.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

import msgspec

#: A host is quick if its last call ended within this, and none under way is older than `_OLD_SECONDS`.
QUICK_SECONDS = 1.0
_OLD_SECONDS = 2.0
#: So many calls have to end quickly after one that did not, until the host is quick again.
_PROBATION = 3
#: One part in so many of all slots is not for hosts that are slow.
_RESERVED_PART = 8
#: There a tenant may hold one part in so many of what is free, by hosts of which nothing is known.
_TRIAL_PART = 16
#: One part in so many is for quick hosts alone.
_QUICK_PART = 32
#: A tenant whose host has earned it may hold so many times what it leaves free.
_EARNED = 7.0
#: What is known of a host that is not called is kept for so long, of so many hosts.
_REMEMBER_SECONDS = 60.0
_MAX_IDLE_HOSTS = 10_000
#: Calls are counted by the time in which they began, in steps of half a second.
_STEPS = 2.0
_OLD_STEPS = int(_OLD_SECONDS * _STEPS) + 1


class _Answers:
    """How many calls ended in about the last second, of those that did not take long."""

    __slots__ = ("_before", "_count", "_second")

    def __init__(self) -> None:
        self._second = self._count = self._before = 0

    def add(self, second: int) -> None:
        if second != self._second:
            self._turn(second)
        self._count += 1

    def lately(self, second: int) -> int:
        if second != self._second:
            self._turn(second)
        return max(self._count, self._before)

    def _turn(self, second: int) -> None:
        self._before = self._count if second == self._second + 1 else 0
        self._second, self._count = second, 0


class Tenant:
    __slots__ = ("answers", "hosts", "number", "quick_hosts", "running", "slow", "waiting", "weight")

    def __init__(self, number: int, weight: int) -> None:
        self.number = number
        self.weight = weight
        self.hosts: dict[str, Host] = {}
        self.quick_hosts = 0
        self.running = 0
        #: Of these, the calls to hosts that are not quick.
        self.slow = 0
        #: Tasks that were claimed and wait in line for one of its hosts.
        self.waiting = 0
        self.answers = _Answers()


class Host:
    __slots__ = ("ages", "answers", "credit", "is_quick", "name", "running", "tenant", "waiting", "young_until")

    def __init__(self, tenant: Tenant, name: str) -> None:
        self.tenant = tenant
        self.name = name
        self.running = 0
        self.waiting = 0
        self.is_quick = False
        #: Above zero: the last calls ended quickly; below: one did not; zero: nothing is known.
        self.credit = 0
        self.answers = _Answers()
        #: Calls under way, by the half second in which they began, the oldest first.
        self.ages: dict[int, int] = {}
        #: Until then none of them is old, as far as was looked.
        self.young_until = 0.0

    def has_old(self, now: float) -> bool:
        """Whether a call has been under way for too long to be quick."""
        for step in self.ages:
            self.young_until = (step + _OLD_STEPS) / _STEPS
            return now >= self.young_until
        # What begins from now on will not be old sooner.
        self.young_until = now + _OLD_SECONDS
        return False


class Slot(msgspec.Struct, frozen=True, eq=False):
    """A slot that a call holds until its `end`."""

    host: Host
    begun: float


class Slots:
    def __init__(self, size: int, per_host: int, weight_of: Callable[[int], int] = lambda _: 1) -> None:
        self.size = size
        self.per_host = per_host
        self._weight_of = weight_of
        self._most_slow = size - size // _RESERVED_PART
        self._quick_alone = size // _QUICK_PART
        self._tenants: dict[int, Tenant] = {}
        #: Hosts without a call, since when, the longest first.
        self._idle: OrderedDict[Host, float] = OrderedDict()
        #: Those that hold a slot.
        self._busy: set[Host] = set()
        self._holders: set[Tenant] = set()
        self.running = 0
        #: Of these, the calls to hosts that are not quick.
        self.slow = 0
        #: The calls' weights together: each has that of its tenant.
        self._weights = 0

    def __len__(self) -> int:
        """How many tenants are known."""
        return len(self._tenants)

    # Who it is

    def host(self, tenant: int, name: str, now: float) -> Host:
        """The host of a tenant; it is forgotten some time after its last call."""
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = Tenant(tenant, self._weight_of(tenant))
        host = known.hosts.get(name)
        if host is None:
            host = known.hosts[name] = Host(known, name)
            self._idle[host] = now
        return host

    def find_tenant(self, tenant: int) -> Tenant:
        """The same, without keeping what is new."""
        return self._tenants.get(tenant) or Tenant(tenant, self._weight_of(tenant))

    def find(self, tenant: int, name: str) -> Host:
        """The same, without keeping what is new."""
        known = self._tenants.get(tenant) or self.find_tenant(tenant)
        return known.hosts.get(name) or Host(known, name)

    # The rule

    def may_begin(self, host: Host, now: float) -> bool:
        """Whether a call to the host may begin."""
        if host.running >= self.per_host:
            return False
        free, tenant = self.size - self.running, host.tenant
        share, part = self._shares(tenant)
        if self.look_at(host, now):
            if tenant.running < _EARNED * free * share and host.running < host.answers.lately(int(now)):
                return True
            limit, held = free * part, tenant.running
        else:
            limit, held = self._slow_limit(free, part), tenant.slow
            if not host.credit and limit <= held:
                limit = self._trial_limit(free, part)
        return held < limit and host.running < limit - held

    def _slow_limit(self, free: int, part: float) -> float:
        """What a tenant may hold by hosts that are not quick."""
        return min(free, self._most_slow - self.slow) * part

    def _trial_limit(self, free: int, part: float) -> float:
        """The same where the slow ones have all that they may, by hosts of which nothing is known."""
        return (free - self._quick_alone) * part / _TRIAL_PART

    def _shares(self, tenant: Tenant) -> tuple[float, float]:
        """The tenant's weight in terms of the weight of those who hold slots; the same within bounds.

        The others are counted by what they hold, so that nobody is kept small beside slots that are free because
        somebody of great weight holds one.  Within bounds: not above one, so that each leaves what it holds.
        """
        weight = tenant.weight
        share = weight * (self.running + 1) / (self._weights + weight)
        if share >= 1.0:
            return share, 1.0
        holders = len(self._holders) + (tenant.running == 0)
        return share, max(share, 1.0 / (4 * holders))

    def look_at(self, host: Host, now: float) -> bool:
        """Whether the host is quick at this moment."""
        is_quick = host.credit > 0 and (now < host.young_until or not host.has_old(now))
        if is_quick is not host.is_quick:
            host.is_quick = is_quick
            host.tenant.quick_hosts += 1 if is_quick else -1
            change = -host.running if is_quick else host.running
            host.tenant.slow += change
            self.slow += change
        return is_quick

    # Calls

    def begin(self, host: Host, now: float) -> Slot:
        """A call begins, whether it may or not: ask `may_begin` first."""
        tenant = host.tenant
        if not host.running:
            self._idle.pop(host, None)
            self._busy.add(host)
        if not tenant.running:
            tenant.weight = self._weight_of(tenant.number)
            self._holders.add(tenant)
        step = int(now * _STEPS)
        host.ages[step] = host.ages.get(step, 0) + 1
        host.running += 1
        tenant.running += 1
        self.running += 1
        self._weights += tenant.weight
        if not host.is_quick:
            tenant.slow += 1
            self.slow += 1
        return Slot(host, now)

    def doubt(self, host: Host) -> None:
        """It has not answered yet, and does not seem to be quick."""
        if not host.credit:
            host.credit = -1

    def end(self, slot: Slot, now: float) -> None:
        """A call is over."""
        host = slot.host
        tenant = host.tenant
        step = int(slot.begun * _STEPS)
        left = host.ages[step] - 1
        if left:
            host.ages[step] = left
        else:
            del host.ages[step]
        if now - slot.begun > QUICK_SECONDS:
            host.credit = -_PROBATION
        else:
            if host.credit <= 0:
                host.credit += 1
            second = int(now)
            host.answers.add(second)
            tenant.answers.add(second)
        host.running -= 1
        tenant.running -= 1
        self.running -= 1
        self._weights -= tenant.weight
        if not host.is_quick:
            tenant.slow -= 1
            self.slow -= 1
        self.look_at(host, now)
        if not host.running:
            self._busy.discard(host)
            self._idle[host] = now
        if not tenant.running:
            self._holders.discard(tenant)

    # What may be claimed

    def room(self, tenant: Tenant, now: float) -> int:
        """How many calls of a tenant might begin, if they are to the best of its hosts."""
        free = self.size - self.running
        share, part = self._shares(tenant)
        most = _count(self._slow_limit(free, part) - tenant.slow, 1.0 + part)
        most = max(most, _count(self._trial_limit(free, part) - tenant.slow, 1.0 + part / _TRIAL_PART))
        if tenant.quick_hosts:
            most = max(most, _count(free * part - tenant.running, 1.0 + part))
            earned = _count(_EARNED * free * share - tenant.running, 1.0 + _EARNED * share)
            most = max(most, min(earned, tenant.answers.lately(int(now)) - tenant.running + tenant.slow))
        return max(0, min(most, free))

    def room_of_host(self, host: Host, now: float) -> int:
        """How many calls to a host may begin."""
        free, tenant = self.size - self.running, host.tenant
        share, part = self._shares(tenant)
        if self.look_at(host, now):
            earned = _count(_EARNED * free * share - tenant.running, 1.0 + _EARNED * share)
            earned = min(earned, host.answers.lately(int(now)) - host.running)
            limit, held = free * part, tenant.running
        else:
            earned = 0
            limit, held = self._slow_limit(free, part), tenant.slow
            if not host.credit and limit <= held:
                limit, part = self._trial_limit(free, part), part / _TRIAL_PART
        base = min(_count(limit - held, 1.0 + part), _count(limit - held - host.running, 2.0 + part))
        return max(0, min(free, self.per_host - host.running, max(earned, base)))

    # Time

    def sweep(self, now: float) -> None:
        """See which hosts have become slow, take weights as they are now, and forget who has been idle for long."""
        for host in self._busy:
            self.look_at(host, now)
        for tenant in self._holders:
            if (weight := self._weight_of(tenant.number)) != tenant.weight:
                self._weights += tenant.running * (weight - tenant.weight)
                tenant.weight = weight
        while self._idle:
            host, since = next(iter(self._idle.items()))
            if now - since < _REMEMBER_SECONDS and len(self._idle) <= _MAX_IDLE_HOSTS:
                break
            del self._idle[host]
            if host.waiting:
                self._idle[host] = now
            else:
                self._forget(host)

    def _forget(self, host: Host) -> None:
        tenant = host.tenant
        tenant.quick_hosts -= host.is_quick
        del tenant.hosts[host.name]
        if not tenant.hosts:
            del self._tenants[tenant.number]


def _count(margin: float, step: float) -> int:
    """How many may begin until nothing is left of the margin, of which each takes a step."""
    return math.ceil(margin / step) if margin > 0.0 else 0
