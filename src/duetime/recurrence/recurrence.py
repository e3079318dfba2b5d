"""The compiled form of a definition: which instants it fires at, in order.

Questions change nothing and need no I/O.  Nominal times are strictly increasing,
and a jittered time never reaches the next nominal one.  Every search is bounded by
steps: one that takes more raises TooCostly.  The last answers are kept, so asking
again for the same time costs nothing.
"""

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from duetime.recurrence.exclusions import ExclusionSet
from duetime.recurrence.sources import Moment, Source, earliest, latest
from duetime.recurrence.spec import Fire, PreviewLine
from duetime.recurrence.steps import PREVIEW_STEPS, SEARCH_STEPS, UNLIMITED, OutOfSteps, Steps, TooCostly, finish
from duetime.recurrence.zones import EARLIEST_SECOND, LATEST_SECOND, Zone

# A preview lists this many times of one excluded stretch, and then jumps to its end.
_LISTED_OF_A_STRETCH = 10
_LISTED_EXCLUDED = 200
_PREVIEW_LINES = 1000
#: The last answer with up to this many next times is kept.
_KEPT_LINES = 10
#: The steps of a line of a preview, besides those for finding its time.
_LINE_STEPS = 3
#: How many sources' next times are compared in one step.
_HEADS_A_STEP = 8


class Bounds(NamedTuple):
    """A half-open range [start, end), in milliseconds."""

    start_ms: int
    end_ms: int


class _Lines(NamedTuple):
    from_ms: int
    wanted: int
    lines: list[PreviewLine]

    def hold(self, from_ms: int, count: int) -> bool:
        is_before = not self.lines or from_ms <= self.lines[0].nominal_ms
        return count == self.wanted and self.from_ms <= from_ms and is_before


