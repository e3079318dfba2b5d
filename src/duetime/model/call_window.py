"""How many of a target's last calls have failed: counters for whole seconds, no I/O.

The window covers some seconds, and begins no earlier than the second that
completes a number of calls, so that a busy target is judged by what it does now.
"""

from collections import deque


class _Second:
    __slots__ = ("calls", "failures", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        self.failures = 0


class CallWindow:
    __slots__ = ("_enough_calls", "_last", "_longest_seconds", "_seconds", "calls", "failures")

    def __init__(self, longest_seconds: int, enough_calls: int) -> None:
        self._longest_seconds = longest_seconds
        self._enough_calls = enough_calls
        self._seconds: deque[_Second] = deque()
        self._last: _Second | None = None
        self.calls = 0
        self.failures = 0

    def add(self, now_ms: int, is_failure: bool) -> None:
        last = self._last
        if last is None or last.number != now_ms // 1000:
            last = self._last = _Second(now_ms // 1000)
            self._seconds.append(last)
        last.calls += 1
        self.calls += 1
        if is_failure:
            last.failures += 1
            self.failures += 1
        if len(self._seconds) > 1:
            self.trim(now_ms)

    def trim(self, now_ms: int) -> None:
        """Leave out what is too old."""
        seconds, earliest = self._seconds, now_ms // 1000 - self._longest_seconds
        while seconds and (
            seconds[0].number <= earliest or (len(seconds) > 1 and self.calls - seconds[0].calls >= self._enough_calls)
        ):
            gone = seconds.popleft()
            self.calls -= gone.calls
            self.failures -= gone.failures
        if not seconds:
            self._last = None

    def clear(self) -> None:
        self._seconds.clear()
        self._last = None
        self.calls = self.failures = 0

    def seconds(self, now_ms: int) -> int:
        """How far back it looks now."""
        return now_ms // 1000 - self._seconds[0].number + 1 if self._seconds else 0

    def accepted(self, now_ms: int) -> float:
        """Calls that did not fail in a second: the most of this one and the two before it."""
        recent = now_ms // 1000 - 2
        return float(max((each.calls - each.failures for each in self._seconds if each.number >= recent), default=0))

    def rate(self, now_ms: int) -> float:
        """Calls in a second: the most of this one and the two before it."""
        recent = now_ms // 1000 - 2
        return float(max((each.calls for each in self._seconds if each.number >= recent), default=0))
