"""How many nodes feed each tenant: a tenant that is spread shares its limits between them."""

from collections.abc import Mapping


class FeedingNodes:
    """How many nodes feed each tenant: one, unless the tenant is spread over shards of several."""

    def __init__(self) -> None:
        self._spread: Mapping[int, int] = {}

    def of(self, tenant: int) -> int:
        return self._spread.get(tenant, 1)

    @property
    def spread(self) -> Mapping[int, int]:
        """The tenants that several nodes feed, with the number of nodes."""
        return self._spread

    def become(self, spread: Mapping[int, int]) -> bool:
        """Set the tenants that several nodes feed from now on; returns whether anything changed."""
        is_new = spread != self._spread
        self._spread = dict(spread)
        return is_new
