"""A tenant whose attempts all fail is stopped on every node, probed by one task at a time, and resumes slowly."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from duetime.admin.breakers import ForcedBreakers
from duetime.database.pool import Database
from duetime.lifecycle.holders.holders import Named
from duetime.lifecycle.tasks.settle import Report
from duetime.model.breaker_status import TENANT_HOST, Forced
from duetime.model.quotas import Quotas
from duetime.model.task import Kind, LeasedTask, Options, Outcome, Target, make_task
from duetime.model.tenant_breaker import BreakerRules, Record
from duetime.scheduler.feed import Feeder
from duetime.scheduler.feeding_nodes import FeedingNodes
from duetime.scheduler.plan import Ask
from duetime.scheduler.rulebook import Book
from duetime.scheduler.tenant_breakers import TenantBreakers
from duetime.signals import AwaitedSignal
from engine import Engine

RULES = BreakerRules()
KINDS = pytest.mark.parametrize("kind", Kind)


class Node(Engine):
    """A node that feeds, with the breakers of tenants, whose clock the test moves ahead."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.ahead_ms = 0
        self.kind = Kind.PULL
        #: Whom it asks what the other nodes know.
        self.others: list[Node] = []
        rows_changed, nodes = AwaitedSignal[[]](), FeedingNodes()
        self.breakers = TenantBreakers(
            database,
            self.lanes,
            self.onward,
            RULES,
            nodes=nodes,
            changed=rows_changed,
            ask_others=self._ask_others,
            now_ms=lambda: database.clock.now_ms() + self.ahead_ms,
        )
        self.feeder = Feeder(database, self.lanes, self.onward, tenant_breakers=self.breakers, nodes=nodes)
        self.forced = ForcedBreakers(database, self.breakers.obey, self.breakers.refresh)
        rows_changed.listen(self.forced.changed)
        self.wake_also(self.feeder.wake)

    async def _ask_others(self, tenants: list[int]) -> list[dict[int, Record]]:
        return [other.breakers.records(tenants) for other in self.others]

    async def put(self, count: int = 1, queue: str = "default") -> None:
        options = Options(target=Target("https://a.example/")) if self.kind is Kind.PUSH else None
        key = self.lane_key(queue, self.kind)
        await self.submitter.submit([make_task(key, "test.task", b"{}", options=options) for _ in range(count)])

    async def lease(self, room: int = 100, seconds: float = 0.3) -> list[LeasedTask]:
        holder = await self.holders.register(self.tenant, "w")
        tenant = self.tenant if self.kind is Kind.PULL else None
        return await self.feeder.lease(Ask(holder, tenant, self.kind, None, frozenset(), room), seconds)

    async def end(self, tasks: Sequence[LeasedTask], outcome: Outcome) -> None:
        await self.settler.settle(self.tenant, "w", [Report(task.id, task.number, outcome) for task in tasks])

    async def fail_for(self, seconds: int, a_bucket: int = 5, *, others: int = 0) -> None:
        """So many attempts end every ten seconds, all of them failed, and so many others well."""
        lane = await self.lanes.ensure(self.lane_key(kind=self.kind))
        for _ in range(seconds // 10):
            self.onward.counts.ended([(lane, Outcome.FAILED)] * a_bucket)
            self.onward.counts.succeeded(None, lane, others)
            await self.breakers.step()
            self.ahead_ms += 10_000

    async def stop_it(self) -> None:
        """Its own record stops it; the next probe may start at once."""
        await self.fail_for(320)
        await self.database.fetch("UPDATE tenant_breaker SET probe_at = probe_at - interval '1 hour'")
        await self.breakers.refresh()

    async def stored(self) -> str | None:
        rows = await self.database.fetch("SELECT state FROM tenant_breaker WHERE tenant = $1", self.tenant)
        return rows[0]["state"] if rows else None

    async def run_probe(self, outcome: Outcome) -> int:
        """Somebody asks for work until a probe is let through, and it ends like this; how many tasks started."""
        poll = asyncio.create_task(self.lease(seconds=20))
        while not poll.done():
            await self.breakers.step()
            await asyncio.sleep(0.01)
        tasks = await poll
        await self.end(tasks, outcome)
        await self.breakers.step()
        return len(tasks)


@asynccontextmanager
async def running(database: Database, tenant: int, kind: Kind = Kind.PULL) -> AsyncIterator[Node]:
    node = Node(database)
    node.tenant, node.kind = tenant, kind
    await node.lanes.load()
    await node.forced.refresh()
    await node.feeder.limit(Book())
    await node.feeder.start()
    yield node
    await node.feeder.stop()


@pytest.fixture
async def node(database: Database) -> AsyncIterator[Node]:
    engine = await Engine.open(database)
    async with running(database, engine.tenant) as node:
        yield node


@KINDS
async def test_a_stopped_tenant_starts_nothing_and_loses_nothing_until_a_probe_succeeds(node: Node, kind: Kind) -> None:
    node.kind = kind
    await node.put(50)
    await node.stop_it()
    assert await node.stored() == "open"

    assert await node.lease() == []
    assert await node.run_probe(Outcome.FAILED) == 1
    assert await node.stored() == "open"
    assert await node.lease() == []
    waiting = await node.database.fetch("SELECT number, failures FROM due ORDER BY failures")
    assert [(row["number"], row["failures"]) for row in waiting] == [(1, 0)] * 49 + [(2, 1)]

    await node.database.fetch("UPDATE tenant_breaker SET probe_at = probe_at - interval '1 hour'")
    await node.breakers.refresh()
    assert await node.run_probe(Outcome.SUCCEEDED) == 1
    assert await node.stored() == "closing"
    # It resumes with one, and its rate grows with time.
    assert len(await node.lease()) <= 2


async def test_one_probe_starts_in_a_minute_whichever_nodes_feed(node: Node) -> None:
    await node.put(20)
    async with running(node.database, node.tenant) as other:
        await node.stop_it()
        await other.forced.refresh()
        for each in (node, other):
            await each.lease(seconds=0.1)
            await each.breakers.step()
        started = [len(await each.lease(seconds=0.3)) for each in (node, other)]

    assert sorted(started) == [0, 1]


async def test_what_reports_say_is_counted_by_tenant(node: Node) -> None:
    await node.put(7)
    tasks = await node.lease()
    await node.end(tasks[:2], Outcome.SUCCEEDED)
    await node.end(tasks[2:4], Outcome.FAILED)
    await node.end(tasks[4:5], Outcome.RELEASED)
    await node.end(tasks[5:6], Outcome.SNOOZED)
    await node.end(tasks[:4], Outcome.FAILED)
    await node.lapse()

    await node.breakers.step()

    # What was held when its holder died and had not been said to be started was given back.
    [record] = node.breakers.records([node.tenant]).values()
    assert [tuple(tally) for tally in record.tallies.values()] == [(4, 2)]


async def test_what_was_running_when_its_holder_died_counts_as_failed(node: Node) -> None:
    await node.put(2)
    tasks = await node.lease()
    await node.holders.beat(node.tenant, "w", [Named(task.id, task.number) for task in tasks])
    await node.lapse()

    await node.breakers.step()

    [record] = node.breakers.records([node.tenant]).values()
    assert [tuple(tally) for tally in record.tallies.values()] == [(2, 2)]


async def test_success_on_another_node_keeps_a_tenant_going(node: Node) -> None:
    async with running(node.database, node.tenant) as other:
        node.others.append(other)
        lane = await other.lanes.ensure(other.lane_key())
        for _ in range(40):
            other.onward.counts.succeeded(None, lane, 5)
            await other.breakers.step()
            other.ahead_ms += 10_000
            await node.fail_for(10)
        assert await node.stored() is None

        for _ in range(40):
            other.onward.counts.ended([(lane, Outcome.FAILED)])
            await other.breakers.step()
            other.ahead_ms += 10_000
            await node.fail_for(10)
        assert await node.stored() == "open"


async def test_a_node_that_starts_obeys_what_is_stored(node: Node) -> None:
    await node.put(5)
    await node.stop_it()
    await node.feeder.stop()

    async with running(node.database, node.tenant) as successor:
        assert await successor.lease() == []
        assert await successor.run_probe(Outcome.SUCCEEDED) == 1
        assert await successor.stored() == "closing"


async def test_who_resumes_and_fails_again_is_stopped_at_once(node: Node) -> None:
    await node.put(5)
    await node.stop_it()
    await node.run_probe(Outcome.SUCCEEDED)
    # The failures of before its resumption are another time's.
    node.ahead_ms = 0
    node.breakers._outcomes.clear()
    await node.fail_for(20, 3)

    assert await node.stored() == "open"


async def test_a_tenant_that_has_resumed_is_free_and_its_old_failures_are_forgotten(node: Node) -> None:
    await node.put(300)
    await node.stop_it()
    await node.run_probe(Outcome.SUCCEEDED)
    node.breakers._outcomes.clear()
    await node.database.fetch("UPDATE tenant_breaker SET since = since - interval '101 s'")
    await node.breakers.refresh()
    node.ahead_ms = 0

    await node.breakers.step()

    assert await node.stored() is None
    assert node.breakers.find(node.tenant) is None
    assert len(await node.lease(room=300)) == 299


async def test_other_tenants_go_on(node: Node) -> None:
    await node.stop_it()
    other = await Engine.open(node.database, "other")
    async with running(node.database, other.tenant) as neighbour:
        await neighbour.put(5)
        assert len(await neighbour.lease()) == 5


async def test_a_tenant_with_few_failures_goes_on(node: Node) -> None:
    await node.fail_for(600, 5, others=1)
    assert await node.stored() is None


async def test_it_is_held_open_and_closed_by_hand(node: Node) -> None:
    async def hold(state: Forced | str) -> None:
        await node.forced.put(node.tenant, TENANT_HOST, state, "")  # type: ignore[arg-type]

    await node.put(20)
    await hold("open")
    assert await node.lease() == []
    gate = node.breakers.find(node.tenant)
    assert gate is not None
    assert "by hand" in gate.reason

    await hold("auto")
    assert await node.stored() == "closing"
    assert 1 <= len(await node.lease()) <= 2

    await hold("closed")
    assert await node.stored() is None
    await node.fail_for(600)
    assert await node.stored() is None
    assert len(await node.lease()) >= 18

    await hold("auto")
    assert await node.stored() is None


async def test_whoever_asks_is_told_why_and_when_the_next_probe_comes(node: Node) -> None:
    await node.put(1)
    await node.fail_for(320)

    status = await node.feeder.describe(await node.lanes.ensure(node.lane_key()))

    [(limitation, detail, until)] = status.limited_by
    assert limitation == "tenant_breaker"
    assert re.search(r"its tenant is stopped, because (\d+) of \1 attempts failed in the last 300 s", detail)
    assert until is not None
    seen = node.breakers.status(node.tenant)
    assert seen is not None
    assert (seen.host, seen.state, seen.allowed_rate) == ("tenant", "open", 0.0)
    assert seen.next_probe_ms == int(until.timestamp() * 1000)


async def test_a_tenant_may_be_asked_to_go_on_whatever_fails(node: Node) -> None:
    node.breakers.rule({node.tenant: Quotas(breaker_failure_rate=1.0)})
    await node.fail_for(900)
    assert await node.stored() is None
    node.breakers.rule({node.tenant: Quotas(breaker_window=60.0)})
    await node.fail_for(80)
    assert await node.stored() == "open"
