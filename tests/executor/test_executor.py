"""The executor on a real database, with a real feeder and real targets."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from duetime.admin.invariants import check_invariants
from duetime.admin.signing import Signing, read_signing, rotate_signing, show_secret
from duetime.admin.tenants import create_tenant
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.executor.egress import Guard, read_networks
from duetime.executor.executor import Executor, TellHealth
from duetime.executor.http import HttpClient
from duetime.lifecycle.holders.holders import Holders, Named
from duetime.lifecycle.holders.lapse import end_silent_holders, sweep_left_behind
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.batch import Submitted
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.onward import Onward
from duetime.lifecycle.tasks.settle import Settler
from duetime.lifecycle.tasks.state import read_states
from duetime.lifecycle.tasks.steer import Steering
from duetime.model.breaker_config import DEFAULT, BreakerConfig
from duetime.model.egress_rules import EgressJudge, EgressRules
from duetime.model.retry import RetryPolicy
from duetime.model.task import Kind, LaneKey, LeasedTask, Options, Outcome, PriorityClass, Target, TaskState, make_task
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.feed import Ask, Feeder
from duetime.views.explain import Waiting, explain
from executor.targets import LocalTarget, Visitor, answer_everything, serving


class Node:
    """One node's parts, put together as the product does it."""

    def __init__(self, database: Database, breaker_config: BreakerConfig = DEFAULT) -> None:
        self.database = database
        self.partitions = Partitions(database)
        self.lanes = Lanes(database)
        self.onward = Onward(database, self.partitions, self._wake)
        self.holders = Holders(database, self.onward)
        self.settler = Settler(database, self.holders, self.onward)
        self.submitter = Submitter(database, self.lanes, self.partitions, self._wake)
        self.steering = Steering(database, self.partitions, self._wake)
        self.breakers = Breakers(self.lanes.key_of, database.clock.now_ms, config=breaker_config)
        self.feeder = Feeder(database, self.lanes, self.onward, breakers=self.breakers)
        self.client = HttpClient(Guard(read_networks(["127.0.0.0/8"])))
        self.tenant = 0
        self.egress: dict[int, EgressJudge] = {}

    def _wake(self, wakes: Iterable[uuid.UUID]) -> None:
        self.feeder.wake(wakes)

    async def start(self) -> None:
        await self.partitions.make_ahead()
        self.tenant = (await create_tenant(self.database, "default")).id
        await self.feeder.start()

    async def stop(self) -> None:
        await self.feeder.stop()
        await self.settler.close()
        await self.client.close()

    async def _secret_of(self, lane: int) -> Signing:
        key = self.lanes.key_of(lane)
        assert key is not None
        return await read_signing(self.database, key.tenant)

    def executor(
        self,
        max_calls: int = 64,
        max_calls_per_host: int = 64,
        tell_health: TellHealth | None = None,
        feeder: Feeder | None = None,
        beside: Callable[[], int] = lambda: 0,
    ) -> Executor:
        return Executor(
            feeder or self.feeder,
            self.holders,
            self.settler,
            self.client,
            clock=self.database.clock,
            secret_of=self._secret_of,
            key_of=self.lanes.key_of,
            node="test",
            max_calls=max_calls,
            max_calls_per_host=max_calls_per_host,
            beat_every_seconds=0.1,
            tell_health=tell_health,
            egress_of=self.egress.get,
            beside=beside,
        )

    async def submit(
        self,
        target: LocalTarget | str,
        count: int = 1,
        *,
        expires_in: float | None = None,
        retry: RetryPolicy | None = None,
        tenant: int | None = None,
        **fields: object,
    ) -> list[uuid.UUID]:
        expires_at = None if expires_in is None else self.database.clock.now() + timedelta(seconds=expires_in)
        url = target if isinstance(target, str) else target.url
        options = Options(target=Target(url, **fields), retry=retry)  # type: ignore[arg-type]
        lane = LaneKey(self.tenant if tenant is None else tenant, "mail", PriorityClass.NORMAL, Kind.PUSH)
        task = make_task(lane, "email.send", b'{"n":1}', options=options, expires_at=expires_at)
        answers = await self.submitter.submit([task] * count)
        return [answer.id for answer in answers if isinstance(answer, Submitted)]

    async def states(self, tasks: list[uuid.UUID]) -> list[TaskState | None]:
        states = await read_states(self.database, tasks)
        return [states.get(task) for task in tasks]

    async def outcomes(self, task: uuid.UUID) -> list[str]:
        rows = await self.database.fetch("SELECT outcome FROM attempt WHERE task = $1 ORDER BY number", task)
        return [Outcome(row["outcome"]).word for row in rows]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look until it holds."""
    async with asyncio.timeout(20):
        while not await holds():
            await asyncio.sleep(0.01)


@pytest.fixture
async def node(database: Database) -> AsyncIterator[Node]:
    started = Node(database)
    await started.start()
    yield started
    await started.stop()


@asynccontextmanager
async def executing(executor: Executor) -> AsyncIterator[Executor]:
    running = asyncio.create_task(executor.run())
    try:
        yield executor
    finally:
        await executor.stop(0.0)
        async with asyncio.timeout(10):
            await running


class Gate:
    """A target that answers once it is opened, and counts who is inside."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.inside = 0
        self.most = 0
        self.aborted = 0

    async def __call__(self, visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            opened = asyncio.ensure_future(self.opened.wait())
            closed = asyncio.ensure_future(visitor.reader.read(1))
            try:
                await asyncio.wait([opened, closed], return_when=asyncio.FIRST_COMPLETED)
                if not opened.done():
                    self.aborted += 1
                    return
            finally:
                self.inside -= 1
                for task in (opened, closed):
                    task.cancel()
                await asyncio.wait([opened, closed])
            await visitor.answer()


async def test_a_due_task_is_called_signed_and_settled_with_its_answer(node: Node) -> None:
    async with serving(answer_everything) as target, executing(node.executor()) as executor:
        [task] = await node.submit(target, headers={"X-Own": "1"})
        await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

    [received] = target.received
    assert received.body == b'{"n":1}'
    assert received.headers["x-own"] == "1"
    assert received.headers["duetime-attempt"] == "1"
    assert received.headers["duetime-queue"] == "mail"
    signing = await read_signing(node.database, node.tenant)
    Webhook(show_secret(signing.secret)).verify(received.body, received.headers)
    [row] = await node.database.fetch(
        "SELECT attempt.*, holder.name FROM attempt JOIN holder ON holder.id = attempt.holder WHERE task = $1", task
    )
    assert row["result"] == b'{"ok":true}'
    assert row["name"] == executor.name
    assert row["picked_at"] <= row["started_at"] <= row["completed_at"]
    response = msgspec.json.decode(row["detail"])["response"]
    assert (response["status"], response["body"]) == (200, '{"ok":true}')
    assert response["timings"]["total_ms"] > 0


async def test_after_a_rotation_calls_are_signed_with_both_secrets_until_the_overlap_ends(node: Node) -> None:
    first = await read_signing(node.database, node.tenant)

    async with serving(answer_everything) as target, executing(node.executor()) as executor:
        for overlap_seconds in (None, 60.0, 0.3, 0.0):
            if overlap_seconds is not None:
                await rotate_signing(node.database, node.tenant, overlap_seconds)
                executor.forget_secrets()
            if overlap_seconds == 0.3:
                now = await read_signing(node.database, node.tenant)
                assert now.former_until is not None
                await until(lambda ends=now.former_until: _is(node.database.clock.now() >= ends))
            tasks = await node.submit(target)
            await until(lambda each=tasks: is_all(node, each, TaskState.SUCCEEDED))

    signatures = [received.headers["webhook-signature"].split(" ") for received in target.received]
    assert [len(each) for each in signatures] == [1, 2, 1, 1]
    before, during, after, _ = target.received
    Webhook(show_secret(first.secret)).verify(before.body, before.headers)
    Webhook(show_secret(first.secret)).verify(during.body, during.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(show_secret(first.secret)).verify(after.body, after.headers)


async def is_all(node: Node, tasks: list[uuid.UUID], state: TaskState) -> bool:
    return set(await node.states(tasks)) == {state}


async def test_a_rescheduled_task_tells_its_target_the_new_time(node: Node) -> None:
    async with serving(answer_everything) as target:
        [task] = await node.submit(target)
        run_at = node.database.clock.now() + timedelta(seconds=1)
        verdicts = await node.steering.reschedule([task], run_at)
        assert verdicts[task].changed
        async with executing(node.executor()):
            await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

    [received] = target.received
    # The header has milliseconds.
    told = datetime.fromisoformat(received.headers["duetime-due-at"])
    assert abs(told - run_at) < timedelta(milliseconds=1)


async def test_a_transient_answer_is_tried_again_when_the_server_said(node: Node) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer(429, Retry_After="0")
        while await visitor.read_request() is not None:
            await visitor.answer(200)

    async with serving(handle) as target, executing(node.executor()):
        [task] = await node.submit(target, retry=RetryPolicy(min_backoff=3600.0))
        await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

    assert await node.outcomes(task) == ["failed", "succeeded"]
    assert [received.headers["duetime-attempt"] for received in target.received] == ["1", "2"]
    assert len({received.headers["idempotency-key"] for received in target.received}) == 1


async def test_a_permanent_answer_and_a_refused_address_are_dead_letters_at_once(node: Node) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer(404)

    async with serving(handle) as target, executing(node.executor()):
        tasks = await node.submit(target)
        tasks += await node.submit("http://169.254.169.254/latest/meta-data")
        await until(lambda: is_all(node, tasks, TaskState.DEAD))

    assert len(target.received) == 1
    [row] = await node.database.fetch("SELECT detail FROM attempt WHERE task = $1", tasks[1])
    assert msgspec.json.decode(row["detail"])["error"]["detail"]["reason"] == "refused"


async def test_a_call_that_its_tenant_may_not_make_any_more_is_a_dead_letter_and_nobody_is_called(node: Node) -> None:
    async with serving(answer_everything) as target, executing(node.executor()):
        node.egress[node.tenant] = EgressJudge(EgressRules(hosts=("*.example.com",)))
        [task] = await node.submit(target)
        await until(lambda: is_all(node, [task], TaskState.DEAD))
        assert target.connections == 0
        [row] = await node.database.fetch("SELECT detail FROM attempt WHERE task = $1", task)
        error = msgspec.json.decode(row["detail"])["error"]
        assert (error["kind"], error["detail"]["reason"]) == ("permanent", "egress_refused")
        assert "egress.hosts" in error["message"]

        node.egress[node.tenant] = EgressJudge(EgressRules(hosts=("127.0.0.1",), ports=(target.port,)))
        await node.steering.redrive([task])
        await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))


