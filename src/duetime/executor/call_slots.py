"""The slots and lines of one executor, as the feeder sees them (`scheduler.rooms.Slots`)."""

from collections.abc import Callable
from typing import Generic, TypeVar

from duetime.executor.hosts import Lines
from duetime.executor.slots import Host, Slots

Item = TypeVar("Item")

#: Room for one call in this many of all calls is worth a claim.
_WORTHWHILE_PART = 16


class CallSlots(Lines[Item], Generic[Item]):
    def __init__(self, size: int, per_host: int, weight_of: Callable[[int], int], time: Callable[[], float]) -> None:
        slots = Slots(size, per_host, weight_of)
        super().__init__(slots)
        self._time = time
        self.host = slots.host
        self.worthwhile = max(1, size // _WORTHWHILE_PART)

    @property
    def running(self) -> int:
        return self._slots.running

    def room(self, tenant: int) -> int:
        known = self._slots.find_tenant(tenant)
        return self._slots.room(known, self._time()) - known.waiting

    def room_of_host(self, tenant: int, host: str) -> int:
        known, now = self._slots.find(tenant, host), self._time()
        return max(0, self._slots.room_of_host(known, now) + self.allowance(known, now) - known.waiting)

    def is_quick(self, tenant: int, host: str) -> bool:
        known, now = self._slots.find(tenant, host), self._time()
        if known.running >= self._slots.per_host:
            return False
        return known.answers.lately(int(now)) > 0 or self._slots.look_at(known, now)

    def describe(self, tenant: int, host: str) -> str:
        slots, known = self._slots, self._slots.find_tenant(tenant)
        of_all = f"{slots.running} of the {slots.size} calls that the node makes at once are under way"
        if host and (at_host := known.hosts.get(host)) is not None and at_host.running:
            held = f"its host {host} has no free place: {_calls(at_host)} under way to it"
        elif host:
            held = f"its host {host} has no free place: {known.running} calls of its tenant are under way"
        else:
            held = f"its tenant has no free place: {known.running} calls of it are under way"
        slow = f", {known.slow} of them to hosts that are slow or have not answered yet" if known.slow else ""
        return f"{held}{slow}; {of_all}"


def _calls(host: Host) -> str:
    return "1 call is" if host.running == 1 else f"{host.running} calls are"
