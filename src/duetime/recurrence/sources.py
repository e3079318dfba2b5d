"""Sources of instants: what each part of a definition fires at.

A source answers in milliseconds, with a note on the effect of a clock change.  Over
local times the two policies are two streams, each in order: the stream that takes
the first of two equal local times, and the stream that takes the last.  `both` is
their union.  A recurrence of an hour or finer is `both` with gaps left out: every
instant whose local time matches, and nothing else.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from duetime.recurrence.spec import Dst
from duetime.recurrence.steps import Steps
from duetime.recurrence.zones import Change, Zone, clock_text


class Moment(NamedTuple):
    at_ms: int
    note: str | None = None


class LocalRule(Protocol):
    """Local times in order; both answers include the time asked about."""

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""

    def next_local(self, local: int, steps: Steps) -> int | None: ...

    def previous_local(self, local: int, steps: Steps) -> int | None: ...


class Source(Protocol):
    """Instants in order; both answers are strictly after or before.

    A source may lower `steps.left` without checking it: the caller checks it before it asks again.
    """

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""

    def next(self, after_ms: int, steps: Steps) -> Moment | None: ...

    def previous(self, before_ms: int, steps: Steps) -> Moment | None: ...


#: The steps for asking a source; a rule adds those for what it passes over.
SOURCE_STEPS = 5
#: The steps for finding the exact instant of a clock change.
CHANGE_STEPS = 20
# The most gaps passed in one search; a zone has two changes a year, so this is centuries.
_GAPS_PASSED = 1000


class WallSource:
    """A rule over local times in a zone, under a policy for clock changes."""

    __slots__ = ("_overlap", "_rule", "_shifts", "_zone")

    def __init__(self, rule: LocalRule, zone: Zone, dst: Dst, *, is_fine: bool) -> None:
        self._rule = rule
        self._zone = zone
        self._shifts = dst.gap == "shift" and not is_fine
        self._overlap = "both" if is_fine else dst.overlap

    @property
    def size(self) -> int:
        return 100 + self._rule.size

    def next(self, after_ms: int, steps: Steps) -> Moment | None:
        steps.left -= SOURCE_STEPS
        second = after_ms // 1000
        local, change = self._zone.locate(second)
        if change is None:
            return self._forward(local + 1, steps, takes_last=self._overlap == "last")
        steps.take(CHANGE_STEPS)
        is_first_pass = second < change.at
        found = []
        if self._overlap != "last":
            found.append(self._forward(local + 1 if is_first_pass else change.wall_end, steps, takes_last=False))
        if self._overlap != "first":
            found.append(self._forward(change.wall_start if is_first_pass else local + 1, steps, takes_last=True))
        return earliest(found)

    def previous(self, before_ms: int, steps: Steps) -> Moment | None:
        steps.left -= SOURCE_STEPS
        second = (before_ms - 1) // 1000
        local, change = self._zone.locate(second)
        if change is None:
            return self._backward(local, steps, takes_last=self._overlap != "first")
        steps.take(CHANGE_STEPS)
        is_first_pass = second < change.at
        found = []
        if self._overlap != "last":
            found.append(self._backward(local if is_first_pass else change.wall_end - 1, steps, takes_last=False))
        if self._overlap != "first":
            found.append(self._backward(change.wall_start - 1 if is_first_pass else local, steps, takes_last=True))
        return latest(found)

    def _forward(self, start: int, steps: Steps, *, takes_last: bool) -> Moment | None:
        for _ in range(_GAPS_PASSED):
            local = self._rule.next_local(start, steps)
            if local is None:
                return None
            before, after = self._zone.offsets_of(local)
            if before == after:
                return Moment((local - before) * 1000)
            if before > after:
                return _repeated(local, before, after, takes_last=takes_last)
            steps.take(CHANGE_STEPS)
            gap = self._zone.change_around(local, before, after)
            if self._shifts:
                return self._shifted(gap, steps)
            start = gap.wall_end
        return None

    def _backward(self, start: int, steps: Steps, *, takes_last: bool) -> Moment | None:
        for _ in range(_GAPS_PASSED):
            local = self._rule.previous_local(start, steps)
            if local is None:
                return None
            before, after = self._zone.offsets_of(local)
            if before == after:
                return Moment((local - before) * 1000)
            if before > after:
                return _repeated(local, before, after, takes_last=takes_last)
            steps.take(CHANGE_STEPS)
            gap = self._zone.change_around(local, before, after)
            if self._shifts:
                return self._shifted(gap, steps)
            start = gap.wall_start - 1
        return None

    def _shifted(self, gap: Change, steps: Steps) -> Moment:
        """All local times of the gap as one fire at its end; it has no note if the rule fires at that time anyway."""
        if self._rule.next_local(gap.wall_end, steps) == gap.wall_end:
            return Moment(gap.at * 1000)
        first = self._rule.next_local(gap.wall_start, steps)
        return Moment(gap.at * 1000, f"shifted from {clock_text(first or 0)}, which does not exist")


def _repeated(local: int, before: int, after: int, *, takes_last: bool) -> Moment:
    if takes_last:
        return Moment((local - after) * 1000, f"second of two {clock_text(local)}")
    return Moment((local - before) * 1000, f"first of two {clock_text(local)}")


class InstantSource:
    """A fixed list of instants."""

    __slots__ = ("_instants",)

    def __init__(self, instants: list[int]) -> None:
        self._instants = array("q", sorted(set(instants)))

    @property
    def size(self) -> int:
        return 100 + 8 * len(self._instants)

    def next(self, after_ms: int, steps: Steps) -> Moment | None:
        steps.take(1)
        index = bisect_right(self._instants, after_ms)
        return Moment(self._instants[index]) if index < len(self._instants) else None

    def previous(self, before_ms: int, steps: Steps) -> Moment | None:
        steps.take(1)
        index = bisect_left(self._instants, before_ms)
        return Moment(self._instants[index - 1]) if index else None


class EverySource:
    """A fixed interval of elapsed time in milliseconds, counted from the Unix epoch and a phase."""

    __slots__ = ("_every_ms", "_phase_ms")

    def __init__(self, every_ms: int, phase_ms: int) -> None:
        self._every_ms, self._phase_ms = every_ms, phase_ms

    @property
    def size(self) -> int:
        return 100

    def next(self, after_ms: int, steps: Steps) -> Moment | None:
        steps.left -= 1
        return Moment(((after_ms - self._phase_ms) // self._every_ms + 1) * self._every_ms + self._phase_ms)

    def previous(self, before_ms: int, steps: Steps) -> Moment | None:
        steps.left -= 1
        return Moment((before_ms - 1 - self._phase_ms) // self._every_ms * self._every_ms + self._phase_ms)


class DateRule:
    """A fixed list of local times, in order."""

    __slots__ = ("_locals",)

    def __init__(self, ordered: Sequence[int]) -> None:
        self._locals = array("q", ordered)

    @property
    def size(self) -> int:
        return 100 + 8 * len(self._locals)

    def next_local(self, local: int, steps: Steps) -> int | None:
        steps.take(1)
        index = bisect_left(self._locals, local)
        return self._locals[index] if index < len(self._locals) else None

    def previous_local(self, local: int, steps: Steps) -> int | None:
        steps.take(1)
        index = bisect_right(self._locals, local)
        return self._locals[index - 1] if index else None


def earliest(moments: list[Moment | None]) -> Moment | None:
    """The earliest; among several at the same instant, one that no clock change affected."""
    return min((moment for moment in moments if moment is not None), key=_order, default=None)


def latest(moments: list[Moment | None]) -> Moment | None:
    """The latest; among several at the same instant, one that no clock change affected."""
    return min((moment for moment in moments if moment is not None), key=_reverse_order, default=None)


def _order(moment: Moment) -> tuple[int, bool]:
    return moment.at_ms, moment.note is not None


def _reverse_order(moment: Moment) -> tuple[int, bool]:
    return -moment.at_ms, moment.note is not None
