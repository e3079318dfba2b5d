"""What the API does when too much is asked of it at once: it refuses before it has done anything."""

import asyncio
from collections.abc import Iterable

import asyncpg
import pytest

from api.client import Api, Reply, until
from duetime.api.server.bounds import Bodies, ClientGoneError, HeldBody, OpenPolls
from duetime.api.workers import operations
from duetime.errors import Overloaded, TooLarge
from duetime.lifecycle.admission import pressure
from duetime.lifecycle.admission.pressure import MARKS, Mark
from duetime.long_work import LONG_BYTES
from duetime.model.task import PriorityClass

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATER = {"type": "a", "delay": "1h"}
LARGE = 1 << 20


async def test_when_the_database_stalls_low_is_refused_and_what_was_accepted_is_stored(
    api: Api, module_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.submit(delay="1h")
    await api.submit(delay="1h", priority="low")
    monkeypatch.setitem(MARKS, PriorityClass.LOW, Mark(1e9, 1, 1 << 40))
    monkeypatch.setattr(pressure, "CALM_SECONDS", 0.0)
    submitter = api.serving.app.express._tasks.submitter
    other = await asyncpg.connect(module_url)
    lock = other.transaction()
    await lock.start()
    await other.execute("LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE")
    calls: list[asyncio.Task[Reply]] = []

    async def is_behind() -> bool:
        # Some are on their way to the database; behind them the next ones wait.
        calls.append(asyncio.create_task(api.post("/v1/tasks", LATER)))
        return submitter.backlog.weight >= 1

    await until(is_behind)
    low = await api.post("/v1/tasks", LATER | {"priority": "low"})
    mixed = await api.post("/v1/tasks/batch", [LATER, LATER | {"priority": "low"}])
    calls.append(asyncio.create_task(api.post("/v1/tasks", LATER)))
    await lock.rollback()
    await other.close()

    assert {(await call).status for call in calls} == {202}
    for refused in (low, mixed):
        assert (refused.status, refused.json["code"]) == (429, "overloaded")
        assert int(refused.headers["Retry-After"]) >= 1
    assert (await api.post("/v1/tasks", LATER | {"priority": "low"})).status == 202
    assert await api.stored() == 3 + len(calls)


async def test_so_many_workers_of_a_tenant_wait_and_no_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = api.serving.app._workers.polls
    monkeypatch.setattr(polls, "_most_per_tenant", 1)
    waiting = asyncio.create_task(api.lease("first"))

    async def is_waiting() -> bool:
        return api.tenant in polls._waiting

    await until(is_waiting)
    refused = await api.post("/v1/workers/lease", {"worker": "second", "wait": 5})
    stranger = await api.serving.tenant(f"{api.tenant_name}-stranger")
    assert await stranger.lease(wait=0) == []
    await api.submit()

    assert (refused.status, refused.json["code"], refused.headers["Retry-After"]) == (429, "overloaded", "5")
    assert len(await waiting) == 1
    assert polls._waiting == {}


async def test_a_node_has_so_many_polls_and_no_more() -> None:
    polls = OpenPolls(most=2, most_per_tenant=2)
    with polls.wait(1), polls.wait(2), pytest.raises(Overloaded), polls.wait(3):
        pass
    with polls.wait(3):
        pass


def messages(*parts: bytes, end: bool = True) -> Iterable[dict[str, object]]:
    for place, part in enumerate(parts):
        yield {"type": "http.request", "body": part, "more_body": not end or place < len(parts) - 1}


async def read(
    bodies: Bodies, sent: Iterable[dict[str, object]], limit: int = LARGE, tenant: int = 1, *, is_vital: bool = False
) -> tuple[int, HeldBody]:
    """The size of a body, and what counts until its request is answered."""
    given = iter(sent)

    async def receive() -> dict[str, object]:
        message = next(given, None)
        if message is None:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")
        return message

    held = bodies.of(tenant, is_vital=is_vital)
    try:
        return len(await held.read({}, receive, limit)), held
    except BaseException:
        held.let_go()
        raise


async def test_bodies_count_from_their_first_byte_until_their_request_is_answered() -> None:
    bodies = Bodies(most=5 * LONG_BYTES)
    stuck = asyncio.create_task(read(bodies, messages(b"x" * 4 * LONG_BYTES, end=False)))
    await asyncio.sleep(0)

    size, held = await read(bodies, messages(b"y" * 2 * LONG_BYTES))
    assert size == 2 * LONG_BYTES
    with pytest.raises(Overloaded):
        await read(bodies, messages(b"y" * 2 * LONG_BYTES, b"z"))
    # A small one, as a worker's beat, is read all the same.
    _, small = await read(bodies, messages(b"y" * 500, b"z" * 400))
    small.let_go()
    held.let_go()
    stuck.cancel()
    await asyncio.wait([stuck])
    size, held = await read(bodies, messages(b"y" * 4 * LONG_BYTES, b"z" * 4 * LONG_BYTES))
    assert size == 8 * LONG_BYTES
    held.let_go()
    with pytest.raises(TooLarge):
        await read(bodies, messages(b"y" * 40, b"z" * 40), limit=79)
    with pytest.raises(ClientGoneError):
        await read(bodies, [*messages(b"y", end=False), {"type": "http.disconnect"}])
    assert bodies.bytes == 0
    assert bodies._tenants == {}


async def test_bodies_of_a_tenant_have_a_bound_that_leaves_room_to_others() -> None:
    bodies = Bodies(most_per_tenant=3 * LONG_BYTES)
    await read(bodies, messages(b"x" * 4 * LONG_BYTES))

    with pytest.raises(Overloaded, match="of the tenant"):
        await read(bodies, messages(b"y" * 2 * LONG_BYTES, b"z"))
    assert (await read(bodies, messages(b"y" * 2 * LONG_BYTES, b"z"), tenant=2))[0] == 2 * LONG_BYTES + 1
    # Without their beats the tenant's workers would count as dead.
    assert operations.BEAT.is_vital
    assert (await read(bodies, messages(b"y" * 2 * LONG_BYTES, b"z"), is_vital=True))[0] == 2 * LONG_BYTES + 1
