"""Feeders that share the shards, each with lines to the others; their looks are off, so that only messages help."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from structlog.testing import capture_logs

from duetime.admin.breakers import ForcedBreakers
from duetime.cluster.postgres import PostgresCoordinator
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import SHARDS
from duetime.lifecycle.holders.holders import Named
from duetime.model.task import Kind, LeasedTask, TaskState
from duetime.model.tenant_breaker import Record, Tally
from duetime.scheduler import looking, messages
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.feed import Feeder
from duetime.scheduler.forwarding import Forwarding
from duetime.scheduler.liveness import Liveness
from duetime.scheduler.membership import Membership
from duetime.scheduler.messenger import Messenger
from duetime.scheduler.plan import Ask
from duetime.scheduler.routing import OtherNodes, Routing
from duetime.scheduler.shared_holders import SharedHolders
from duetime.scheduler.tenant_shards import TenantShards
from engine import Engine

SECRET = b"secret" * 6


class Node(Engine):
    """Every move, with a feeder that shares the shards."""

    def __init__(self, database: Database, name: str) -> None:
        super().__init__(database)
        self.name = name
        self.feeder = Feeder(database, self.lanes, self.onward)
        self.left.listen(self.feeder.polls.forget)
        self.records: dict[int, Record] = {}
        coordinator = PostgresCoordinator(database, "test")
        self.breakers = Breakers(self.lanes.key_of, database.clock.now_ms)
        self.forced = ForcedBreakers(database, self.breakers.obey)
        self.messenger = Messenger(name, SECRET)
        self.membership = Membership(self.messenger, coordinator, database, self.feeder, self.lanes)
        self.shards = TenantShards(database)
        self.routing = Routing(
            self.messenger,
            self.membership,
            self.shards,
            self.feeder,
            self.lanes,
            self.breakers,
            self.forced,
            woken=self.feeder.wake,
            ended=self.feeder.ended,
            records_of=lambda tenants: {each: self.records[each] for each in tenants if each in self.records},
        )
        self.forwarding = Forwarding(
            self.messenger, self.membership, self.routing, self.shards, self.feeder, self.lanes, self.holders
        )
        self.shared_holders = SharedHolders(self.messenger, self.membership, self.holders)
        self.wake_also(self.routing.wake)

    async def ask(self, worker: str = "w", room: int = 10, queue: str = "default") -> Ask:
        holder = await self.holders.register(self.tenant, worker)
        return Ask(holder, self.tenant, Kind.PULL, frozenset({queue}), frozenset(), room)

    async def poll(self, worker: str = "w", room: int = 10, queue: str = "default") -> "asyncio.Task[list[LeasedTask]]":
        return asyncio.create_task(self.forwarding.lease(await self.ask(worker, room, queue), 60.0))

    async def close(self) -> None:
        await self.membership.close()
        for part in (self.routing, self.forwarding, self.shared_holders):
            await part.close()

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.membership.nodes()]


class Team:
    def __init__(self, database: Database, tenant: int, stack: AsyncExitStack) -> None:
        self._database = database
        self._tenant = tenant
        self._stack = stack
        self.nodes: list[Node] = []

    async def join(self, name: str) -> Node:
        node = await self._stack.enter_async_context(running(self._database, name, self._tenant))
        self.nodes.append(node)
        await self.agree()
        return node

    async def leave(self, node: Node) -> None:
        self.nodes.remove(node)
        await node.membership.leave()
        await node.feeder.stop()
        await node.close()
        await self.agree()

    async def agree(self) -> None:
        """Wait until all see the same nodes."""
        names = sorted(node.name for node in self.nodes)
        async with asyncio.timeout(30):
            while any(node.names != names for node in self.nodes):
                await asyncio.sleep(0.01)

    async def feeding(self, queue: str = "default") -> tuple[Node, list[Node]]:
        """The node that feeds the tenant, and the others."""
        lane = await self.nodes[0].lanes.ensure(self.nodes[0].lane_key(queue))
        [owner] = [node for node in self.nodes if node.feeder.feeds(lane)]
        return owner, [node for node in self.nodes if node is not owner]


@asynccontextmanager
async def running(database: Database, name: str, tenant: int) -> AsyncIterator[Node]:
    node = Node(database, name)
    node.tenant = tenant
    await node.lanes.load()
    await node.membership.join()
    await node.feeder.start()
    yield node
    await node.membership.leave()
    await node.feeder.stop()
    await node.close()


@pytest.fixture
async def team(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Team]:
    monkeypatch.setattr(looking, "LOOK_EVERY", timedelta(hours=1))
    engine = await Engine.open(database)
    async with AsyncExitStack() as stack:
        team = Team(database, engine.tenant, stack)
        await team.join("one")
        await team.join("two")
        yield team


async def test_a_row_stored_on_one_node_is_claimed_by_the_one_that_feeds_it(team: Team) -> None:
    owner, [other] = await team.feeding()
    poll = await owner.poll()

    [task] = await other.submit()

    assert [leased.id for leased in await poll] == [task]


async def test_a_lane_made_on_one_node_is_known_to_the_others_before_anything_is_in_it(team: Team) -> None:
    owner, [other] = await team.feeding()
    poll = await owner.poll(queue="new")

    [task] = await other.submit(queue="new")

    assert [leased.id for leased in await poll] == [task]
    assert owner.lane_key("new") in (await owner.lanes.of_tenant(owner.tenant)).values()


async def test_a_wake_is_repeated_until_it_is_heard(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, [other] = await team.feeding()
    poll = await owner.poll()
    resolve, heard = owner.lanes.resolve, 0

    async def be_deaf_twice(lane: int) -> object:
        nonlocal heard
        heard += 1
        if heard <= 2:
            raise Unavailable("not now")
        return await resolve(lane)

    monkeypatch.setattr(owner.lanes, "resolve", be_deaf_twice)
    [task] = await other.submit()

    assert [leased.id for leased in await poll] == [task]
    # A look of the owner may have found the task before; it is told all the same.
    async with asyncio.timeout(20):
        while heard < 3:
            await asyncio.sleep(0.01)


async def test_a_poll_on_another_node_gets_payloads_as_they_are_stored(team: Team) -> None:
    _, [other] = await team.feeding()
    poll = await other.poll()
    payload = b'{ "kept":  1.00, "as": "\xc3\xbc" }'

    await other.submit(payload=payload, labels={"a": "b"})
    [leased] = await poll

    assert leased.payload == payload
    assert (await other.settle([leased])).settled == [leased.id]


async def test_a_poll_that_is_given_up_takes_nothing(team: Team) -> None:
    owner, [other] = await team.feeding()
    poll = await other.poll()
    await waits(owner)

    poll.cancel()
    await asyncio.wait([poll])
    await gone(owner)
    [task] = await owner.submit()

    assert await owner.state(task) is TaskState.READY
    assert [leased.number for leased in await (await other.poll())] == [1]


async def test_waiting_polls_follow_the_shards_when_a_node_comes_and_when_it_goes(team: Team) -> None:
    owner, [other] = await team.feeding()
    polls = [await node.poll(f"w-{node.name}", room=1) for node in (owner, other)]
    await waits(owner, 2)

    await team.leave(owner)
    tasks = await other.submit(2)

    assert [[leased.id for leased in await poll] for poll in polls] == [[], tasks[:1]]
    third = await team.join("three")
    poll = await third.poll("w-three", room=1)
    assert [leased.id for leased in await poll] == tasks[1:]


async def test_what_waits_in_shards_that_came_is_looked_at_at_once(team: Team) -> None:
    owner, [other] = await team.feeding()
    [task] = await owner.submit(delay=0.3)

    await team.leave(owner)

    assert [leased.id for leased in await (await other.poll())] == [task]


async def test_a_poll_on_another_node_ends_with_its_holder(team: Team) -> None:
    """The node that feeds finds out first: the one that passed the poll on does not ask it again."""
    owner, [other] = await team.feeding()
    ask = await other.ask()
    poll = asyncio.create_task(other.forwarding.lease(ask, 60.0))
    await waits(owner)
    times = itertools.count(0.0, 1.0)
    liveness = Liveness(
        owner.database,
        owner.holders,
        owner.onward,
        owner.feeder.polls,
        monotonic=times.__next__,
        on_lapsed=owner.shared_holders.tell_ended,
    )

    while not owner.feeder.polls.has_ended(ask.holder):
        await liveness.step()
    [task] = await owner.submit()

    assert await poll == []
    assert await owner.outcomes(task) == []
    assert await other.forwarding.lease(ask, 60.0) == []
    # A new holder of that name gets it.
    [leased] = await (await other.poll())
    assert (leased.id, leased.number) == (task, 1)


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_poll_ends_where_it_was_passed_on_when_its_holder_signs_off_there(team: Team, is_told: bool) -> None:
    """Also if the node that feeds did not hear of it, and answers with a task."""
    owner, [other] = await team.feeding()
    ask = await other.ask()
    poll = asyncio.create_task(other.forwarding.lease(ask, 60.0))
    await waits(owner)

    if is_told:
        await other.shared_holders.sign_off(other.tenant, "w", [])
        [task] = await owner.submit()
    else:
        await other.holders.sign_off(other.tenant, "w")
        [task] = await owner.submit()

    assert await poll == []
    async with asyncio.timeout(10):
        while await owner.state(task) is not TaskState.READY:
            await asyncio.sleep(0.01)
    [leased] = await (await other.poll("heir"))
    assert (leased.id, leased.releases) == (task, 0)


async def test_room_is_divided_between_the_nodes_that_feed_a_tenant(team: Team, database: Database) -> None:
    owner, [other] = await team.feeding()
    lane = owner.lanes.find(owner.lane_key())
    assert lane is not None
    elsewhere = next(shard for shard in range(SHARDS) if other.feeder.feeds(shard))
    # A tenant that is spread over two shards.
    await database.execute(
        "INSERT INTO lane (id, tenant, queue, class, kind) VALUES ($1, $2, 'spread', 2, 0)",
        (1 << 20) * SHARDS + elsewhere,
        owner.tenant,
    )
    for node in team.nodes:
        await node.lanes.load()
    own = await owner.submit(10)
    spread = await owner.submit(10, queue="spread")

    rooms = other.forwarding.divide(await other.shards.of(other.tenant), 7)
    got: list[LeasedTask] = []
    while len(got) < 20:
        ask = Ask((await other.ask()).holder, other.tenant, Kind.PULL, None, frozenset(), 7)
        part = await other.forwarding.lease(ask, 30.0)
        assert 0 < len(part) <= 7
        got += part

    assert sorted(rooms.values()) == [3, 4]
    # Parts that the first answer overtook were given back, and came again.
    assert {leased.id for leased in got} == {*own, *spread}


async def test_one_node_hears_all_beats_of_a_worker(team: Team) -> None:
    owner, [other] = await team.feeding()
    [task] = await owner.submit()
    await (await owner.poll())

    # Beats that do not name it, in turn on both: one node sees that two in a row did not.
    for node in (owner, other):
        await node.shared_holders.beat(node.tenant, "w", [])

    assert await owner.state(task) is TaskState.READY
    assert await owner.outcomes(task) == ["released"]


async def test_a_node_that_heard_a_beat_long_ago_does_not_take_it_for_the_last_one(team: Team) -> None:
    owner, [other] = await team.feeding()
    [task] = await owner.submit()
    await (await owner.poll())

    # Not by the shared way: as if the shards had moved in between.
    await owner.holders.beat(owner.tenant, "w", [])
    await other.holders.beat(other.tenant, "w", [Named(task, 1)])
    await owner.holders.beat(owner.tenant, "w", [])

    assert await owner.state(task) is TaskState.RUNNING


async def test_a_duty_belongs_to_one_node_and_passes_on(team: Team) -> None:
    for duty in ("expire", "tidy", "retire"):
        assert sum(node.membership.has_duty(duty) for node in team.nodes) == 1

    [left, _] = team.nodes
    await team.leave(team.nodes[1])

    assert all(left.membership.has_duty(duty) for duty in ("expire", "tidy", "retire"))


async def test_every_node_can_say_who_serves_a_lane(team: Team) -> None:
    owner, [other] = await team.feeding()
    lane = owner.lanes.find(owner.lane_key())
    assert lane is not None
    poll = await other.poll()
    await waits(owner)

    told = [await node.routing.describe(lane) for node in (owner, other)]

    assert told[0] == told[1]
    assert told[0] is not None
    assert told[0].has_holders
    poll.cancel()
    await asyncio.wait([poll])


async def test_a_poll_on_another_node_gets_only_what_it_handles(team: Team) -> None:
    owner, [other] = await team.feeding()
    types = {"a": frozenset({"a"}), "b": frozenset({"b"})}
    asks = {name: replace(await other.ask(f"w-{name}"), types=types[name]) for name in "ab"}
    of_a = asyncio.create_task(other.forwarding.lease(asks["a"], 60.0))
    await waits(owner)
    [first] = await other.submit(type="b")

    [second] = await other.submit(type="a")

    assert [leased.id for leased in await of_a] == [second]
    assert [(leased.id, leased.number) for leased in await other.forwarding.lease(asks["b"], 30.0)] == [(first, 1)]
    assert await other.state(first) is TaskState.RUNNING


async def test_every_node_can_say_what_the_workers_of_a_lane_handle(team: Team) -> None:
    owner, [other] = await team.feeding()
    lane = owner.lanes.find(owner.lane_key())
    assert lane is not None
    ask = replace(await other.ask(), types=frozenset({"a", "c"}))
    assert await other.forwarding.lease(ask, 0.05) == []

    told = [await node.routing.describe(lane) for node in (owner, other)]

    assert told[0] == told[1]
    assert told[0] is not None
    assert (told[0].workers, told[0].handled) == (1, ("a", "c"))


async def waits(owner: Node, count: int = 1) -> None:
    """Until so many polls have reached the feeder."""
    async with asyncio.timeout(30):
        while len(owner.feeder.polls) < count:
            await asyncio.sleep(0.005)


async def gone(owner: Node) -> None:
    async with asyncio.timeout(30):
        while owner.feeder.polls:
            await asyncio.sleep(0.005)


async def test_breakers_are_seen_on_every_node_and_those_of_other_tenants_are_not(team: Team) -> None:
    owner, [other] = await team.feeding()
    now = owner.database.clock.now_ms()
    owner.breakers.of(owner.tenant, "a.example:443").ended("overloaded", now, 30.0, detail="it answered 503")
    other.breakers.of(owner.tenant, "left.example:443").force("open", now)
    owner.breakers.of(owner.tenant + 1, "b.example:443").force("open", now)

    for node in (owner, other):
        [seen] = await node.routing.describe_breakers(node.tenant)
        assert (seen.host, seen.state) == ("a.example:443", "slowed")
        assert seen.next_probe_ms is not None


async def test_what_is_forced_is_obeyed_by_the_other_nodes_before_the_caller_hears_that_it_is_done(team: Team) -> None:
    owner, [other] = await team.feeding()
    breaker = owner.breakers.of(owner.tenant, "a.example:443")
    breaker.ended("overloaded", owner.database.clock.now_ms(), 30.0)

    await other.forced.put(owner.tenant, "a.example:443", "closed", "")
    held = breaker.forced
    await other.forced.put(owner.tenant, "a.example:443", "auto", "")

    assert (held, breaker.forced, breaker.state) == ("closed", None, "closed")


async def test_breakers_of_a_node_that_does_not_answer_are_not_said_to_be_none(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, [other] = await team.feeding()

    def be_busy(tenant: int) -> object:
        raise Unavailable("not now")

    monkeypatch.setattr(owner.breakers, "states", be_busy)

    with pytest.raises(Unavailable):
        await other.routing.describe_breakers(other.tenant)


async def test_a_node_is_told_what_the_others_know_of_a_tenants_attempts(team: Team) -> None:
    one, two = team.nodes
    known = Record(7, {7: Tally(20, 19), 8: Tally(1, 0)})
    two.records[1] = known

    assert await OtherNodes(one.messenger).records([1, 2]) == [{1: known}]
    await team.leave(two)
    assert await OtherNodes(one.messenger).records([1, 2]) == []


class Ends:
    """Two messengers that know each other; both serve one kind of request."""

    def __init__(self) -> None:
        self.here, self.there = Messenger("here", SECRET), Messenger("there", SECRET)
        self.heard: list[int] = []
        self.there.serve(messages.Left, self._hear)

    async def _hear(self, left: messages.Left) -> messages.Done:
        self.heard.append(left.holder)
        return messages.Done()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends()
    members = [await end.listen(place) for place, end in enumerate((ends.here, ends.there), 1)]
    for end in (ends.here, ends.there):
        end.meet(members)
    yield ends
    for end in (ends.here, ends.there):
        await end.close()


async def test_a_request_is_answered_by_the_part_that_serves_its_type(ends: Ends) -> None:
    reply = await ends.here.ask("there", messages.Left(7), messages.Done, 20.0)

    assert reply == messages.Done()
    assert ends.heard == [7]
    assert await ends.here.ask("nobody", messages.Left(8), messages.Done, 20.0) is None


async def test_what_cannot_be_understood_is_dropped_with_one_line(ends: Ends) -> None:
    class Unknown(msgspec.Struct, frozen=True, array_like=True, tag=99):
        text: str

    class Broken(msgspec.Struct, frozen=True, array_like=True, tag=5):
        holder: str

    with capture_logs() as said:
        for _ in range(3):
            for message in (Unknown("x" * 10_000), Broken("y" * 10_000), messages.LaneMade(256)):
                assert await ends.here.ask("there", message, messages.Done, 20.0) is None  # type: ignore[type-var]
        # A reply of another type than was asked for.
        assert await ends.here.ask("there", messages.Left(7), messages.Leased, 20.0) is None

    dropped = [line for line in said if line["event"].endswith("cannot be understood and is dropped")]
    assert [len(line["message"]) <= 200 for line in dropped] == [True, True], "one for each of the two nodes"
    assert not any("exc_info" in line for line in said)
    assert ends.heard == [7]