class Recurrence:
    """Answers questions about one definition; only compile_definition makes it."""

    __slots__ = (
        "_after_ms",
        "_bounds",
        "_describe",
        "_exclusions",
        "_jitter_ms",
        "_lines",
        "_next",
        "_next_after_ms",
        "_previous",
        "_previous_before_ms",
        "_search_steps",
        "_sources",
        "_steps",
        "_words",
        "_zone",
        "size",
    )

    def __init__(
        self,
        *,
        sources: tuple[Source, ...],
        zone: Zone,
        exclusions: ExclusionSet | None,
        start_at: int | None,
        end_at: int | None,
        jitter_ms: int,
        after_ms: int | None,
        describe: Callable[[], str],
        size: int,
        search_steps: int = SEARCH_STEPS,
    ) -> None:
        self._sources = sources
        self._zone = zone
        self._exclusions = exclusions
        earliest_ms, latest_ms = EARLIEST_SECOND * 1000, LATEST_SECOND * 1000
        self._bounds = Bounds(
            earliest_ms if start_at is None else max(start_at, earliest_ms),
            latest_ms if end_at is None else min(end_at, latest_ms),
        )
        self._jitter_ms = jitter_ms
        self._after_ms = after_ms
        self._describe = describe
        self._words: str | None = None
        self._search_steps = search_steps
        self._steps = Steps(search_steps)
        # No time lies between this one and that of the fire; if the fire is None, there is no later time at all.
        self._next_after_ms = UNLIMITED
        self._next: Fire | None = None
        # No time lies between that of the fire and this one.
        self._previous_before_ms = 0
        self._previous: Fire | None = None
        self._lines: _Lines | None = None
        #: Its approximate size in bytes.
        self.size = size

    @property
    def words(self) -> str:
        """The definition in one English sentence without a full stop."""
        if self._words is None:
            self._words = self._describe()
        return self._words

    @property
    def spent(self) -> int:
        """The number of steps of all searches so far."""
        return self._steps.spent

    def local(self, at_ms: int) -> str:
        """An instant as local time in the definition's zone."""
        return self._zone.iso(at_ms)

    def next(self, after_ms: int) -> Fire | None:
        """The first fire whose nominal time is strictly after this one.

        With `after`, whose times depend on the runs, it is the first run: at the start of
        the schedule or, after that start, one delay after the time asked about.
        """
        if self._after_ms is not None:
            is_before = self._bounds.start_ms > max(after_ms, EARLIEST_SECOND * 1000)
            return self._delayed(self._bounds.start_ms if is_before else after_ms + self._after_ms)
        if self._is_next_known(after_ms):
            return self._next
        steps = self._steps
        steps.begin()
        try:
            moment = self._next_moment(after_ms, steps)
            fire = None if moment is None else self._fire(moment, steps)
        except OutOfSteps:
            raise self._too_costly() from None
        self._next_after_ms, self._next = after_ms, fire
        return fire

    def _is_next_known(self, after_ms: int) -> bool:
        return self._next_after_ms <= after_ms and (self._next is None or after_ms < self._next.nominal_ms)

    def previous(self, before_ms: int) -> Fire | None:
        """The last fire whose nominal time is strictly before this one; None with `after`."""
        before_ms = min(before_ms, self._bounds.end_ms)
        known = self._previous
        if known is not None and known.nominal_ms < before_ms:
            if before_ms <= self._previous_before_ms:
                return known
            # The search forward has covered what lies between.
            if self._next_after_ms < self._previous_before_ms and self._is_next_known(before_ms - 1):
                return known
        steps = self._steps
        steps.begin()
        try:
            fire = self._find_previous(before_ms, steps)
        except OutOfSteps:
            raise self._too_costly() from None
        if fire is not None:
            self._previous, self._previous_before_ms = fire, before_ms
        return fire

    def _find_previous(self, before_ms: int, steps: Steps) -> Fire | None:
        while before_ms > self._bounds.start_ms:
            moment = latest([source.previous(before_ms, steps) for source in self._sources])
            if moment is None or moment.at_ms < self._bounds.start_ms:
                return None
            steps.take(len(self._sources) // _HEADS_A_STEP)
            span = self._exclusions.span(moment.at_ms, steps) if self._exclusions is not None else None
            if span is None:
                return self._fire(moment, steps)
            before_ms = span[0]
        return None

    def between(self, from_ms: int, to_ms: int) -> Iterator[Fire]:
        """The fires in [from, to) by nominal time, in order."""
        try:
            if not self._jitter_ms:
                for moment in self._moments(from_ms, to_ms):
                    yield Fire(moment.at_ms, moment.at_ms, moment.note)
                return
            moments = self._moments(from_ms, self._bounds.end_ms)
            upcoming = next(moments, None)
            while upcoming is not None and upcoming.at_ms < to_ms:
                following = next(moments, None)
                yield self._fire_before(upcoming, following)
                upcoming = following
        except OutOfSteps:
            raise self._too_costly() from None

    def next_after_completion(self, completed_ms: int) -> Fire | None:
        """The fire after a run that ended now: one delay later with `after`, else the next."""
        if self._after_ms is None:
            return self.next(completed_ms)
        return self._delayed(max(completed_ms + self._after_ms, self._bounds.start_ms))

    def preview(self, from_ms: int, count: int) -> list[PreviewLine]:
        """The next fires from a time on, inclusive, and the excluded times between them, with the reason."""
        return finish(self.preview_in_pieces(from_ms, count))

    def preview_in_pieces(self, from_ms: int, count: int) -> Generator[None, None, list[PreviewLine]]:
        """Like `preview`, in pieces. Raises TooCostly if it takes more steps than a preview may."""
        count = min(count, _PREVIEW_LINES)
        if self._after_ms is not None:
            fire = self.next(from_ms - 1)
            seconds = self._after_ms / 1000
            note = f"then {seconds:g} s after each run ends"
            return [] if fire is None or count < 1 else [self._line(fire, note)]
        # Other callers may use the same recurrence between two pieces.
        steps = Steps(self._search_steps)
        try:
            return (yield from self._preview(from_ms, count, steps))
        except OutOfSteps:
            raise self._too_costly() from None
        finally:
            self._steps.note(steps.spent)

    def _preview(self, from_ms: int, count: int, steps: Steps) -> Generator[None, None, list[PreviewLine]]:
        lines: list[PreviewLine] = []
        fires, listed, in_a_row = 0, 0, 0
        candidates = self._candidates(from_ms, steps)
        moment = next(candidates, None)
        while fires < count and moment is not None:
            if steps.spent > PREVIEW_STEPS:
                raise TooCostly(
                    "count",
                    f"showing them takes more than {PREVIEW_STEPS:,} steps; ask for fewer, or simplify the spec",
                )
            span = self._exclusions.span(moment.at_ms, steps) if self._exclusions is not None else None
            if span is None:
                fires, in_a_row = fires + 1, 0
                lines.append(self._line(self._fire(moment, steps), moment.note))
                steps.begin()
                steps.note(_LINE_STEPS)
                moment = next(candidates, None)
            elif in_a_row < _LISTED_OF_A_STRETCH and listed < _LISTED_EXCLUDED:
                in_a_row, listed = in_a_row + 1, listed + 1
                lines.append(self._excluded_line(moment, steps))
                moment = next(candidates, None)
            else:
                in_a_row += 1
                candidates = self._candidates(span[1], steps)
                moment = next(candidates, None)
            if steps.is_piece_over():
                yield
        while lines and lines[-1].excluded and fires >= count:
            lines.pop()
        return lines

    def knows_upcoming(self, from_ms: int, count: int) -> bool:
        """Whether the answer is kept already."""
        return self._lines is not None and self._lines.hold(from_ms, count)

    def upcoming_in_pieces(self, from_ms: int, count: int) -> Generator[None, None, list[PreviewLine]]:
        """The next fires from a time on, inclusive, without excluded times; a short list is kept."""
        if self._lines is not None and self._lines.hold(from_ms, count):
            return self._lines.lines
        lines: list[PreviewLine] = []
        steps, after_ms = Steps(self._search_steps), from_ms - 1
        try:
            while len(lines) < count and (moment := self._next_moment(after_ms, steps)) is not None:
                lines.append(self._line(self._fire(moment, steps), moment.note))
                after_ms = moment.at_ms
                steps.begin()
                if steps.is_piece_over():
                    yield
        except OutOfSteps:
            raise self._too_costly() from None
        finally:
            self._steps.note(steps.spent)
        if count <= _KEPT_LINES:
            self._lines = _Lines(from_ms, count, lines)
        return lines

    def _too_costly(self) -> TooCostly:
        takes = f"finding a time takes more than {self._search_steps:,} steps"
        if self._exclusions is None:
            return TooCostly("spec", f"{takes}; use fewer entries, or such as fire more often")
        return TooCostly(
            "spec.exclude",
            f"{takes}: too many times in a row are left out, or there are too many exclusions to look at; leave out "
            "whole days and hours instead of single minutes, or use `from` and `to` instead of `cron`",
        )

    def _line(self, fire: Fire, note: str | None) -> PreviewLine:
        return PreviewLine(fire.at_ms, fire.nominal_ms, self._zone.iso(fire.at_ms), note)

    def _excluded_line(self, moment: Moment, steps: Steps) -> PreviewLine:
        reason = None
        if self._exclusions is not None:
            # Finding the reason does not count as part of the search.
            naming = Steps(UNLIMITED)
            reason = self._exclusions.reason(moment.at_ms, naming)
            steps.note(naming.spent + _LINE_STEPS)
        local = self._zone.iso(moment.at_ms)
        return PreviewLine(moment.at_ms, moment.at_ms, local, moment.note, excluded=True, reason=reason)

    def _delayed(self, at_ms: int) -> Fire | None:
        """A run at this time or, if that is excluded, at the end of the exclusion."""
        steps = self._steps
        steps.begin()
        try:
            while at_ms < self._bounds.end_ms:
                steps.take(1)
                span = self._exclusions.span(at_ms, steps) if self._exclusions is not None else None
                if span is None:
                    return Fire(at_ms, min(at_ms + self._jitter_ms, self._bounds.end_ms - 1))
                at_ms = span[1]
        except OutOfSteps:
            raise self._too_costly() from None
        return None

    def _next_moment(self, after_ms: int, steps: Steps, before_ms: int | None = None) -> Moment | None:
        """The first time after this one, and before that one, that is not excluded."""
        end_ms = self._bounds.end_ms if before_ms is None else min(before_ms, self._bounds.end_ms)
        after_ms = max(after_ms, self._bounds.start_ms - 1)
        if len(self._sources) != 1:
            return self._next_of_many(after_ms, end_ms, steps)
        source, exclusions = self._sources[0], self._exclusions
        while after_ms < end_ms:
            moment = source.next(after_ms, steps)
            if moment is None or moment.at_ms >= end_ms:
                return None
            span = exclusions.span(moment.at_ms, steps) if exclusions is not None else None
            if span is None:
                return moment
            after_ms = span[1] - 1
        return None

    def _next_of_many(self, after_ms: int, end_ms: int, steps: Steps) -> Moment | None:
        """Like `_next_moment`, for many sources: only sources whose next time has passed are asked again."""
        if after_ms >= end_ms:
            return None
        sources, exclusions = self._sources, self._exclusions
        heads = [source.next(after_ms, steps) for source in sources]
        while (moment := earliest(heads)) is not None and moment.at_ms < end_ms:
            steps.take(1 + len(heads) // _HEADS_A_STEP)
            span = exclusions.span(moment.at_ms, steps) if exclusions is not None else None
            if span is None:
                return moment
            after_ms = span[1] - 1
            for index, head in enumerate(heads):
                if head is not None and head.at_ms <= after_ms:
                    heads[index] = sources[index].next(after_ms, steps)
        return None

    def _candidates(self, from_ms: int, steps: Steps) -> Iterator[Moment]:
        """The union of the sources within the bounds, without exclusions; each source is asked once for each moment."""
        from_ms = max(from_ms, self._bounds.start_ms)
        if from_ms >= self._bounds.end_ms:
            return
        heads = [source.next(from_ms - 1, steps) for source in self._sources]
        while (moment := earliest(heads)) is not None and moment.at_ms < self._bounds.end_ms:
            steps.take(1 + len(heads) // _HEADS_A_STEP)
            yield moment
            for index, head in enumerate(heads):
                if head is not None and head.at_ms == moment.at_ms:
                    heads[index] = self._sources[index].next(moment.at_ms, steps)

    def _moments(self, from_ms: int, to_ms: int) -> Iterator[Moment]:
        """The union minus the exclusions; each moment is one search."""
        steps = self._steps
        if self._exclusions is None:
            steps.begin()
            for moment in self._candidates(from_ms, steps):
                if moment.at_ms >= to_ms:
                    return
                yield moment
                steps.begin()
            return
        after_ms = from_ms - 1
        while True:
            steps.begin()
            found = self._next_moment(after_ms, steps, to_ms)
            if found is None:
                return
            yield found
            after_ms = found.at_ms

    def _fire(self, moment: Moment, steps: Steps) -> Fire:
        if not self._jitter_ms:
            return Fire(moment.at_ms, moment.at_ms, moment.note)
        return self._fire_before(moment, self._next_moment(moment.at_ms, steps))

    def _fire_before(self, moment: Moment, following: Moment | None) -> Fire:
        """The fire with its jitter, which ends before the next nominal time and before the end of the schedule."""
        limit = self._bounds.end_ms if following is None else following.at_ms
        return Fire(moment.at_ms, min(moment.at_ms + self._jitter_ms, limit - 1), moment.note)
