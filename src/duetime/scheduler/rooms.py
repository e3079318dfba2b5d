"""The room of the executor, as meters: nothing is claimed of a tenant, or for a host, whose calls could not begin.

The executor shares its slots between tenants and hosts, and says at any time how many
calls of each it would begin.  A lane of push tasks has a meter for its tenant's room,
and the lane of a host's gate one for the host's.  Room for claimed tasks is promised
until the executor has taken them.

A host that had no place counts as full for some seconds: its tasks pass its gate, so
that they do not overtake those that wait there.  No I/O.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Protocol

#: Room that comes in small pieces is gathered this long, so that a claim is worth its statement.
GATHER_MS = 10
#: The executor reports room (`Room.take_opened`); changes by time alone are found by looking this often.
_LOOK_MS = 2_000
_FULL_MS = 5_000
_MAX_FULL = 10_000
_MAX_LOOKS = 256
#: How many tasks are read at once of a tenant that has full hosts, and room for others.
_READ_ON = 100
_MAX_AT_REST = 1_000


class Slots(Protocol):
    """What an executor would begin at this moment."""

    @property
    def worthwhile(self) -> int:
        """How much room is worth a claim."""
        ...

    def room(self, tenant: int) -> int:
        """How many tasks of the tenant could begin, or wait in line for a moment."""
        ...

    def room_of_host(self, tenant: int, host: str) -> int:
        """How many tasks for a host of the tenant could begin, or wait in line."""
        ...

    def is_quick(self, tenant: int, host: str) -> bool:
        """Whether the host answers, and has fewer calls than it may: a task without a place gets one in a moment."""
        ...

    def describe(self, tenant: int, host: str) -> str:
        """Why there is no room, for people; about the whole tenant if `host` is empty."""
        ...


class RoomMeter:
    """A meter (`limits.Throttle`) of a tenant's room, or of a host's."""

    __slots__ = ("_rooms", "_took_ms", "host", "promised", "tenant", "waiting")

    def __init__(self, rooms: "Room", tenant: int, host: str = "") -> None:
        self._rooms = rooms
        self.tenant = tenant
        self.host = host
        self.promised = 0
        self._took_ms = 0
        #: Lanes to open when there is room.
        self.waiting: set[int] = set()

    @property
    def room(self) -> int:
        """The room that the executor reports."""
        slots = self._rooms.slots
        return slots.room_of_host(self.tenant, self.host) if self.host else slots.room(self.tenant)

    @property
    def left(self) -> int:
        return self.room - self.promised

    def available(self, now_ms: int) -> int:
        left = self.left
        if self.host or left <= 0:
            return max(0, left)
        if self._rooms.has_full(self.tenant, now_ms):
            # Most of the first rows may be for the tenant's full hosts, and go to their gates.
            return max(left, _READ_ON)
        return 0 if left < self._rooms.slots.worthwhile and 0 <= now_ms - self._took_ms < GATHER_MS else left

    def took(self, count: int, now_ms: int) -> None:
        self.promised += count
        self._took_ms = now_ms
        self._rooms.promised.add(self)

    def gave_back(self, count: int, now_ms: int) -> None:
        self.promised = max(0, self.promised - count)

    def next_ms(self, now_ms: int) -> int:
        return now_ms + (GATHER_MS if self.left > 0 else _LOOK_MS)

    @property
    def reason(self) -> str:
        return self._rooms.slots.describe(self.tenant, self.host)


class Room:
    """All meters of one executor's room."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._tenants: dict[int, RoomMeter] = {}
        #: The meters of hosts with promised places or waiting lanes, and some others.
        self._hosts: dict[tuple[int, str], RoomMeter] = {}
        self.promised: set[RoomMeter] = set()
        #: Meters at which lanes wait, the one that was checked longest ago first.
        self._wanted: OrderedDict[RoomMeter, None] = OrderedDict()
        #: Full hosts with the time until which they are, the next to end first; and how many each tenant has.
        self._full: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._full_of: Counter[int] = Counter()

    def of_tenant(self, tenant: int) -> RoomMeter:
        meter = self._tenants.get(tenant)
        if meter is None:
            meter = self._tenants[tenant] = RoomMeter(self, tenant)
        return meter

    def of_host(self, tenant: int, host: str) -> RoomMeter:
        meter = self._hosts.get((tenant, host))
        if meter is None:
            meter = self._hosts[tenant, host] = RoomMeter(self, tenant, host)
        return meter

    # Full hosts

    def is_full(self, tenant: int, host: str, now_ms: int) -> bool:
        """Whether tasks for the host have to pass its gate: it has no place, or had none a moment ago."""
        if self.slots.is_quick(tenant, host):
            if self._full:
                self._forget(tenant, host)
            return False
        until_ms = self._full.get((tenant, host))
        if until_ms is not None and until_ms > now_ms:
            return True
        if self._left(tenant, host) > 0:
            return False
        self.note_full(tenant, host, now_ms)
        return True

    def has_full(self, tenant: int, now_ms: int) -> bool:
        self._forget_full(now_ms)
        return tenant in self._full_of

    def note_full(self, tenant: int, host: str, now_ms: int) -> None:
        """Note that a host had no place; not for a quick host, because moving all its tasks to its gate costs more."""
        if self.slots.is_quick(tenant, host):
            return
        if (tenant, host) not in self._full:
            self._full_of[tenant] += 1
        self._full[tenant, host] = now_ms + _FULL_MS
        self._full.move_to_end((tenant, host))
        self._forget_full(now_ms)

    def _forget_full(self, now_ms: int) -> None:
        while self._full:
            (tenant, host), until_ms = next(iter(self._full.items()))
            if now_ms < until_ms <= now_ms + _FULL_MS and len(self._full) <= _MAX_FULL:
                break
            self._forget(tenant, host)

    def _forget(self, tenant: int, host: str) -> None:
        if self._full.pop((tenant, host), None) is not None:
            self._full_of[tenant] -= 1
            if not self._full_of[tenant]:
                del self._full_of[tenant]

    # Claims

    def take_all(self, tenant: int, hosts: Mapping[str, int], now_ms: int) -> bool:
        """Promise places to all these calls; False: one of the hosts is full, and nothing was promised."""
        if tenant in self._full_of:
            return False
        for host, count in hosts.items():
            if self._left(tenant, host) < count and not self.slots.is_quick(tenant, host):
                return False
        for host, count in hosts.items():
            self.of_host(tenant, host).took(count, now_ms)
        return True

    def _left(self, tenant: int, host: str) -> int:
        meter = self._hosts.get((tenant, host))
        return self.slots.room_of_host(tenant, host) if meter is None else meter.left

    def give_back_all(self, tenant: int, hosts: Mapping[str, int], now_ms: int) -> None:
        for host, count in hosts.items():
            self.of_host(tenant, host).gave_back(count, now_ms)

    def taken(self) -> None:
        """End the promises: the executor has taken the tasks and counts them itself."""
        for meter in self.promised:
            meter.promised = 0
        self.promised.clear()
        if len(self._hosts) > 2 * len(self._wanted) + _MAX_AT_REST:
            self._hosts = {place: meter for place, meter in self._hosts.items() if meter.waiting}

    # Waiting lanes

    def wait(self, meter: RoomMeter, lane: int, now_ms: int) -> None:
        """Open the lane when there is room."""
        meter.waiting.add(lane)
        self._wanted[meter] = None
        if meter.host:
            self.note_full(meter.tenant, meter.host, now_ms)

    @property
    def is_wanted(self) -> bool:
        return bool(self._wanted)

    def take_opened(self) -> set[int]:
        """Lanes for which there is room again; each call checks a limited number of meters."""
        opened: set[int] = set()
        for meter in list(islice(self._wanted, _MAX_LOOKS)):
            if meter.left > 0:
                opened |= meter.waiting
                meter.waiting.clear()
                del self._wanted[meter]
            else:
                self._wanted.move_to_end(meter)
        return opened
