"""The breakers of tenants: a tenant that fails at nearly everything for minutes is stopped, probed, and resumed slowly.

Each node counts the attempts that it settles, wherever they ran.  A node whose own
count looks bad asks the others for theirs, and judges all of them together.  Its
decision is a row (`admin.tenant_breakers`) that every node reads within a second and
each feeder obeys; so the row outlives any node.  The feeder that gets the right to a
probe lets it through, and then looks how it ended.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

import structlog

from duetime import metrics
from duetime.admin.tenant_breakers import (
    TenantBreakerRow,
    close_tenant,
    open_tenant,
    read_tenant_breakers,
    resume_tenant,
    take_probe,
)
from duetime.database.pool import Database
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.tasks.onward import Onward
from duetime.model.breaker_status import TENANT_HOST, BreakerStatus, Forced
from duetime.model.quotas import Quotas
from duetime.model.task import Outcome
from duetime.model.tenant_breaker import (
    BreakerRules,
    Outcomes,
    Record,
    Tally,
    bucket_of,
    find_failing,
    find_relapse,
    together,
)
from duetime.scheduler.feeding_nodes import FeedingNodes
from duetime.scheduler.tenant_gate import TenantGate
from duetime.service import Loop
from duetime.signals import Signal

log = structlog.get_logger()
STEP_EVERY = timedelta(seconds=1)
#: The other nodes are asked for their counts at most this often.
_ASK_EVERY_MS = 5_000
#: How long to wait for the end of a probe.
_PROBE_MS = 3_600_000

#: Asks the other nodes for their records of these tenants.
AskOthers = Callable[[list[int]], Awaitable[Sequence[dict[int, Record]]]]


class TenantBreakers:
    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        onward: Onward,
        rules: BreakerRules,
        *,
        nodes: FeedingNodes | None = None,
        changed: Callable[[], Awaitable[None]] | None = None,
        ask_others: AskOthers | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """`changed` makes all nodes read the rows again, after one has changed."""
        self._database = database
        self._lanes = lanes
        self._onward = onward
        self._defaults = rules
        self._now_ms = now_ms or database.clock.now_ms
        self._quotas: Mapping[int, Quotas] = {}
        self._rules: dict[int, BreakerRules] = {}
        self._outcomes: dict[int, Outcomes] = {}
        self._gates: dict[int, TenantGate] = {}
        self._rows: dict[int, TenantBreakerRow] = {}
        self._forced: dict[int, Forced] = {}
        self._asked_ms = 0
        self._nodes = nodes or FeedingNodes()
        self._changed = changed or self.refresh
        self._ask_others = ask_others
        #: Sent when more or fewer tasks of some tenant may start here.
        self.gates_changed = Signal[[]]()
        self.loop = Loop("tenant breakers", self.step, jitter=0.0)

    def rule(self, quotas: Mapping[int, Quotas]) -> None:
        """Set the tenants that have breaker rules of their own; all others use the defaults."""
        if quotas is not self._quotas:
            self._quotas = quotas
            self._rules = {tenant: each.breaker_rules(self._defaults) for tenant, each in quotas.items()}

    def rules_of(self, tenant: int) -> BreakerRules:
        return self._rules.get(tenant, self._defaults)

    # Present state

    def find(self, tenant: int) -> TenantGate | None:
        """The gate that all lanes of the tenant have to pass; None: there is none."""
        return self._gates.get(tenant)

    def status(self, tenant: int) -> BreakerStatus | None:
        """Its status, shown among the breakers of its hosts; None: nothing was found against the tenant."""
        gate = self._gates.get(tenant)
        return None if gate is None else gate.status(self._now_ms())

    def obey(self, forced: Mapping[tuple[int, str], Forced]) -> None:
        """Force the breakers of these tenants by hand, and no others; those of hosts are ignored."""
        of_tenants = {tenant: state for (tenant, host), state in forced.items() if host == TENANT_HOST}
        if of_tenants == self._forced:
            return
        for tenant in self._forced:
            if tenant not in of_tenants:
                # A breaker that is not forced any more begins with an empty record.
                self._outcomes.pop(tenant, None)
        self._forced = of_tenants
        self._apply()

    async def refresh(self) -> None:
        """Read the rows again, because one has changed."""
        before, self._rows = self._rows, await read_tenant_breakers(self._database)
        for tenant in before:
            if tenant not in self._rows:
                # The failures for which it was stopped must not stop it again.
                self._outcomes.pop(tenant, None)
        self._apply()

    def _apply(self) -> None:
        gates: dict[int, TenantGate] = {}
        is_news = False
        for tenant in self._rows.keys() | self._forced.keys():
            forced = self._forced.get(tenant)
            if forced == "closed":
                continue
            gate = gates[tenant] = self._gates.get(tenant) or TenantGate(tenant, self._nodes)
            is_news |= gate.become(self._rows.get(tenant), forced)
        is_news |= gates.keys() != self._gates.keys()
        self._gates = gates
        metrics.show_tenant_breakers({row.name: row.state for row in self._rows.values()})
        if is_news:
            self.gates_changed()

    # Counting and judging

    def records(self, tenants: Sequence[int]) -> dict[int, Record]:
        """This node's records of the last attempts of these tenants."""
        return {tenant: self._outcomes[tenant].record for tenant in tenants if tenant in self._outcomes}

    async def step(self) -> timedelta:
        """Judge the attempts that have ended since, then handle probes and resumptions."""
        now = self._now_ms()
        self._count(now)
        await self._judge(now)
        changed = False
        for gate in list(self._gates.values()):
            if gate.row is not None and gate.forced is None:
                changed |= await (self._see_to_probes(gate, now) if gate.row.state == "open" else self._end(gate, now))
        if changed:
            await self._changed()
        return STEP_EVERY

    def _count(self, now: int) -> None:
        bucket = bucket_of(now)
        succeeded, failed = self._onward.counts.take()
        tallies: dict[int, Tally] = {}
        for lane in succeeded.keys() | failed.keys():
            if (key := self._lanes.key_of(lane)) is not None:
                tally = Tally(succeeded[lane] + failed[lane], failed[lane])
                tallies[key.tenant] = tallies.get(key.tenant, Tally()).plus(tally)
        for tenant, tally in tallies.items():
            self._outcomes.setdefault(tenant, Outcomes(bucket)).add(bucket, tally)
        for tenant in [each for each, known in self._outcomes.items() if not known.trim(bucket, self.rules_of(each))]:
            del self._outcomes[tenant]

    async def _judge(self, now: int) -> None:
        """Stop the tenants that fail at nearly everything, by the counts of all nodes."""
        suspects = [
            tenant
            for tenant, known in self._outcomes.items()
            if known.total.is_over(self.rules_of(tenant).failure_rate) and tenant not in self._forced
        ]
        if not suspects or (self._ask_others is not None and 0 <= now - self._asked_ms < _ASK_EVERY_MS):
            return
        self._asked_ms = now
        records = [self.records(suspects)]
        if self._ask_others is not None:
            records += await self._ask_others(suspects)
        for tenant in suspects:
            rules, row = self.rules_of(tenant), self._rows.get(tenant)
            record = together(each[tenant] for each in records if tenant in each)
            if record is None or (row is not None and row.state == "open"):
                continue
            tally = find_failing(record, now, rules) if row is None else find_relapse(record, row.since_ms, now, rules)
            if tally is not None and await open_tenant(self._database, tenant, tally, rules):
                await self._changed()
                if (stopped := self._rows.get(tenant)) is not None:
                    log.warning("tenant stopped: its attempts fail", tenant=stopped.name, reason=stopped.reason)

    # Stopped and resuming tenants

    async def _see_to_probes(self, gate: TenantGate, now: int) -> bool:
        """Look how probes ended, and let the next one through; returns whether the row has changed."""
        assert gate.row is not None
        for attempt in [attempt for attempt, since in gate.probes.items() if now - since > _PROBE_MS]:
            del gate.probes[attempt]
        if gate.probes:
            ends = await self._onward.read_ends(list(gate.probes))
            for attempt in ends:
                gate.probes.pop(attempt, None)
            if any(end.outcome is Outcome.SUCCEEDED for end in ends.values()):
                if await resume_tenant(self._database, gate.tenant):
                    log.warning("tenant resumes: a probe succeeded", tenant=gate.row.name)
                return True
        if not gate.is_wanted or now < gate.row.probe_ms:
            return False
        if await take_probe(self._database, gate.tenant, self.rules_of(gate.tenant)):
            gate.grant(now)
            self.gates_changed()
        return True

    async def _end(self, gate: TenantGate, now: int) -> bool:
        """End a resumption when its rate restricts nothing any more; returns whether this call has ended it."""
        assert gate.row is not None
        if not gate.is_free(now) or not await close_tenant(self._database, gate.tenant, "closing"):
            return False
        log.warning("tenant goes on: nothing of it is held back", tenant=gate.row.name)
        return True
