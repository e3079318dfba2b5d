"""Look every few seconds at what waits past its time, for the gauges and for an alarm.

The feeder knows which of its lanes are due; the oldest row of each is read from
the database, because a lane that was just drained to its end looks due until
the next claim.  Lanes of suspended tenants and of paused queues wait on purpose,
and are left out.  Tasks of types that no worker handles are in the lanes of these
types, and are counted there.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from duetime import metrics
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import due_ms_of, just_after
from duetime.model.gates import type_at
from duetime.model.task import LaneKey, PriorityClass
from duetime.scheduler.feed import Feeder
from duetime.service import Loop

log = structlog.get_logger()
LOOK_EVERY = timedelta(seconds=5)
#: The most lanes that are read, those that have waited longest first.
MAX_LANES = 2_000
#: The most tenants and sets of tags that are named.
MAX_NAMED = 200
#: Tasks of types that no worker handles are counted in this many lanes, up to this many in each.
MAX_COUNTED_LANES = 100
MAX_COUNTED = 1_000
#: How much longer than a lower class a class may wait before it counts.
INVERSION_SECONDS = 5.0
WARN_EVERY_SECONDS = 60.0

SQL = load(__package__, "survey.sql")


@dataclass(frozen=True)
class Wait:
    """A lane, and how long its oldest task has waited past its time."""

    key: LaneKey
    tenant: str
    seconds: float
    has_holders: bool
    lane: int = 0


class Survey:
    def __init__(
        self,
        database: Database,
        feeder: Feeder,
        paused_queues: Callable[[], frozenset[tuple[int, str]]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._feeder = feeder
        self._paused_queues = paused_queues
        self._monotonic = monotonic
        self._warn_at = 0.0
        self.loop = Loop("survey", self.step)

    async def step(self) -> timedelta:
        waits = await self.read_waits()
        _publish(waits)
        _publish_unhandled(await self.count_unhandled(waits))
        _publish_unheard(self._feeder.unheard())
        inversion = find_inversion(waits)
        metrics.PRIORITY_INVERSION.set(inversion is not None)
        now = self._monotonic()
        if inversion is not None and now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_SECONDS
            higher, lower = inversion
            log.warning(
                "a higher class waits longer than a lower one",
                tenant=higher.tenant,
                queue=higher.key.queue,
                higher=higher.key.priority.word,
                waits_seconds=round(higher.seconds, 1),
                lower=lower.key.priority.word,
                lower_waits_seconds=round(lower.seconds, 1),
            )
        return LOOK_EVERY

    async def read_waits(self) -> list[Wait]:
        """The lanes of this node with tasks that wait past their time."""
        paused = self._paused_queues()
        lanes = {
            lane: (key, hint, has_holders)
            for lane, key, hint, has_holders in self._feeder.due_lanes(MAX_LANES)
            if (key.tenant, key.queue) not in paused
        }
        if not lanes:
            return []
        now_ms = self._database.clock.now_ms()
        rows = await self._database.run(
            SQL["read_oldest"],
            lanes=list(lanes),
            hints=[hint for _, hint, _ in lanes.values()],
            until=just_after(now_ms),
        )
        return [
            Wait(
                lanes[row["lane"]][0],
                row["tenant"],
                max(0.0, (now_ms - due_ms_of(row["wake"])) / 1000),
                lanes[row["lane"]][2] or row["is_served"],
                row["lane"],
            )
            for row in rows
        ]

    async def count_unhandled(self, waits: Iterable[Wait]) -> Counter[tuple[str, str]]:
        """By tenant and type, the tasks that wait because no present worker handles their type."""
        counts: Counter[tuple[str, str]] = Counter()
        found = {
            wait.lane: (wait.tenant, name)
            for wait in waits
            if not wait.has_holders and (name := type_at(wait.key.gate)) is not None
        }
        lanes = list(found)[:MAX_COUNTED_LANES]
        if lanes:
            until = just_after(self._database.clock.now_ms())
            rows = await self._database.run(SQL["count_due"], lanes=lanes, until=until, most=MAX_COUNTED)
            for row in rows:
                counts[found[row["lane"]]] += row["count"]
        return counts


def find_inversion(waits: Iterable[Wait]) -> tuple[Wait, Wait] | None:
    """The worst pair of lanes for the same holders in which the higher class waits too much longer than the lower."""
    alike: dict[LaneKey, list[Wait]] = {}
    for wait in waits:
        if wait.has_holders:
            alike.setdefault(msgspec.structs.replace(wait.key, priority=PriorityClass.LOW), []).append(wait)
    found = [
        (higher, lower)
        for group in alike.values()
        for higher in group
        for lower in group
        if higher.key.priority < lower.key.priority and higher.seconds > lower.seconds + INVERSION_SECONDS
    ]
    return max(found, key=lambda pair: pair[0].seconds - pair[1].seconds, default=None)


def _publish(waits: Sequence[Wait]) -> None:
    for priority in PriorityClass:
        oldest = max((wait.seconds for wait in waits if wait.key.priority is priority), default=0.0)
        metrics.OLDEST_DUE.labels(priority.word).set(oldest)
    alone = [wait for wait in waits if not wait.has_holders]
    metrics.LANES_WITHOUT_WORKER.set(len(alone))
    metrics.WAITING_WITHOUT_WORKER.clear()
    named = Counter((wait.tenant, ",".join(wait.key.requires)) for wait in alone)
    for (tenant, requires), lanes in named.most_common(MAX_NAMED):
        metrics.WAITING_WITHOUT_WORKER.labels(tenant, requires).set(lanes)


def _publish_unheard(unheard: list[tuple[str, str, float]]) -> None:
    metrics.WORKERS_UNHEARD.clear()
    for tenant, worker, seconds in sorted(unheard, key=lambda each: -each[2])[:MAX_NAMED]:
        metrics.WORKERS_UNHEARD.labels(tenant, worker).set(seconds)


def _publish_unhandled(counts: Counter[tuple[str, str]]) -> None:
    metrics.TASKS_WITHOUT_HANDLER.clear()
    for (tenant, name), tasks in counts.items():
        metrics.TASKS_WITHOUT_HANDLER.labels(tenant, name).set(tasks)
