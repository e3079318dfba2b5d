"""When to look at which stretch of time, in rounds from the very beginning to the present, without I/O.

Such a round passes over every row that was ever there and is not cleared away yet.  So
it goes by stretches, shorter for younger rows, and rests after each one in proportion
to how long that took.
"""

#: A round takes at most this share of the time.
SHARE = 0.0005
#: Two rounds begin at least this far apart.
REST_SECONDS = 10.0
#: Stretches end at these ages, in ms: an hour, ten minutes, then every 15 seconds.
_AGES_MS = (3_600_000, *range(600_000, 0, -15_000))


class Rounds:
    def __init__(self) -> None:
        self._from_ms = 0
        self._not_before = 0.0

    def next(self, now_ms: int, monotonic: float) -> tuple[int, int | None] | None:
        """The next stretch, from its first to before its last ms; None: rest.  The last stretch has no end."""
        if monotonic < self._not_before:
            return None
        until_ms = next((now_ms - age for age in _AGES_MS if now_ms - age > self._from_ms), None)
        return self._from_ms, until_ms

    def looked(self, until_ms: int | None, began: float, ended: float) -> None:
        """Note that a stretch is done; after the last one the next round begins."""
        self._from_ms = 0 if until_ms is None else until_ms
        took = ended - began
        # A stretch with next to nothing in it needs no rest, except between two rounds.
        if until_ms is None:
            self._not_before = began + max(took / SHARE, REST_SECONDS)
        elif took > 0.005:
            self._not_before = began + took / SHARE
