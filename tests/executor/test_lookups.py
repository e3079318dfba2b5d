"""What one tenant looks up, how slowly and how often, is nothing to any other tenant."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from duetime.admin.tenants import create_tenant
from duetime.database.pool import Database
from duetime.executor.egress import Guard, UnresolvableError, read_networks
from duetime.executor.http import HttpClient
from duetime.executor.resolver import Address
from duetime.model.retry import RetryPolicy
from duetime.model.task import TaskState
from executor.name_server import NameServer, name_server
from executor.targets import answer_everything, serving
from executor.test_executor import Node, executing, is_all, until

LOOPBACK = read_networks(["127.0.0.0/8"])


class Names:
    """A resolver that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered: dict[str, asyncio.Future[str]] = {}

    async def resolve(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        answer = self.answered.setdefault(host, asyncio.get_running_loop().create_future())
        return [Address(socket.AF_INET, await answer)]

    def answer(self, host: str, ip: str = "8.8.8.8") -> None:
        self.answered[host].set_result(ip)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_tenant_has_so_many_look_ups_at_once_and_no_other_waits_for_it() -> None:
    names = Names()
    guard = Guard(resolve=names.resolve, max_lookups=2)
    waiting = [asyncio.create_task(guard.vet(1, f"{name}.example")) for name in "abcd"]
    await turns()
    assert names.asked == ["a.example", "b.example"]
    assert not guard.look_up(1, "d.example")

    other = asyncio.create_task(guard.vet(2, "c.example"))
    await turns()
    assert names.asked == ["a.example", "b.example", "c.example"]

    names.answer("c.example")
    assert await other == (Address(socket.AF_INET, "8.8.8.8"),)
    names.answer("b.example")
    assert await waiting[1] == (Address(socket.AF_INET, "8.8.8.8"),)
    await turns()
    # In order: its own look-up of c, though another tenant has the answer.
    assert names.asked[3:] == ["c.example", "d.example"]
    for task in waiting:
        task.cancel()
    guard.close()


async def test_who_steps_out_of_the_line_is_not_looked_up_for() -> None:
    names = Names()
    guard = Guard(resolve=names.resolve, max_lookups=1)
    tasks = [asyncio.create_task(guard.vet(1, host)) for host in ("a.example", "b.example", "c.example", "c.example")]
    await turns()

    tasks[1].cancel()
    tasks[2].cancel()
    await turns()
    names.answer("a.example")
    await turns()
    names.answer("c.example")

    assert await tasks[3] == (Address(socket.AF_INET, "8.8.8.8"),)
    assert names.asked == ["a.example", "c.example"]
    guard.close()


async def test_a_failure_is_told_to_the_tenant_that_met_with_it_alone_and_soon_forgotten() -> None:
    now = 100.0
    async with name_server({"late.example": ["8.8.8.8"]}, errors={"late.example": 2}) as server:
        guard = Guard(resolve=server.resolver(timeout_seconds=0.2).resolve, monotonic=lambda: now)
        with pytest.raises(UnresolvableError, match="the name server said no"):
            await guard.vet(1, "late.example")
        server.errors.clear()
        asked = len(server.asked)
        with pytest.raises(UnresolvableError):
            await guard.vet(1, "late.example")
        assert len(server.asked) == asked

        assert await guard.vet(2, "late.example") == (Address(socket.AF_INET, "8.8.8.8"),)
        now += 1.0
        assert await guard.vet(1, "late.example") == (Address(socket.AF_INET, "8.8.8.8"),)
        guard.close()


async def test_a_tenant_that_looks_up_very_many_names_forgets_its_own_and_nobody_elses() -> None:
    now = 100.0
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[Address]:
        asked.append(host)
        return [Address(socket.AF_INET, "8.8.8.8")]

    guard = Guard(resolve=resolve, max_remembered=10, monotonic=lambda: now)
    await guard.vet(2, "quiet.example")
    for number in range(50):
        await guard.vet(1, f"{number}.example")

    assert guard.known(2, "quiet.example") is not None
    assert [number for number in range(50) if guard.known(1, f"{number}.example")] == list(range(40, 50))
    # What is over is not kept.
    now += 10.0
    await guard.vet(3, "last.example")
    assert list(guard._answers) == [3]
    guard.close()


async def test_a_written_address_waits_for_no_look_up() -> None:
    names = Names()
    guard = Guard(LOOPBACK, resolve=names.resolve, max_lookups=1)
    hanging = asyncio.create_task(guard.vet(1, "hanging.example"))
    await turns()

    assert await guard.vet(1, "127.0.0.1") == (Address(socket.AF_INET, "127.0.0.1"),)
    hanging.cancel()
    guard.close()


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with name_server({"good.example": ["127.0.0.1"]}) as started:
        yield started


@pytest.fixture
async def node(database: Database) -> AsyncIterator[Node]:
    started = Node(database)
    await started.start()
    yield started
    await started.stop()


async def look_up_with(node: Node, server: NameServer, seconds: float) -> None:
    await node.client.close()
    resolver = server.resolver(timeout_seconds=seconds)
    node.client = HttpClient(Guard(LOOPBACK, resolve=resolver.resolve, timeout_seconds=seconds))


async def test_names_that_nobody_answers_for_keep_no_strangers_task_waiting(node: Node, server: NameServer) -> None:
    await look_up_with(node, server, 60.0)
    attacker, quiet = node.tenant, (await create_tenant(node.database, "quiet")).id

    async with serving(answer_everything) as target, executing(node.executor(max_calls=100)):
        attacks = [task for n in range(60) for task in await node.submit(f"http://silent{n}.example/")]
        await until(lambda: _has_given_back(node, 44))
        node.tenant = quiet
        [task] = await node.submit(f"http://good.example:{target.port}/", retry=RetryPolicy(max_attempts=1))
        await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

        # Sixteen at once; those that waited for their turn were given back, and it cost them nothing.
        assert len({name for name in server.names() if name.startswith("silent")}) == 16
        rows = await node.database.fetch(
            "SELECT failures, crashes, releases FROM due UNION ALL SELECT failures, crashes, releases FROM claim"
        )
        assert [tuple(row) for row in rows] == [(0, 0, 0)] * 60
        assert await node.outcomes(task) == ["succeeded"]
    assert attacker != quiet
    assert len(attacks) == 60


async def _has_given_back(node: Node, count: int) -> bool:
    [row] = await node.database.fetch("SELECT count(*) FROM due WHERE number > 1")
    return bool(row["count"] >= count)


@pytest.mark.parametrize("host", ["silent.example", "unknown.example", "broken.example"])
async def test_a_name_that_is_not_resolved_is_tried_again(node: Node, server: NameServer, host: str) -> None:
    server.errors["broken.example"] = 2
    await look_up_with(node, server, 0.2)

    async with serving(answer_everything) as target, executing(node.executor()):
        [task] = await node.submit(f"http://{host}:{target.port}/", retry=RetryPolicy(min_backoff=1.1))
        await until(lambda: _has_failed(node, 1))
        server.zone[host], server.silent = ["127.0.0.1"], "nothing"
        server.errors.clear()
        await until(lambda: is_all(node, [task], TaskState.SUCCEEDED))

    outcomes = await node.outcomes(task)
    assert (outcomes[0], outcomes[-1]) == ("failed", "succeeded")
    [row] = await node.database.fetch("SELECT detail FROM attempt WHERE task = $1 AND number = 1", task)
    error = msgspec.json.decode(row["detail"])["error"]
    assert (error["kind"], error["detail"]["reason"]) == ("transient", "resolve")


async def _has_failed(node: Node, count: int) -> bool:
    [row] = await node.database.fetch("SELECT count(*) FROM attempt")
    return bool(row["count"] >= count)