async def test_a_tenants_rules_open_nothing_that_the_node_refuses(node: Node) -> None:
    node.egress[node.tenant] = EgressJudge(EgressRules(hosts=("169.254.169.254", "*")))

    async with executing(node.executor()):
        [task] = await node.submit("http://169.254.169.254/latest/meta-data")
        await until(lambda: is_all(node, [task], TaskState.DEAD))

    [row] = await node.database.fetch("SELECT detail FROM attempt WHERE task = $1", task)
    assert msgspec.json.decode(row["detail"])["error"]["detail"]["reason"] == "refused"


async def test_a_host_has_no_more_calls_than_its_limit_and_all_come_through(node: Node) -> None:
    gate = Gate()

    async with serving(gate) as target, executing(node.executor(max_calls=16, max_calls_per_host=3)):
        tasks = await node.submit(target, 100)
        await until(lambda: _is(gate.inside == 3))
        gate.opened.set()
        await until(lambda: is_all(node, tasks, TaskState.SUCCEEDED))

    assert gate.most == 3
    assert len(target.received) == 100


async def test_a_host_that_hangs_does_not_keep_others_waiting_and_costs_its_tasks_nothing(node: Node) -> None:
    gate = Gate()

    async with (
        serving(gate) as slow,
        serving(answer_everything) as fast,
        executing(node.executor(max_calls=32, max_calls_per_host=4)),
    ):
        slow_tasks = await node.submit(slow, 100)
        fast_tasks = await node.submit(fast, 20)
        await until(lambda: is_all(node, fast_tasks, TaskState.SUCCEEDED))
        assert gate.inside == 4
        assert len(slow.received) == 4
        # Nothing is claimed again and again that cannot begin.
        await until(lambda: is_parked(node, 96))
        assert len(slow.received) == 4
        rows = await node.database.fetch(
            """
            SELECT failures, crashes, releases FROM due
             UNION ALL
            SELECT failures, crashes, releases FROM claim
            """
        )
        assert {tuple(row) for row in rows} == {(0, 0, 0)}

        gate.opened.set()
        await until(lambda: is_all(node, slow_tasks, TaskState.SUCCEEDED))
    assert gate.most == 4
    assert await count_released(node) <= 32


