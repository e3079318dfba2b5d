"""Who has had how much, as start-time fair queueing counts it.

Those who compete stand in a group, and the group has a level: where the least
served of those that can be served now stands.  It never falls.  Whoever comes
back begins at the level, so being away, suspended or without a worker earns no
credit; and nobody stands further above it than a turn, so having had more while
nobody competed is no debt.
"""

from collections.abc import Hashable, Iterable, Mapping


class Accounts:
    """Of one kind of competitor; what they had is divided by their shares already."""

    def __init__(self, turn: float) -> None:
        #: How many rows somebody with a share of one may be ahead.
        self._turn = turn
        self._had: dict[Hashable, dict[int, float]] = {}
        self._level: dict[Hashable, float] = {}

    def of(self, group: Hashable, member: int) -> float:
        """Where a member stands, before others are looked at."""
        level = self._level.get(group, 0.0)
        return max(level, self._had.get(group, {}).get(member, level))

    def stand(self, group: Hashable, shares: Mapping[int, float]) -> dict[int, float]:
        """Where those stand that can be served now, each with its share; their least is the new level."""
        places = {member: self.of(group, member) for member in shares}
        level = self._level[group] = min(places.values())
        had = self._had.setdefault(group, {})
        for member, share in shares.items():
            places[member] = had[member] = min(places[member], level + self._turn / share)
        return places

    def charge(self, group: Hashable, member: int, rows: float) -> None:
        """It gets so many rows, divided by its share; fewer than none are given back."""
        had = self._had.setdefault(group, {})
        had[member] = had.get(member, self._level.get(group, 0.0)) + rows

    def forget(self, groups: Iterable[Hashable]) -> None:
        """Nobody stands there any more."""
        for group in groups:
            self._had.pop(group, None)
            self._level.pop(group, None)

    def tidy(self, group: Hashable, most: int) -> None:
        """Whoever stands at or below the level is as good as new."""
        had = self._had.get(group, {})
        if len(had) > most:
            level = self._level.get(group, 0.0)
            self._had[group] = {member: place for member, place in had.items() if place > level}
