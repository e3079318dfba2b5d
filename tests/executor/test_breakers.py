"""What the executor tells breakers of targets that fail, are overloaded, are well, or were never called."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from duetime.database.pool import Database
from duetime.executor.messages import NoResponse, Response, Timings
from duetime.executor.target_health import TargetHealth, health_of
from duetime.http1.messages import Reason
from duetime.model.breaker_config import BreakerConfig
from duetime.model.breaker_status import Ending
from duetime.model.gates import encode_gate
from duetime.model.retry import RetryPolicy
from duetime.model.task import LeasedTask
from duetime.scheduler.rulebook import Book
from executor.targets import Handler, Visitor, answer_everything, serving
from executor.test_executor import Gate, Node, executing

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ONCE = RetryPolicy(max_attempts=1)
HASTY = BreakerConfig(sustained_ms=0)


def answer(status: int, *headers: tuple[bytes, bytes]) -> Response:
    return Response(status, headers, b"", False, Timings(1.0, False))


@pytest.mark.parametrize("status", [200, 204, 301, 400, 404, 408, 422, 425])
def test_a_target_that_answers_is_well(status: int) -> None:
    assert health_of(answer(status), NOW).ending == "ok"


@pytest.mark.parametrize("status", [500, 501, 502, 504, 599])
def test_a_target_that_fails_is_not(status: int) -> None:
    assert health_of(answer(status), NOW) == TargetHealth("failed", None, f"it answered {status}")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [(b"120", 120.0), (format_datetime(datetime(2030, 1, 1, 0, 0, 9, tzinfo=UTC)).encode(), 9.0), (b"soon", None)],
)
def test_an_overloaded_target_says_when_it_wants_more(status: int, header: bytes, seconds: float | None) -> None:
    found = health_of(answer(status, (b"server", b"x"), (b"retry-after", header)), NOW)
    assert found == TargetHealth("overloaded", seconds, f"it answered {status}")
    assert health_of(answer(status), NOW).retry_after is None


@pytest.mark.parametrize("reason", Reason)
def test_no_answer_is_a_failure_unless_the_call_was_not_allowed(reason: Reason) -> None:
    found = health_of(NoResponse(reason, "no connection", Timings(1.0, False)), NOW)
    assert found.ending == ("abandoned" if reason in (Reason.REFUSED, Reason.INTERNAL) else "failed")
    assert found.ending == "abandoned" or found.detail == "no connection"


class Reporting(Node):
    """A node whose executor tells its breakers."""

    def __init__(self, database: Database, config: BreakerConfig = HASTY) -> None:
        super().__init__(database, config)
        self.heard: list[tuple[Ending, float | None, str]] = []
        self._news = asyncio.Event()

    def report(self, task: LeasedTask, ending: Ending, retry_after: float | None, detail: str) -> None:
        self.heard.append((ending, retry_after, detail))
        self.breakers.report(task, ending, retry_after, detail)
        self._news.set()

    async def hears(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._news.clear()
                await self._news.wait()


@pytest.fixture
async def node(database: Database) -> AsyncIterator[Reporting]:
    started = Reporting(database)
    await started.start()
    yield started
    await started.stop()


def saying(status: int, **headers: str) -> Handler:
    async def answer_so(visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            await visitor.answer(status, **headers)

    return answer_so


async def test_a_503_with_retry_after_slows_its_target_at_once(node: Reporting) -> None:
    async with serving(saying(503, Retry_After="30")) as target, executing(node.executor(tell_health=node.report)):
        await node.submit(target, retry=ONCE)
        await node.hears(lambda: bool(node.heard))

        assert node.heard == [("overloaded", 30.0, "it answered 503")]
        [seen] = node.breakers.states(node.tenant)
        assert (seen.host, seen.state, seen.allowed_rate) == (f"127.0.0.1:{target.port}", "slowed", 0.0)
        assert seen.next_probe_ms is not None
        assert 29_000 < seen.next_probe_ms - node.database.clock.now_ms() <= 30_000


async def test_failures_open_the_breaker_of_their_host_alone(node: Reporting) -> None:
    async with (
        serving(saying(500)) as broken,
        serving(answer_everything) as well,
        executing(node.executor(tell_health=node.report)),
    ):
        await node.submit(well, 5)
        await node.submit(broken, 25, retry=ONCE)
        await node.hears(lambda: len(node.heard) == 30)

        [seen] = node.breakers.states(node.tenant)
        assert (seen.host, seen.state, seen.allowed_rate) == (f"127.0.0.1:{broken.port}", "open", 0.0)
        assert seen.reason.endswith("; the last: it answered 500")
        assert [ending for ending, _, _ in node.heard].count("ok") == 5


async def test_a_connection_that_is_refused_is_a_failure_and_an_address_that_is_not_allowed_is_none(
    node: Reporting,
) -> None:
    async with serving(answer_everything) as target:
        gone = target.url
    async with executing(node.executor(tell_health=node.report)):
        await node.submit(gone, retry=ONCE)
        await node.submit("http://10.0.0.1/", retry=ONCE)
        await node.hears(lambda: len(node.heard) == 2)
    assert sorted(ending for ending, _, _ in node.heard) == ["abandoned", "failed"]


async def test_every_task_that_was_taken_is_told_once_however_it_ends(node: Reporting) -> None:
    gate = Gate()
    async with serving(gate) as target:
        executor = node.executor(max_calls=8, max_calls_per_host=2, tell_health=node.report)
        async with executing(executor):
            tasks = await node.submit(target, 3)
            async with asyncio.timeout(10):
                while gate.inside < 2:
                    await asyncio.sleep(0.005)
            await node.steering.cancel([tasks[0]])
            await node.hears(lambda: bool(node.heard))
        # Two were cancelled or broken off, the third came to nothing.
    endings = sorted(ending for ending, _, _ in node.heard)
    assert endings in (["abandoned", "abandoned", "returned"], ["abandoned", "abandoned", "abandoned"])


async def test_a_flood_at_a_host_that_is_new_reaches_it_step_by_step(database: Database) -> None:
    node = Reporting(database, BreakerConfig(ramp_rate=10.0, ramp_doubles_ms=100, ramp_free_rate=80.0))
    await node.start()
    await node.feeder.limit(Book(slowed=node.breakers.is_slowed, has_slowed=node.breakers.has_slowed))
    try:
        async with serving(answer_everything) as target, executing(node.executor(tell_health=node.report)):
            host = f"127.0.0.1:{target.port}"
            await node.submit(target, 60)
            await node.hears(lambda: len(node.heard) >= 60)

            # What it had no room for at first was parked, and it has had its calls without anybody's help.
            gates = await database.fetch("SELECT gate FROM lane WHERE gate <> ''")
            assert [row["gate"] for row in gates] == [encode_gate((("host", host, ""),))]
            assert [ending for ending, _, _ in node.heard] == ["ok"] * 60
            async with asyncio.timeout(10):
                # A claim under way has reserved calls, until it finds that nothing waits any more.
                while node.breakers.of(node.tenant, host).in_flight:
                    await asyncio.sleep(0.005)
            node.breakers.obey({})
            assert not node.breakers.has_slowed(node.tenant)
    finally:
        await node.stop()