async def run_all(node: Node, tasks: list[uuid.UUID]) -> None:
    await until(lambda: is_all(node, tasks, TaskState.SUCCEEDED))


async def is_parked(node: Node, count: int) -> bool:
    """Whether so many tasks wait at gates."""
    [row] = await node.database.fetch("SELECT count(*) FROM due WHERE home IS NOT NULL")
    return bool(row[0] == count)


async def count_released(node: Node) -> int:
    rows = await node.database.fetch("SELECT FROM attempt WHERE outcome = $1", int(Outcome.RELEASED))
    return len(rows)


async def reason_of(node: Node, tenant: int, task: uuid.UUID) -> Waiting | None:
    """Why the task waits."""
    told = await explain(node.database, node.lanes, node.feeder, tenant, task)
    return told.waiting_for[0] if told is not None and told.waiting_for else None


async def test_a_tenant_with_silent_hosts_keeps_no_other_waiting(node: Node) -> None:
    gates = [Gate() for _ in range(6)]
    other = (await create_tenant(node.database, "other")).id

    def inside() -> int:
        return sum(gate.inside for gate in gates)

    async with AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(serving(gate)) for gate in gates]
        fast = await stack.enter_async_context(serving(answer_everything))
        executor = await stack.enter_async_context(executing(node.executor(512, 64)))
        tasks = [task for target in silent for task in await node.submit(target, 100, timeout=45.0)]

        async def is_held_back() -> bool:
            reason = await reason_of(node, node.tenant, tasks[-1])
            return reason is not None and reason.reason == "no_slot" and inside() == executor.calls

        await until(is_held_back)
        reason = await reason_of(node, node.tenant, tasks[-1])
        assert reason is not None
        assert "of the 512 calls that the node makes at once" in reason.detail
        held = inside()
        assert 150 <= held <= 256
        for _ in range(5):
            await run_all(node, await node.submit(fast, 20, tenant=other))

        # They began and ended while all calls of the first were under way.
        assert inside() >= held
        assert sum(len(target.received) for target in silent) == inside() <= 256
        assert sum(gate.aborted for gate in gates) == 0
        for gate in gates:
            gate.opened.set()
        await until(lambda: is_all(node, tasks, TaskState.SUCCEEDED))

    # Each was given back once at the most, and called once.
    assert await count_released(node) <= len(tasks)
    assert sum(len(target.received) for target in silent) == len(tasks)
    assert await check_invariants(node.database, deep=True) == []


