"""How long holders have had what they name in their beats, and what is over its time-out.

A worker keeps time-outs itself.  One that does not, because it hangs or lies,
goes on beating; so whoever hears its beats keeps them too, with some grace.
The time of an attempt that is named as started counts from the first beat
that said so, by this process's monotonic time; that beat's place in the
database's time is stored with the holder, so that another node goes on from
it.  An attempt that waits in its worker counts from the first beat that named
it, and only here.  Time-outs are read once an attempt has outlasted the grace:
most attempts are over before.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from duetime.clock import from_us
from duetime.lifecycle.tasks.onward import Claimed, End
from duetime.model.attempt import Attempt, Ended
from duetime.model.task import DEFAULT_TIMEOUT_SECONDS, Outcome

#: How long a worker that ends an attempt in time may take to clean up and to report it.
GRACE_SECONDS = 5.0


@dataclass(slots=True)
class _Had:
    """One attempt that a holder names."""

    is_started: bool
    #: Monotonic.
    since: float
    #: The same by the database's clock, in microseconds since 1970.
    since_us: int
    #: None: not read yet.
    timeout: float | None = None
    once_only: bool = False

    def is_overdue(self, now: float) -> bool:
        if self.timeout is None or now - self.since < self.timeout + GRACE_SECONDS:
            return False
        # An attempt that may start only once, and may be starting now, cannot be given to another holder.
        return self.is_started or not self.once_only


class Overtime:
    def __init__(self) -> None:
        self._had: dict[int, dict[Attempt, _Had]] = {}

    def recall(self, holder: int, started: Iterable[tuple[Attempt, int]], now: float, now_us: int) -> None:
        """What the holder had started at its last beat, whichever node heard it."""
        self._had[holder] = {
            attempt: _Had(True, now - max(0, now_us - since_us) / 1e6, since_us) for attempt, since_us in started
        }

    def note(self, named: Mapping[int, Mapping[Attempt, bool]], now: float, now_us: int) -> None:
        """Note what holders name now, and whether as started. They no longer hold the rest."""
        for holder, attempts in named.items():
            before = self._had.get(holder, {})
            self._had[holder] = {
                attempt: _still(before.get(attempt), is_started, now, now_us)
                for attempt, is_started in attempts.items()
            }

    def started_us(self, holder: int, attempt: Attempt) -> int:
        return self._had[holder][attempt].since_us

    def forget(self, holder: int) -> None:
        self._had.pop(holder, None)

    def unread(self, holder: int, now: float) -> list[Attempt]:
        """The attempts whose time-outs have to be known from now on."""
        had = self._had.get(holder, {})
        return [each for each, known in had.items() if known.timeout is None and now - known.since >= GRACE_SECONDS]

    def learn(self, claimed: Claimed) -> None:
        known = self._had.get(claimed.holder, {}).get((claimed.task, claimed.number))
        if known is not None:
            known.timeout, known.once_only = _limits_of(claimed)

    def overdue(self, holder: int, now: float) -> list[Attempt]:
        return [attempt for attempt, known in self._had.get(holder, {}).items() if known.is_overdue(now)]

    def end_of(self, claimed: Claimed) -> End:
        """How an overdue attempt ends: timed out, or released if it was never started."""
        known = self._had[claimed.holder][claimed.task, claimed.number]
        if known.is_started:
            ended, message = Ended(Outcome.FAILED), f"timed out after {known.timeout:g} s"
        else:
            ended, message = Ended(Outcome.RELEASED, is_certain=True), f"not begun within {known.timeout:g} s"
        error = {"message": f"{message}; its worker goes on naming it", "kind": "transient"}
        detail = b'{"by":"server","error":' + msgspec.json.encode(error) + b"}"
        started_at = from_us(known.since_us) if known.is_started else None
        return End(claimed.task, claimed.number, ended, started_at, detail=detail, never_began=started_at is None)


def named_by(beats: Sequence[tuple[int, Iterable[tuple[Attempt, bool]]]]) -> dict[int, dict[Attempt, bool]]:
    """By holder. If a holder sent two beats, either may name an attempt as started."""
    named: dict[int, dict[Attempt, bool]] = {}
    for holder, attempts in beats:
        mine = named.setdefault(holder, {})
        for attempt, is_started in attempts:
            mine[attempt] = is_started or mine.get(attempt, False)
    return named


def _still(known: _Had | None, is_started: bool, now: float, now_us: int) -> _Had:
    if known is None:
        return _Had(is_started, now, now_us)
    if is_started and not known.is_started:
        known.is_started, known.since, known.since_us = True, now, now_us
    return known


def _limits_of(claimed: Claimed) -> tuple[float, bool]:
    options = claimed.options
    if options is None:
        return DEFAULT_TIMEOUT_SECONDS, False
    # The executor ends a call to a target.
    timeout = math.inf if options.target is not None else options.timeout or DEFAULT_TIMEOUT_SECONDS
    return timeout, options.delivery == "at_most_once"
