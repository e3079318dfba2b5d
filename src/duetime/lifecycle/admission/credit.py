"""The bytes that tenants may submit: taken from their buckets, some ahead, so that few submissions have to ask.

A tenant's credit is what this node may accept of it without another question:
bytes that its bucket gave, and tasks for which there is room.  With a large
bucket a megabyte is taken ahead; with a small one nothing, so that it is exact.
"""

from collections.abc import Sequence

from duetime.budgets.allowance import Allowance
from duetime.budgets.contract import Want
from duetime.errors import TooLarge
from duetime.model.quotas import Quotas

#: Taken ahead of a bucket that holds many times as much.
BYTES_AHEAD = 1 << 20
LARGE_BURST = 64 * BYTES_AHEAD
#: The credit of a tenant without a limit.
ENDLESS = 1 << 62


class Credit:
    """The credit of one tenant on this node."""

    __slots__ = ("bytes", "tasks")

    def __init__(self) -> None:
        self.tasks = 0
        self.bytes = 0

    def renew(self) -> None:
        """The quotas have changed. What a bucket gave was paid for and stays."""
        self.tasks = 0
        if self.bytes > ENDLESS // 2:
            self.bytes = 0


class ByteMeter:
    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance

    def pay_now(self, tenant: int, quotas: Quotas, credit: Credit, size: int) -> bool:
        """Take the bytes of one payload. False: there are too few, or `pay` has to ask for them."""
        rate = quotas.submit_bytes_rate
        if rate is None:
            credit.bytes = ENDLESS
        elif credit.bytes < size:
            credit.bytes += self._allowance.take_now(_name(tenant), _want(quotas, rate, size - credit.bytes)) or 0
        if credit.bytes < size:
            return False
        credit.bytes -= size
        return True

    async def pay(
        self, tenant: int, quotas: Quotas, credit: Credit, sizes: Sequence[int], *, is_whole: bool
    ) -> tuple[int, float]:
        """How many payloads of these sizes, from the first on, may be submitted, and in how many seconds the rest.

        With `is_whole` all or none. Raises TooLarge for what can never be accepted at once.
        """
        rate, total = quotas.submit_bytes_rate, sum(sizes)
        if rate is None:
            return len(sizes), 0.0
        if is_whole and total > quotas.submit_bytes_depth:
            raise TooLarge(
                f"an atomic batch with {total:,} bytes of payloads is more than the tenant may submit at once"
                f" (submit_bytes_burst {quotas.submit_bytes_depth:,.0f}); send fewer, or raise the quota"
            )
        # Nobody else may take these while the store is asked for the others.
        held = min(credit.bytes, total)
        credit.bytes -= held
        if held < total:
            held += await self._allowance.take(_name(tenant), _want(quotas, rate, total - held))
        paid, left = (len(sizes), held - total) if held >= total else _fit(0 if is_whole else held, sizes)
        credit.bytes += held if is_whole and not paid else left
        missing = Want(rate, quotas.submit_bytes_depth, float(max(0, total - held)))
        return paid, self._allowance.seconds_until(_name(tenant), missing)


def _fit(held: int, sizes: Sequence[int]) -> tuple[int, int]:
    """How many of the payloads fit, and what is left over."""
    for place, size in enumerate(sizes):
        if size > held:
            return place, held
        held -= size
    return len(sizes), held


def _want(quotas: Quotas, rate: float, missing: int) -> Want:
    depth = quotas.submit_bytes_depth
    return Want(rate, depth, float(missing + (BYTES_AHEAD if depth >= LARGE_BURST else 0)))


def _name(tenant: int) -> str:
    return f"submit_bytes:{tenant}"
