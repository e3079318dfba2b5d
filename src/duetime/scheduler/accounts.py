"""How much each competitor has had, counted by start-time fair queueing.

Competitors form groups, and each group has a level: the position of the least
served member that can be served now.  The level never falls.  A member that comes
back begins at the level, so being away, suspended or without a worker earns no
credit; and no member is further above it than a turn, so having had more while
nobody competed is no debt.
"""

from collections.abc import Hashable, Iterable, Mapping


class Accounts:
    """Accounts of one kind of competitor; the amounts are already divided by their shares."""

    def __init__(self, turn: float) -> None:
        #: How many rows a competitor with a share of one may lead by.
        self._turn = turn
        self._had: dict[Hashable, dict[int, float]] = {}
        self._level: dict[Hashable, float] = {}

    def of(self, group: Hashable, member: int) -> float:
        """The position of a member, before it is compared with others."""
        level = self._level.get(group, 0.0)
        return max(level, self._had.get(group, {}).get(member, level))

    def stand(self, group: Hashable, shares: Mapping[int, float]) -> dict[int, float]:
        """The positions of the members that can be served now, given with their shares; the least is the new level."""
        places = {member: self.of(group, member) for member in shares}
        level = self._level[group] = min(places.values())
        had = self._had.setdefault(group, {})
        for member, share in shares.items():
            places[member] = had[member] = min(places[member], level + self._turn / share)
        return places

    def charge(self, group: Hashable, member: int, rows: float) -> None:
        """Count this many rows, divided by its share, for a member; a negative number is given back."""
        had = self._had.setdefault(group, {})
        had[member] = had.get(member, self._level.get(group, 0.0)) + rows

    def forget(self, groups: Iterable[Hashable]) -> None:
        """Forget groups without members."""
        for group in groups:
            self._had.pop(group, None)
            self._level.pop(group, None)

    def tidy(self, group: Hashable, most: int) -> None:
        """Forget members at or below the level: they are the same as new ones."""
        had = self._had.get(group, {})
        if len(had) > most:
            level = self._level.get(group, 0.0)
            self._had[group] = {member: place for member, place in had.items() if place > level}