async def test_many_hosts_that_hang_cost_no_loop_of_claims_while_the_lane_is_read_for_a_quick_one(node: Node) -> None:
    gate = Gate()
    async with AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(serving(gate)) for _ in range(30)]
        fast = await stack.enter_async_context(serving(answer_everything))
        executor = await stack.enter_async_context(executing(node.executor(32, 8)))
        await run_all(node, await node.submit(fast, 1))
        tasks = [task for target in silent for task in await node.submit(target, 2, timeout=45.0)]
        for _ in range(5):
            await run_all(node, await node.submit(fast, 5))
        await until(lambda: _is(gate.inside == executor.calls))
        assert gate.inside <= 16
        gate.opened.set()
        await until(lambda: is_all(node, tasks, TaskState.SUCCEEDED))

    assert await count_released(node) <= len(tasks)


async def test_two_tenants_that_call_the_same_slow_host_do_not_wait_for_each_other(node: Node) -> None:
    gate = Gate()
    other = (await create_tenant(node.database, "other")).id
    async with serving(gate) as target, executing(node.executor(512, 64)):
        tasks = await node.submit(target, 80, timeout=45.0)
        await until(lambda: _is(gate.inside == 64))

        [others] = await node.submit(target, 1, tenant=other)

        await until(lambda: _is(gate.inside == 65))
        assert target.received[-1].headers["duetime-task-id"] == str(others)
        await until(lambda: is_parked(node, 16))
        gate.opened.set()
        await until(lambda: is_all(node, [*tasks, others], TaskState.SUCCEEDED))


