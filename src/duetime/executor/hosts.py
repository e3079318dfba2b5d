"""Lines of claimed tasks in front of hosts that answer.

A host may have about as many waiting tasks as it answered in the last second, so
that a slot that it frees is taken at once.  A host that does not answer has no
line: its tasks wait at its gate in the database, and are claimed when there is a
slot for them.  Nothing is known of a host that was not called before, so a burst
to it may wait for a moment.  Pure: no I/O and no clock.
"""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from duetime.executor.slots import Host, Slot, Slots

Item = TypeVar("Item")

#: How long a burst may wait in line for a host that has not answered yet.
GRACE_SECONDS = 1.0
#: How often to sweep.
SWEEP_SECONDS = 0.25
_LEAST_WAITING = 8
#: How many lines of other hosts are checked when a slot comes free.
_MAX_OTHERS = 2


class _Line(Generic[Item]):
    __slots__ = ("items", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.items: deque[tuple[float, Item]] = deque()


class Lines(Generic[Item]):
    """Decides which calls begin and which wait in line; calls to a host keep their order."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        #: By host, the host that was checked longest ago first.
        self._lines: OrderedDict[Host, _Line[Item]] = OrderedDict()
        self.waiting = 0

    def take(self, host: Host, now: float) -> Slot | None:
        """Begin a call if it may begin and none waits before it."""
        if host.waiting or not self._slots.may_begin(host, now):
            return None
        return self._slots.begin(host, now)

    def wait(self, host: Host, item: Item, until: float, now: float) -> bool:
        """Join the line of the host; False: the line is full."""
        if host.waiting >= self.allowance(host, now):
            return False
        line = self._lines.get(host)
        if line is None:
            line = self._lines[host] = _Line(now)
        line.items.append((until, item))
        self._count(host, 1)
        return True

    def allowance(self, host: Host, now: float) -> int:
        """How many may wait in line for the host, including those that wait already."""
        # Each tenant leaves as much room in line for the others as it takes.
        room = (self._slots.size - self.waiting) - host.tenant.waiting
        if lately := host.answers.lately(int(now)):
            # This holds even if some calls take long: the line is no longer than what the host answers meanwhile.
            most = max(_LEAST_WAITING, lately)
        elif self._slots.look_at(host, now):
            most = _LEAST_WAITING
        elif host.credit or not self._is_new(host, now):
            return 0
        elif host.tenant.slow and not host.running and not self._slots.may_begin(host, now):
            # The calls of its tenant hold all slots that it may have for such hosts.
            return 0
        else:
            most = self._slots.size
        # One more takes two places: its own, and one that it has to leave free.
        return min(most, host.waiting + max(0, (room + 1) // 2))

    def free(self, slot: Slot, now: float) -> list[tuple[Item, Slot]]:
        """End a call and return the waiting calls that begin now."""
        self._slots.end(slot, now)
        begun: list[tuple[Item, Slot]] = []
        if not self.waiting:
            return begun
        if slot.host.waiting:
            self._let_in(slot.host, begun, now, 1)
        if len(self._lines) == 1 and slot.host.waiting:
            return begun
        for _ in range(min(_MAX_OTHERS, len(self._lines))):
            host = next(iter(self._lines))
            if host is not slot.host:
                self._let_in(host, begun, now, 1)
            if host.waiting:
                self._lines.move_to_end(host)
        return begun

    def leave(self, host: Host, item: Item) -> None:
        """Leave the line."""
        line = self._lines.get(host)
        if line is None:
            return
        for position, (_, candidate) in enumerate(line.items):
            if candidate is item:
                del line.items[position]
                self._count(host, -1)
                break
        if not line.items:
            self._lines.pop(host)

    def sweep(self, now: float) -> tuple[list[Item], list[tuple[Item, Slot]]]:
        """Return the items that leave the lines (too long or too far back), and those that begin now."""
        self._slots.sweep(now)
        out: list[Item] = []
        begun: list[tuple[Item, Slot]] = []
        for host, line in list(self._lines.items()):
            self._let_in(host, begun, now, host.waiting)
            while line.items and line.items[0][0] <= now:
                out.append(line.items.popleft()[1])
                self._count(host, -1)
            if not self._is_new(host, now):
                self._slots.doubt(host)
            allowance = self.allowance(host, now)
            while len(line.items) > allowance:
                out.append(line.items.pop()[1])
                self._count(host, -1)
            if not line.items:
                # Also if the last item has just begun.
                self._lines.pop(host, None)
        return out, begun

    def _let_in(self, host: Host, begun: list[tuple[Item, Slot]], now: float, most: int) -> None:
        line = self._lines.get(host)
        if line is None:
            return
        while most and line.items and self._slots.may_begin(host, now):
            most -= 1
            begun.append((line.items.popleft()[1], self._slots.begin(host, now)))
            self._count(host, -1)
        if not line.items:
            self._lines.pop(host)

    def _count(self, host: Host, change: int) -> None:
        host.waiting += change
        host.tenant.waiting += change
        self.waiting += change

    def _is_new(self, host: Host, now: float) -> bool:
        """Whether the host may still turn out to be quick."""
        line = self._lines.get(host)
        return line is None or now - line.since < GRACE_SECONDS
