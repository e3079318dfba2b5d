"""Changes that people make to tenants, types, limits and forced breakers take effect on every node within a second."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from duetime.admin.breakers import ForcedBreakers
from duetime.admin.changes import read_changes
from duetime.admin.limits import LimitRules
from duetime.admin.rules import Rules, TenantRules
from duetime.admin.types import Types
from duetime.database.pool import Database
from duetime.lifecycle.admission.admission import Admission
from duetime.lifecycle.submission.submitter import Submitter
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.feed import Feeder
from duetime.scheduler.rulebook import put_together
from duetime.scheduler.tenant_breakers import TenantBreakers
from duetime.service import Loop

READ_EVERY = timedelta(seconds=0.5)


class RuleWatch:
    """Reads what has changed, and passes it to the parts that apply it."""

    def __init__(
        self,
        database: Database,
        rules: TenantRules,
        types: Types,
        limits: LimitRules,
        breakers: Breakers,
        forced_breakers: ForcedBreakers,
        *,
        feeder: Feeder,
        tenant_breakers: TenantBreakers,
        submitter: Submitter,
        admission: Admission,
        share: Callable[[Mapping[int, int]], Awaitable[None]] | None,
        on_rotated: Callable[[], None],
    ) -> None:
        """`share` is called with the spread tenants, `on_rotated` with changed signing secrets."""
        self._database = database
        self._rules = rules
        self._types = types
        self._limits = limits
        self._breakers = breakers
        self._forced_breakers = forced_breakers
        self._feeder = feeder
        self._tenant_breakers = tenant_breakers
        self._submitter = submitter
        self._admission = admission
        self._share = share
        self._on_rotated = on_rotated
        #: The rows from which the present limits were made.
        self._limited_by: Rules | None = None
        self._limited: tuple[int, int] = (-1, -1)
        self.loop = Loop("tenants", self.step, jitter=0.0)

    async def step(self) -> timedelta:
        changes = await read_changes(self._database)
        rotated = self._rules.current.signing
        rules = await self._rules.refresh(changes["tenants"].number)
        if rules.signing != rotated:
            self._on_rotated()
        self._feeder.rule(rules.weights, rules.suspended)
        self._admission.rule(rules.quotas, rules.default)
        self._tenant_breakers.rule(rules.breakers)
        self._submitter.rule(rules.spread)
        if self._share is not None:
            await self._share(rules.spread)
        await self._types.refresh(changes["types"])
        await self._limits.refresh(changes["limits"])
        changes_seen = (self._types.limits_change, self._limits.change)
        if rules is not self._limited_by or changes_seen != self._limited:
            await self._feeder.limit(put_together(rules.limits, self._limits, self._types, self._breakers))
            self._limited_by, self._limited = rules, changes_seen
        await self._forced_breakers.refresh(changes["breakers"])
        return READ_EVERY
