"""How many calls each target host has under way, and which tasks wait for one.

Pure: no I/O, no clock.  A host that is full may have about as many tasks
waiting as it answered in the last second, so that a fast host is kept busy and
a slow one does not hold room that others could use.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

# A burst is let in for this long before its host is called slow.
GRACE_SECONDS = 0.25
_LEAST_WAITING = 8


class _Host(Generic[Item]):
    __slots__ = ("answered", "answered_before", "full_since", "running", "second", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.full_since: float | None = None
        self.waiting: deque[tuple[float, Item]] = deque()
        self.second = 0
        self.answered = 0
        self.answered_before = 0

    def count(self, now: float, answers: int) -> int:
        """Note answers; returns how many there were in about the last second."""
        second = int(now)
        if second != self.second:
            self.answered_before = self.answered if second == self.second + 1 else 0
            self.second, self.answered = second, 0
        self.answered += answers
        return max(self.answered, self.answered_before)


class HostSlots(Generic[Item]):
    def __init__(self, per_host: int, max_waiting: int) -> None:
        self._per_host = per_host
        self._max_waiting = max_waiting
        self._hosts: dict[str, _Host[Item]] = {}
        self.running = 0
        self.waiting = 0

    def take(self, host: str, now: float) -> bool:
        """Begin a call if the host has room for it and nobody waits before it."""
        state = self._hosts.get(host)
        if state is None:
            state = self._hosts[host] = _Host()
        if state.running >= self._per_host:
            return False
        state.running += 1
        self.running += 1
        if state.running >= self._per_host:
            state.full_since = now
        return True

    def wait(self, host: str, item: Item, until: float, now: float) -> bool:
        """Stand in line for a host that is full; False if the line is too long."""
        state = self._hosts[host]
        if self.waiting >= self._max_waiting or len(state.waiting) >= self._allowance(state, now):
            return False
        state.waiting.append((until, item))
        self.waiting += 1
        return True

    def free(self, host: str, now: float) -> Item | None:
        """A call is over; the first in line takes its place and is returned."""
        state = self._hosts[host]
        state.count(now, 1)
        if state.waiting:
            self.waiting -= 1
            return state.waiting.popleft()[1]
        state.running -= 1
        self.running -= 1
        state.full_since = None
        return None

    def leave(self, host: str, item: Item) -> None:
        """Step out of the line."""
        state = self._hosts[host]
        for place, (_, candidate) in enumerate(state.waiting):
            if candidate is item:
                del state.waiting[place]
                self.waiting -= 1
                return

    def sweep(self, now: float) -> list[Item]:
        """Take out of the lines who waited for too long or stands too far back; forget idle hosts."""
        out: list[Item] = []
        for host, state in list(self._hosts.items()):
            while state.waiting and state.waiting[0][0] <= now:
                out.append(state.waiting.popleft()[1])
            allowance = self._allowance(state, now)
            while len(state.waiting) > allowance:
                out.append(state.waiting.pop()[1])
            if not state.running and not state.waiting and int(now) > state.second + 1:
                del self._hosts[host]
        self.waiting -= len(out)
        return out

    def __iter__(self) -> Iterator[Item]:
        """Everybody in a line."""
        for state in self._hosts.values():
            for _, item in state.waiting:
                yield item

    def _allowance(self, state: _Host[Item], now: float) -> int:
        if state.full_since is None or now - state.full_since < GRACE_SECONDS:
            return self._max_waiting
        return max(_LEAST_WAITING, state.count(now, 0))