async def test_a_task_at_the_gate_of_a_full_host_is_explained(node: Node) -> None:
    gate = Gate()
    async with serving(gate) as target, executing(node.executor(64, 2)):
        tasks = await node.submit(target, 10, timeout=45.0)
        await until(lambda: is_parked(node, 8))
        [row] = await node.database.fetch("SELECT task FROM due LIMIT 1")

        reason = await reason_of(node, node.tenant, row["task"])

        assert reason is not None
        assert reason.reason == "no_slot"
        assert f"its host 127.0.0.1:{target.port} has no free place: 2 calls are under way to it" in reason.detail
        gate.opened.set()
        await until(lambda: is_all(node, tasks, TaskState.SUCCEEDED))


async def test_a_cancelled_task_stops_being_called(node: Node) -> None:
    gate = Gate()

    async with serving(gate) as target, executing(node.executor()) as executor:
        [task] = await node.submit(target)
        await until(lambda: _is(gate.inside == 1))

        await node.steering.cancel([task])
        await until(lambda: _is(gate.aborted == 1 and executor.calls == 0))

        assert await node.states([task]) == [TaskState.CANCELLED]
    assert await node.outcomes(task) == ["cancelled"]


async def _is(condition: bool) -> bool:
    return condition


async def test_a_task_that_waits_for_its_host_past_its_end_is_expired_and_never_called(node: Node) -> None:
    gate = Gate()

    async with serving(gate) as target, executing(node.executor(max_calls_per_host=1)):
        [first] = await node.submit(target)
        await until(lambda: _is(gate.inside == 1))
        [second] = await node.submit(target, expires_in=0.2)
        await until(lambda: _is_expired(node, 0.25, second))
        gate.opened.set()
        await until(lambda: is_all(node, [second], TaskState.EXPIRED))
        await until(lambda: is_all(node, [first], TaskState.SUCCEEDED))

    assert len(target.received) == 1


async def _is_expired(node: Node, seconds: float, task: uuid.UUID) -> bool:
    rows = await node.database.fetch(
        "SELECT clock_timestamp() > created_at + $1::interval FROM task WHERE id = $2", timedelta(seconds=seconds), task
    )
    return bool(rows[0][0])


