"""Convert between UTC instants and the local time of a zone, in whole seconds.

A local time here is an integer: the seconds from 1970-01-01T00:00 to it on a
clock that never changes.  A change of offset is found by asking for both folds
of a local time: the offsets differ only if the time occurs twice or never.
"""

import difflib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from duetime.recurrence.spec import Problem

DAY_SECONDS = 86_400
# datetime covers the years 1 to 9999; a zone's offset must not lead out of them.
EARLIEST_SECOND = int(datetime(2, 1, 1, tzinfo=UTC).timestamp())
LATEST_SECOND = int(datetime(9998, 1, 1, tzinfo=UTC).timestamp())
LATEST_YEAR = 9997

_EPOCH = datetime(1970, 1, 1)
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Etc/UCT", "Etc/Zulu", "UCT", "Zulu", "Universal", "Etc/Universal"})


class Change(NamedTuple):
    """The instant at which a zone's offset changes, and both offsets."""

    at: int
    before: int
    after: int

    @property
    def wall_start(self) -> int:
        """The first local time that does not exist, or that occurs twice."""
        return self.at + min(self.before, self.after)

    @property
    def wall_end(self) -> int:
        """The first local time after the last of them."""
        return self.at + max(self.before, self.after)


class Zone:
    """One time zone; every answer is exact, for any year that datetime supports."""

    __slots__ = ("_info", "is_utc", "key")

    def __init__(self, key: str, info: ZoneInfo) -> None:
        self.key = key
        self._info = info
        self.is_utc = key in _UTC_NAMES

    def offset_at(self, instant: int) -> int:
        return 0 if self.is_utc else _seconds(datetime.fromtimestamp(instant, self._info).utcoffset())

    def locate(self, instant: int) -> tuple[int, Change | None]:
        """The local time at an instant, and the change that makes it occur twice, if there is one."""
        if self.is_utc:
            return instant, None
        moment = datetime.fromtimestamp(instant, self._info)
        offset = moment.utcoffset()
        local = instant + _seconds(offset)
        if offset == moment.replace(fold=1 - moment.fold).utcoffset():
            return local, None
        return local, self.change_around(local, *self.offsets_of(local))

    def offsets_of(self, local: int) -> tuple[int, int]:
        """The offsets before and after the change that a local time falls into; equal if it falls into none."""
        if self.is_utc:
            return 0, 0
        moment = (_EPOCH + timedelta(seconds=local)).replace(tzinfo=self._info)
        before = moment.utcoffset()
        after = moment.replace(fold=1).utcoffset()
        if before == after:
            offset = _seconds(before)
            return offset, offset
        return _seconds(before), _seconds(after)

    def change_around(self, local: int, before: int, after: int) -> Change:
        """Find the change by bisection between the two instants that the local time could mean."""
        low, high = local - max(before, after), local - min(before, after)
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset_at(middle) == after:
                high = middle
            else:
                low = middle
        return Change(high, before, after)

    def meetings(self, local: int) -> tuple[int, int, Change | None]:
        """The first and the last instant at which the wall clock shows this time, or jumps over it.

        If they differ, the change that makes the time occur twice is returned as well.
        """
        before, after = self.offsets_of(local)
        if before == after:
            return local - before, local - before, None
        change = self.change_around(local, before, after)
        if before < after:
            return change.at, change.at, None
        return local - before, local - after, change

    def iso(self, at_ms: int) -> str:
        """ISO 8601 local time with offset; milliseconds only if they are not zero."""
        seconds, thousandths = divmod(at_ms, 1000)
        moment = datetime.fromtimestamp(seconds, self._info).replace(microsecond=thousandths * 1000)
        return moment.isoformat(timespec="milliseconds" if thousandths else "seconds")


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset.days * DAY_SECONDS + offset.seconds


def local_seconds(moment: datetime) -> int:
    """The local time of a datetime without zone."""
    elapsed = moment - _EPOCH
    return elapsed.days * DAY_SECONDS + elapsed.seconds


def local_datetime(local: int) -> datetime:
    return _EPOCH + timedelta(seconds=local)


def clock_text(local: int) -> str:
    """A local time of day as people write it: 02:30, with seconds only if they are not zero."""
    minutes, second = divmod(local % DAY_SECONDS, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{second:02}" if second else text


@lru_cache(maxsize=1)
def _zone_keys() -> tuple[str, ...]:
    return tuple(sorted(available_timezones()))


# There are about 600 zones, aliases included.
@lru_cache(maxsize=700)
def find_zone(key: str) -> Zone:
    """The zone of this IANA name; if there is none, a Problem names similar ones."""
    try:
        # The machine's own zone would give a definition another meaning on each node.
        if key in ("localtime", "posixrules", ""):
            raise ValueError(key)
        return Zone(key, ZoneInfo(key))
    except (ValueError, OSError, KeyError) as error:
        keys = _zone_keys()
        folded = {name.casefold(): name for name in keys}
        alike = difflib.get_close_matches(key[:100].casefold(), [*folded], n=3, cutoff=0.6)
        last_parts = [name for name in keys if name.rpartition("/")[2].casefold() == key.casefold()]
        names = list(dict.fromkeys([*last_parts, *(folded[name] for name in alike)]))[:3]
        hint = f"did you mean {' or '.join(names)}?" if names else "use a name such as Europe/Berlin or UTC"
        raise Problem(f'there is no time zone "{key[:100]}"; {hint}') from error
