"""The compiled form of a definition: which instants it fires at, in order.

Asking changes nothing and costs no I/O.  Nominal times are strictly increasing,
and a jittered time never reaches the next nominal one.  Every search is bounded:
when exclusions swallow too many times in a row, the answer is that none comes.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from duetime.recurrence.exclusions import ExclusionSet
from duetime.recurrence.sources import Moment, Source, earliest, latest
from duetime.recurrence.spec import Fire, PreviewLine
from duetime.recurrence.zones import EARLIEST_SECOND, LATEST_SECOND, Zone

# A search that is excluded this often in a row gives up; whole excluded days count once.
EXCLUDED_IN_A_ROW = 20_000
# Of one excluded stretch a preview lists this many times; it then goes to its end.
_LISTED_OF_A_STRETCH = 10
_LISTED_EXCLUDED = 200
_PREVIEW_LINES = 1000


class Bounds(NamedTuple):
    """From, inclusive, to, exclusive; in milliseconds."""

    start_ms: int
    end_ms: int


class Recurrence:
    """Answers for one definition; made by compile_definition alone."""

    __slots__ = ("_after_ms", "_bounds", "_describe", "_exclusions", "_jitter_ms", "_sources", "_words", "_zone")

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

    @property
    def words(self) -> str:
        """The definition in one English sentence without a full stop."""
        if self._words is None:
            self._words = self._describe()
        return self._words

    def local(self, at_ms: int) -> str:
        """An instant as the clock on the wall shows it, in the definition's zone."""
        return self._zone.iso(at_ms)

    def next(self, after_ms: int) -> Fire | None:
        """The first fire whose nominal time is strictly after this one.

        With `after`, whose times depend on the runs, it is the first run: at the
        start of the schedule or, past that, one delay after the time asked about.
        """
        if self._after_ms is not None:
            is_before = self._bounds.start_ms > max(after_ms, EARLIEST_SECOND * 1000)
            return self._delayed(self._bounds.start_ms if is_before else after_ms + self._after_ms)
        moment = self._next_moment(after_ms)
        return None if moment is None else self._fire(moment)

    def previous(self, before_ms: int) -> Fire | None:
        """The last fire whose nominal time is strictly before this one; None with `after`."""
        before_ms = min(before_ms, self._bounds.end_ms)
        for _ in range(EXCLUDED_IN_A_ROW):
            if before_ms <= self._bounds.start_ms:
                return None
            moment = latest([source.previous(before_ms) for source in self._sources])
            if moment is None or moment.at_ms < self._bounds.start_ms:
                return None
            span = self._exclusions.span(moment.at_ms) if self._exclusions is not None else None
            if span is None:
                return self._fire(moment)
            before_ms = span[0]
        return None

    def between(self, from_ms: int, to_ms: int) -> Iterator[Fire]:
        """The fires from, inclusive, to, exclusive, by nominal time, in order."""
        moments = self._moments(from_ms)
        moment = next(moments, None)
        while moment is not None and moment.at_ms < to_ms:
            following = next(moments, None)
            yield self._fire_before(moment, following)
            moment = following

    def next_after_completion(self, completed_ms: int) -> Fire | None:
        """The fire that follows a run which ended now: one delay later with `after`, else the next."""
        if self._after_ms is None:
            return self.next(completed_ms)
        return self._delayed(max(completed_ms + self._after_ms, self._bounds.start_ms))

    def preview(self, from_ms: int, count: int) -> list[PreviewLine]:
        """The next fires from a time on, inclusive, and between them the times that are excluded, with the reason."""
        count = min(count, _PREVIEW_LINES)
        if self._after_ms is not None:
            fire = self.next(from_ms - 1)
            seconds = self._after_ms / 1000
            note = f"then {seconds:g} s after each run ends"
            return [] if fire is None or count < 1 else [self._line(fire, note)]
        lines: list[PreviewLine] = []
        fires, listed, in_a_row = 0, 0, 0
        candidates = self._candidates(from_ms)
        moment = next(candidates, None)
        for _ in range(EXCLUDED_IN_A_ROW):
            if fires >= count or moment is None:
                break
            span = self._exclusions.span(moment.at_ms) if self._exclusions is not None else None
            if span is None:
                fires, in_a_row = fires + 1, 0
                lines.append(self._line(self._fire(moment), moment.note))
                moment = next(candidates, None)
                continue
            in_a_row += 1
            if in_a_row <= _LISTED_OF_A_STRETCH and listed < _LISTED_EXCLUDED:
                listed += 1
                lines.append(self._excluded_line(moment))
                moment = next(candidates, None)
            else:
                candidates = self._candidates(span[1])
                moment = next(candidates, None)
        while lines and lines[-1].excluded and fires >= count:
            lines.pop()
        return lines

    def _line(self, fire: Fire, note: str | None) -> PreviewLine:
        return PreviewLine(fire.at_ms, fire.nominal_ms, self._zone.iso(fire.at_ms), note)

    def _excluded_line(self, moment: Moment) -> PreviewLine:
        reason = self._exclusions.reason(moment.at_ms) if self._exclusions is not None else None
        local = self._zone.iso(moment.at_ms)
        return PreviewLine(moment.at_ms, moment.at_ms, local, moment.note, excluded=True, reason=reason)

    def _delayed(self, at_ms: int) -> Fire | None:
        """A run at this time or, if that is excluded, at the end of the exclusion."""
        for _ in range(EXCLUDED_IN_A_ROW):
            if at_ms >= self._bounds.end_ms:
                return None
            span = self._exclusions.span(at_ms) if self._exclusions is not None else None
            if span is None:
                return Fire(at_ms, min(at_ms + self._jitter_ms, self._bounds.end_ms - 1))
            at_ms = span[1]
        return None

    def _next_moment(self, after_ms: int) -> Moment | None:
        after_ms = max(after_ms, self._bounds.start_ms - 1)
        sources, exclusions = self._sources, self._exclusions
        for _ in range(EXCLUDED_IN_A_ROW):
            if after_ms >= self._bounds.end_ms:
                return None
            if len(sources) == 1:
                moment = sources[0].next(after_ms)
            else:
                moment = earliest([source.next(after_ms) for source in sources])
            if moment is None or moment.at_ms >= self._bounds.end_ms:
                return None
            span = exclusions.span(moment.at_ms) if exclusions is not None else None
            if span is None:
                return moment
            after_ms = span[1] - 1
        return None

    def _candidates(self, from_ms: int) -> Iterator[Moment]:
        """The union of the sources within the bounds, exclusions not applied; each source is asked once a moment."""
        from_ms = max(from_ms, self._bounds.start_ms)
        if from_ms >= self._bounds.end_ms:
            return
        heads = [source.next(from_ms - 1) for source in self._sources]
        while (moment := earliest(heads)) is not None and moment.at_ms < self._bounds.end_ms:
            yield moment
            for index, head in enumerate(heads):
                if head is not None and head.at_ms == moment.at_ms:
                    heads[index] = self._sources[index].next(moment.at_ms)

    def _moments(self, from_ms: int) -> Iterator[Moment]:
        """The union minus the exclusions."""
        if self._exclusions is None:
            yield from self._candidates(from_ms)
            return
        moment = self._next_moment(from_ms - 1)
        while moment is not None:
            yield moment
            moment = self._next_moment(moment.at_ms)

    def _fire(self, moment: Moment) -> Fire:
        if not self._jitter_ms:
            return Fire(moment.at_ms, moment.at_ms, moment.note)
        return self._fire_before(moment, self._next_moment(moment.at_ms))

    def _fire_before(self, moment: Moment, following: Moment | None) -> Fire:
        """The fire with its jitter, which ends before the next nominal time and before the schedule does."""
        limit = self._bounds.end_ms if following is None else following.at_ms
        return Fire(moment.at_ms, min(moment.at_ms + self._jitter_ms, limit - 1), moment.note)
