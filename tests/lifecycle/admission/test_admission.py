"""What a node asks, and whom, before it accepts submissions: nothing at all as long as the quotas are far off."""

from duetime.budgets.allowance import Allowance
from duetime.budgets.postgres import PostgresBudgets
from duetime.database.gather import Backlog
from duetime.database.pool import Database
from duetime.lifecycle.admission.admission import Admission
from duetime.lifecycle.admission.credit import BYTES_AHEAD
from duetime.lifecycle.admission.pressure import Pressure
from duetime.lifecycle.admission.waiting import LARGE_ROOM, Bound, WaitingRoom
from duetime.model.quotas import DEFAULTS, Quotas
from duetime.model.task import Kind, LaneKey, NewTask, PriorityClass

LANE = LaneKey(1, "default", PriorityClass.NORMAL, Kind.PULL)
KIB = NewTask(LANE, "a", b"x" * 1024)
MANY = 5_000


class Node:
    """One node's admission; `waiting` tasks of the tenant wait, and `fits` of all tenants can."""

    def __init__(self, database: Database, quotas: Quotas = DEFAULTS, *, waiting: int = 0, fits: int = 0) -> None:
        self.now = 1000.0
        self.waiting, self.fits, self.inserted = waiting, fits, 0
        #: The tenants that were counted.
        self.counted: list[int] = []
        self.allowance = Allowance(PostgresBudgets(database), monotonic=lambda: self.now)
        self.room = WaitingRoom(self._count, self._bound, monotonic=lambda: self.now)
        self.admission = Admission(Pressure(lambda: Backlog(0, 0, 0.0)), self.allowance, self.room)
        self.admission.rule({}, quotas)

    async def _count(self, tenant: int, most: int) -> int:
        self.counted.append(tenant)
        return min(self.waiting, most)

    async def _bound(self) -> Bound:
        return Bound(self.fits, {1: self.inserted})

    async def admit_all(self, tasks: list[NewTask]) -> int:
        """One by one, as calls come; how many were accepted."""
        accepted = 0
        for task in tasks:
            accepted += self.admission.admit_now(task) or (await self.admission.admit(1, [task]))[0]
        return accepted


async def test_nothing_is_counted_for_a_tenant_that_is_far_from_its_quota(database: Database) -> None:
    node = Node(database, fits=8_000_000)
    await node.room.look()

    one_by_one = await node.admit_all([KIB] * MANY)
    batch, _ = await node.admission.admit(1, [KIB] * MANY)

    assert (one_by_one, batch) == (MANY, MANY)
    assert node.counted == []


async def test_a_tenant_is_counted_where_more_can_wait_than_it_may_have(database: Database) -> None:
    """The installation is full of others' tasks, or of rows that are gone."""
    node = Node(database, waiting=9_999_000, fits=50_000_000)
    await node.room.look()

    accepted = await node.admit_all([KIB] * 2_000)

    assert accepted == 1_000
    assert node.counted == [1]


async def test_a_tenant_is_counted_again_only_when_as_many_came_as_it_may_have(database: Database) -> None:
    """Where one tenant fills the tables, the others are not counted every few seconds."""
    node = Node(database, waiting=10, fits=50_000_000)
    node.inserted = 7
    await node.room.look()
    for _ in range(100):
        node.now += 2
        node.inserted += 50_000
        await node.room.look()
        assert await node.admit_all([KIB] * 50) == 50
    once = list(node.counted)

    node.now += 2
    node.inserted += 5_000_000
    await node.room.look()
    await node.admit_all([KIB] * 2_000)

    assert (once, node.counted) == ([1], [1, 1])


async def test_what_came_is_known_over_new_partitions_and_a_crash() -> None:
    first, second = Bound(0, {1: 100, 2: 5}), Bound(0, {2: 3, 3: 10})

    assert second.inserted_since(first) == 13
    assert first.inserted_since(first) == 0


async def test_a_bound_that_is_not_read_any_more_is_worth_less_each_second(database: Database) -> None:
    node = Node(database, fits=5_000_000)
    await node.room.look()
    node.now += 3.9
    assert await node.admit_all([KIB]) == 1
    before = list(node.counted)

    node.now += 10
    # Other quotas end the credit that was given.
    node.admission.rule({}, DEFAULTS.of_submissions)
    await node.admit_all([KIB])

    assert (before, node.counted) == ([], [1])


async def test_credit_is_never_more_than_a_hundredth_of_the_quota(database: Database) -> None:
    """What a node accepts without a look cannot carry a tenant past its quota by much."""
    node = Node(database, Quotas(max_waiting=LARGE_ROOM), fits=0)
    await node.room.look()

    accepted = await node.admit_all([KIB] * LARGE_ROOM)
    node.waiting = accepted
    node.now += 100
    more = await node.admit_all([KIB] * MANY)

    assert accepted + more <= LARGE_ROOM * 1.01
    assert node.counted


async def test_a_small_quota_is_exact(database: Database) -> None:
    node = Node(database, Quotas(max_waiting=100), fits=0)
    await node.room.look()

    assert await node.admit_all([KIB] * 200) == 100


async def test_bytes_are_fetched_a_megabyte_at_once(database: Database) -> None:
    node = Node(database)
    await node.room.look()
    assert await node.admit_all([KIB]) == 1

    without_a_question = sum(node.admission.admit_now(KIB) for _ in range(BYTES_AHEAD // 1024))

    assert without_a_question == BYTES_AHEAD // 1024
    assert await database.fetch("SELECT wanted FROM budget WHERE name = 'submit_bytes:1'") == [(BYTES_AHEAD + 1024.0,)]


async def test_nodes_share_the_bytes_of_a_tenant(database: Database) -> None:
    quotas = Quotas(submit_bytes_rate=1024.0, submit_bytes_burst=65_536)
    nodes = [Node(database, quotas) for _ in range(2)]
    # The bucket that nobody knew of begins with a second's worth.
    accepted = 0
    for _ in range(20):
        for node in nodes:
            accepted += await node.admit_all([KIB])

    # One second's worth, and what flows in while the test runs.
    assert 1 <= accepted < 30


async def test_a_batch_that_waits_for_bytes_leaves_the_rest_to_others(database: Database) -> None:
    node = Node(database, Quotas(submit_bytes_rate=10_240.0, submit_bytes_burst=65_536))
    node.admission.rule({}, Quotas(submit_bytes_rate=10_240.0, submit_bytes_burst=65_536))
    small = NewTask(LANE, "a", b"x" * 100)

    large, refusal = await node.admission.admit(1, [NewTask(LANE, "a", b"x" * 20_000)])
    rest = await node.admit_all([small] * 50)

    assert (large, refusal is None) == (0, False)
    assert rest == 50