async def test_a_task_that_a_dead_holder_had_is_announced_before_it_is_called(node: Node) -> None:
    announced: list[bool] = []

    async def handle(visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            rows = await node.database.fetch(
                "SELECT $1::uuid = ANY (running) FROM holder WHERE ended_at IS NULL AND name LIKE 'executor-%'", task
            )
            announced.append(rows[0][0])
            await visitor.answer()

    async with serving(handle) as target:
        [task] = await node.submit(target)
        holder = await node.holders.register(0, "dead")
        ask = Ask(holder, tenant=None, kind=Kind.PUSH, queues=None, tags=frozenset(), room=1)
        [leased] = await node.feeder.lease(ask, 5.0)
        await node.holders.beat(0, "dead", [Named(task, leased.number, started=True)])
        rows = await node.database.fetch("SELECT beats FROM holder WHERE id = $1", holder)
        await end_silent_holders(node.database, node.holders, [(holder, rows[0]["beats"])])
        await sweep_left_behind(node.database, node.onward)

        async with executing(node.executor()):
            await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

    assert announced == [True]
    assert await node.outcomes(task) == ["lapsed", "succeeded"]


class LateFeeder:
    """A feeder whose first answer with tasks arrives late."""

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self.claimed: list[LeasedTask] = []
        self.has_claimed = asyncio.Event()
        self.may_arrive = asyncio.Event()

    async def lease(self, ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        tasks = await self._feeder.lease(ask, wait_seconds)
        if tasks and not self.claimed:
            self.claimed = tasks
            self.has_claimed.set()
            await self.may_arrive.wait()
        return tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feeder, name)


async def test_what_was_released_before_the_answer_to_a_claim_arrived_is_not_called(node: Node) -> None:
    called: list[str] = []

    async def handle(visitor: Visitor) -> None:
        while (request := await visitor.read_request()) is not None:
            called.append(request.headers["webhook-id"])
            await visitor.answer()

    late = LateFeeder(node.feeder)
    async with serving(handle) as target, executing(node.executor(feeder=late)):
        [task] = await node.submit(target)
        await late.has_claimed.wait()
        # Its own beats do not name it.
        holder = await node.holders.register(0, "heir")
        ask = Ask(holder, tenant=None, kind=Kind.PUSH, queues=None, tags=frozenset(), room=1)
        [leased] = await node.feeder.lease(ask, 20.0)
        assert (leased.id, leased.number) == (task, 2)
        late.may_arrive.set()
        [marker] = await node.submit(target)
        await until(lambda: is_all(node, [marker], TaskState.SUCCEEDED))

    assert called == [str(marker)]
    assert await node.outcomes(task) == ["released"]


async def test_stopping_lets_calls_end_and_gives_back_what_waits(node: Node) -> None:
    gate = Gate()
    executor = node.executor(max_calls_per_host=1)
    running = asyncio.create_task(executor.run())

    async with serving(gate) as target:
        tasks = await node.submit(target, 3)
        await until(lambda: _is(gate.inside == 1))
        stopping = asyncio.create_task(executor.stop(20.0))
        await until(lambda: has_released(node, 2))
        gate.opened.set()
        await stopping
        await running

    assert sorted(str(state) for state in await node.states(tasks)) == ["ready", "ready", "succeeded"]
    assert len(target.received) == 1
    rows = await node.database.fetch("SELECT ended_at FROM holder WHERE name = $1", executor.name)
    assert rows[0]["ended_at"] is not None


async def has_released(node: Node, count: int) -> bool:
    rows = await node.database.fetch("SELECT FROM attempt WHERE outcome = $1", int(Outcome.RELEASED))
    return len(rows) >= count


async def test_stopping_gives_back_calls_that_do_not_end_in_time_and_they_are_tried_again_at_once(node: Node) -> None:
    gate = Gate()
    executor = node.executor()
    running = asyncio.create_task(executor.run())

    async with serving(gate) as target:
        [task] = await node.submit(target, retry=RetryPolicy(max_attempts=1))
        await until(lambda: _is(gate.inside == 1))
        await executor.stop(0.01)
        await running
        await until(lambda: _is(gate.aborted == 1))
        assert await node.outcomes(task) == ["released"]

        gate.opened.set()
        async with executing(node.executor()):
            await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

    rows = await node.database.fetch("SELECT detail FROM attempt WHERE task = $1 AND number = 1", task)
    assert msgspec.json.decode(rows[0]["detail"])["error"]["message"] == "the executor is shutting down"


async def test_an_executor_that_was_ended_by_mistake_drops_its_calls_and_begins_anew(node: Node) -> None:
    gate = Gate()

    async with serving(gate) as target, executing(node.executor()) as executor:
        [task] = await node.submit(target)
        await until(lambda: _is(gate.inside == 1))
        await node.database.execute("UPDATE holder SET ended_at = clock_timestamp() WHERE name = $1", executor.name)
        await until(lambda: _is(gate.aborted == 1))
        gate.opened.set()
        await sweep_left_behind(node.database, node.onward)
        await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

    assert (await node.outcomes(task))[-1] == "succeeded"
    assert len(target.received) == 2


async def test_a_target_that_is_none_is_a_dead_letter(node: Node) -> None:
    async with executing(node.executor()):
        [task] = await node.submit("http://user:secret@127.0.0.1/")
        await until(lambda: is_all(node, [task], TaskState.DEAD))


async def test_an_executor_that_is_retired_begins_nothing_and_reports_what_it_began(node: Node) -> None:
    gate = Gate()
    async with serving(gate) as target:
        executor = node.executor(max_calls_per_host=1)
        async with executing(executor):
            begun, waiting = await node.submit(target, 2)
            await until(lambda: _true_of(gate.inside == 1))

            executor.retire()
            following = node.executor(max_calls=1)
            executor.report_to(node.feeder, node.holders, node.settler, node.database.clock)
            stopping = asyncio.create_task(executor.stop(None))
            assert not await is_all(node, [begun], TaskState.SUCCEEDED)
            assert not stopping.done()
            gate.opened.set()
            await stopping
            assert await node.states([begun]) == [TaskState.SUCCEEDED]
            # What was not begun is released, and another executor has it.
            async with executing(following):
                await until(lambda: is_all(node, [waiting], TaskState.SUCCEEDED))

    assert await node.outcomes(begun) == ["succeeded"]
    assert gate.most == 1


async def test_calls_of_a_retired_executor_take_the_room_of_the_next_one(node: Node) -> None:
    gate = Gate()
    async with serving(gate) as target:
        former = node.executor()
        async with executing(former):
            await node.submit(target, 2)
            await until(lambda: _true_of(gate.inside == 2))
            former.retire()
            former.report_to(node.feeder, node.holders, node.settler, node.database.clock)
            async with executing(node.executor(max_calls=3, beside=lambda: former.calls)):
                tasks = await node.submit(target, 5)
                await until(lambda: _true_of(gate.inside == 3))
                gate.opened.set()
                await until(lambda: is_all(node, tasks, TaskState.SUCCEEDED))

    assert gate.most == 3


async def test_an_executor_without_room_takes_tasks_when_the_calls_of_a_retired_one_have_ended(node: Node) -> None:
    gate = Gate()
    async with serving(gate) as target:
        former = node.executor(max_calls=1)
        async with executing(former):
            await node.submit(target, 1)
            await until(lambda: _true_of(gate.inside == 1))
            former.retire()
            former.report_to(node.feeder, node.holders, node.settler, node.database.clock)
            looks = 0

            def beside() -> int:
                nonlocal looks
                looks += 1
                return former.calls

            async with executing(node.executor(max_calls=1, beside=beside)):
                await until(lambda: _true_of(looks > 0))
                [task] = await node.submit(target, 1)
                gate.opened.set()
                await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

    assert gate.most == 1


async def _true_of(holds: bool) -> bool:
    return holds
