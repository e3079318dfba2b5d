"""Whether what is asked for may be submitted now, by the load of the service and the tenant's quotas.

A batch is accepted from its beginning as far as the quotas go; the rest is
refused, and stays refused under the request's key.  What was asked for counts,
also where it turns out to be a repetition.  Tasks that the service makes itself
(`room`) count as waiting, but cost no tokens of `submit_rate`.
"""

from collections.abc import Mapping, Sequence

from duetime.budgets.allowance import Allowance
from duetime.budgets.contract import Want
from duetime.errors import QuotaExceeded, TooLarge, TooManyRequests, TooManyWaiting
from duetime.lifecycle.pressure import Pressure
from duetime.lifecycle.room import Granted
from duetime.lifecycle.waiting import WaitingRoom
from duetime.model.quotas import Quotas
from duetime.model.task import NewTask

#: Tasks that wait leave one by one; asking more often helps nobody.
WAITING_RETRY_SECONDS = 5.0


class Admission:
    def __init__(self, pressure: Pressure, allowance: Allowance, room: WaitingRoom) -> None:
        self._pressure = pressure
        self._allowance = allowance
        self._room = room
        self._quotas: Mapping[int, Quotas] = {}

    def rule(self, quotas: Mapping[int, Quotas]) -> None:
        """What tenants may submit from now on; who is not named may submit anything."""
        if quotas is not self._quotas:
            self._quotas = quotas
            self._room.keep_only({tenant for tenant, each in quotas.items() if each.max_waiting is not None})

    def admit_now(self, task: NewTask) -> bool:
        """Accept one task, without a question to anybody; False: `admit` knows more."""
        if self._pressure.refuse(task.lane.priority) is not None:
            return False
        tenant = task.lane.tenant
        quotas = self._quotas.get(tenant)
        if quotas is None:
            return True
        most, rate = quotas.max_waiting, quotas.submit_rate
        if most is not None and not self._room.take_now(tenant, most, 1):
            return False
        if rate is not None and not self._allowance.take_now(_name(tenant), Want(rate, quotas.submit_depth, 1.0)):
            if most is not None:
                self._room.give_back(tenant, 1)
            return False
        return True

    async def admit(
        self, tenant: int, tasks: Sequence[NewTask], *, is_atomic: bool = False
    ) -> tuple[int, TooManyRequests | None]:
        """How many of the tasks, from the first on, may be submitted, and why not the others.

        With `is_atomic` all or none; raises TooLarge for what can never be accepted at once.
        """
        if not tasks:
            return 0, None
        if (overloaded := self._pressure.refuse_batch(tasks)) is not None:
            return 0, overloaded
        quotas = self._quotas.get(tenant)
        if quotas is None:
            return len(tasks), None
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
        if rate is not None and wanted:
            want = Want(rate, quotas.submit_depth, float(wanted))
            granted = await self._allowance.take(_name(tenant), want, is_whole=is_atomic)
            if granted < wanted:
                if most is not None:
                    self._room.give_back(tenant, wanted - granted)
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
        quotas = self._quotas.get(tenant)
        if quotas is None or quotas.max_waiting is None or not wanted:
            return Granted(wanted)
        granted = await self._room.take(tenant, quotas.max_waiting, wanted, is_whole=is_whole)
        return Granted(granted, None if granted == wanted else _too_many_waiting(quotas.max_waiting))

    def give_back(self, tenant: int, count: int) -> None:
        """So many tasks that there was room for were not made."""
        self._room.give_back(tenant, count)

    async def close(self) -> None:
        await self._room.close()
        await self._allowance.close()


def _too_many_waiting(most: int) -> TooManyWaiting:
    return TooManyWaiting(
        f"as many tasks of the tenant wait as may (max_waiting {most:,});"
        " try again when some have run, or raise the quota",
        WAITING_RETRY_SECONDS,
    )


def _name(tenant: int) -> str:
    return f"submit:{tenant}"
