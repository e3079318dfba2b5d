"""Whether what is asked for may be submitted now, by the load of the service and the tenant's quotas.

A batch is accepted from its beginning as far as the quotas go; the rest is
refused, and stays refused under the request's key.  What was asked for counts,
also where it turns out to be a repetition.  Tasks that the service makes itself
(`room`) count as waiting, but cost no tokens of `submit_rate` and no bytes.
"""

from collections.abc import Mapping, Sequence

from duetime.budgets.allowance import Allowance
from duetime.budgets.contract import Want
from duetime.errors import QuotaExceeded, TooLarge, TooManyRequests, TooManyWaiting
from duetime.lifecycle.admission.credit import ENDLESS, ByteMeter, Credit
from duetime.lifecycle.admission.pressure import Pressure
from duetime.lifecycle.admission.room import Granted
from duetime.lifecycle.admission.waiting import LARGE_ROOM, WaitingRoom
from duetime.model.quotas import NO_QUOTAS, Quotas
from duetime.model.task import NewTask

#: Waiting tasks leave one by one, so asking more often is of no use.
WAITING_RETRY_SECONDS = 5.0
#: Room that is reserved ahead for a tenant that is far from its quota.
TASKS_AHEAD = LARGE_ROOM // 100


class Admission:
    def __init__(self, pressure: Pressure, allowance: Allowance, room: WaitingRoom) -> None:
        self._pressure = pressure
        self._allowance = allowance
        self._bytes = ByteMeter(allowance)
        self._room = room
        self._quotas: Mapping[int, Quotas] = {}
        self._default = NO_QUOTAS
        self._credits: dict[int, Credit] = {}

    def rule(self, quotas: Mapping[int, Quotas], default: Quotas) -> None:
        """Set what tenants may submit from now on, and what tenants that are not named may."""
        if quotas is self._quotas and default == self._default:
            return
        before, is_other = self._quotas, default != self._default
        self._quotas, self._default = quotas, default

        def is_same(tenant: int) -> bool:
            # The quotas of a tenant that did not change are the same object.
            return quotas.get(tenant) is before.get(tenant) and not (is_other and tenant not in quotas)

        for tenant, credit in self._credits.items():
            if not is_same(tenant):
                credit.renew()
        self._room.keep_only(is_same)

    def admit_now(self, task: NewTask) -> bool:
        """Accept one task without asking the database. False: `admit` has to decide."""
        if self._pressure.refuse(task.lane.priority) is not None:
            return False
        tenant, size = task.lane.tenant, len(task.payload)
        credit = self._credits.get(tenant)
        if credit is not None and credit.tasks and credit.bytes >= size:
            credit.tasks -= 1
            credit.bytes -= size
            return True
        return self._admit_one(tenant, size)

    def _admit_one(self, tenant: int, size: int) -> bool:
        """The same for a tenant without credit, which gets some if it is far from all of its quotas."""
        quotas, credit = self._quotas_of(tenant), self._credit_of(tenant)
        most, rate = quotas.max_waiting, quotas.submit_rate
        if credit.tasks:
            credit.tasks -= 1
        elif most is None:
            credit.tasks = ENDLESS if rate is None else 0
        elif rate is None and self._room.take_of_plenty(tenant, most, TASKS_AHEAD):
            credit.tasks = TASKS_AHEAD - 1
        elif not self._room.take_now(tenant, most, 1):
            return False
        if self._bytes.pay_now(tenant, quotas, credit, size):
            if rate is None or self._allowance.take_now(_name(tenant), Want(rate, quotas.submit_depth, 1.0)):
                return True
            credit.bytes += size
        if most is not None:
            self._room.give_back(tenant, 1)
        return False

    async def admit(
        self, tenant: int, tasks: Sequence[NewTask], *, is_atomic: bool = False
    ) -> tuple[int, TooManyRequests | None]:
        """How many of the tasks, from the first on, may be submitted, and why not the others.

        With `is_atomic` all or none. Raises TooLarge for what can never be accepted at once.
        """
        if not tasks:
            return 0, None
        if (overloaded := self._pressure.refuse_batch(tasks)) is not None:
            return 0, overloaded
        quotas, credit = self._quotas_of(tenant), self._credit_of(tenant)
        wanted = len(tasks)
        refusal: TooManyRequests | None = None
        most, rate = quotas.max_waiting, quotas.submit_rate
        if rate is not None and is_atomic and wanted > quotas.submit_depth:
            raise TooLarge(
                f"an atomic batch of {wanted:,} tasks is more than the tenant may submit at once"
                f" (submit_burst {quotas.submit_depth:,g}); send fewer, or raise the quota"
            )
        if most is not None:
            accepted = await self._room.take(tenant, most, wanted, is_whole=is_atomic)
            if accepted < wanted:
                refusal = _too_many_waiting(most)
            wanted = accepted
        sizes = [len(task.payload) for task in tasks[:wanted]]
        try:
            paid, seconds = await self._bytes.pay(tenant, quotas, credit, sizes, is_whole=is_atomic)
        except TooLarge:
            self._room.give_back(tenant, wanted)
            raise
        if paid < wanted:
            self._room.give_back(tenant, wanted - paid)
            refusal = _too_many_bytes(quotas, seconds)
            wanted = paid
        if rate is not None and wanted:
            want = Want(rate, quotas.submit_depth, float(wanted))
            granted = await self._allowance.take(_name(tenant), want, is_whole=is_atomic)
            if granted < wanted:
                self._room.give_back(tenant, wanted - granted)
                credit.bytes += sum(sizes[granted:wanted])
                left = want._replace(tokens=float(wanted - granted))
                refusal = QuotaExceeded(
                    f"the tenant may submit {rate:,g} tasks a second (submit_rate),"
                    f" {quotas.submit_depth:,g} at once (submit_burst)",
                    self._allowance.seconds_until(_name(tenant), left),
                )
            wanted = granted
        return wanted, refusal

    async def make_room(self, tenant: int, sizes: Sequence[int], *, is_whole: bool = False) -> Granted:
        """Room for tasks that the service makes itself, with payloads of these sizes."""
        wanted = len(sizes)
        most = self._quotas_of(tenant).max_waiting
        if most is None or not wanted:
            return Granted(wanted)
        granted = await self._room.take(tenant, most, wanted, is_whole=is_whole)
        return Granted(granted, None if granted == wanted else _too_many_waiting(most))

    def give_back(self, tenant: int, count: int) -> None:
        """Give back room for this many tasks that were not made."""
        self._room.give_back(tenant, count)

    async def close(self) -> None:
        await self._room.close()
        await self._allowance.close()

    def _quotas_of(self, tenant: int) -> Quotas:
        return self._quotas.get(tenant, self._default)

    def _credit_of(self, tenant: int) -> Credit:
        credit = self._credits.get(tenant)
        if credit is None:
            credit = self._credits[tenant] = Credit()
        return credit


def _too_many_bytes(quotas: Quotas, seconds: float) -> QuotaExceeded:
    return QuotaExceeded(
        f"the tenant may submit {quotas.submit_bytes_rate:,.0f} bytes of payloads a second (submit_bytes_rate),"
        f" {quotas.submit_bytes_depth:,.0f} at once (submit_bytes_burst)",
        seconds,
    )


def _too_many_waiting(most: int) -> TooManyWaiting:
    return TooManyWaiting(
        f"as many tasks of the tenant wait as may (max_waiting {most:,});"
        " try again when some have run, or raise the quota",
        WAITING_RETRY_SECONDS,
    )


def _name(tenant: int) -> str:
    return f"submit:{tenant}"
