"""Tasks one by one: shared commits, in order of priority, and each caller told what came of its own."""

import asyncio
import math
import uuid
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from duetime.database import gather
from duetime.errors import IdempotencyConflict, InvalidInput, Unavailable
from duetime.ids import due_ms_of, lane_of
from duetime.lifecycle.submission import minting, submitter
from duetime.lifecycle.submission.batch import Submission, Submitted
from duetime.lifecycle.submission.handover import Reservation
from duetime.lifecycle.submission.submitter import MAX_SMALL_ROWS_PER_COMMIT, Submitter
from duetime.model.task import LeasedTask, NewTask, PriorityClass
from duetime.sdk.uuid7 import make_uuid7
from engine import Engine, submitted


async def commits(engine: Engine) -> int:
    """How many transactions stored what is there."""
    rows = await engine.database.fetch("SELECT count(DISTINCT xmin::text) AS n FROM task")
    count: int = rows[0]["n"]
    return count


async def stored(engine: Engine) -> list[uuid.UUID]:
    return [row["id"] for row in await engine.database.fetch("SELECT id FROM task ORDER BY id")]


class Counter:
    """Where one holder waits, with room for so many in every lane."""

    def __init__(self, holder: int, room: int) -> None:
        self._holder = holder
        self._room = room
        self.handed: list[LeasedTask] = []
        self.is_open = False

    def reserve(self, wanted: Mapping[int, int]) -> Reservation | None:
        self.is_open = True
        places = {lane: [(1, self._holder)] * min(self._room, count) for lane, count in wanted.items()}
        return Reservation({lane: [(None, each)] for lane, each in places.items()}, frozenset({1}))

    def hand_over(self, reservation: Reservation, tasks: Mapping[int, list[LeasedTask]]) -> None:
        self.is_open = False
        self.handed += tasks.get(1, [])


async def test_those_who_come_while_one_is_stored_share_a_commit(engine: Engine) -> None:
    await engine.submit()

    answers = await asyncio.gather(*[engine.submit() for _ in range(50)])

    ids = [identifier for [identifier] in answers]
    assert len(set(ids)) == 50
    assert len(await stored(engine)) == 51
    assert set(ids) < set(await stored(engine))
    assert {leased.id for leased in await engine.claim()} == set(await stored(engine))
    # That of the first, and one more.
    assert await commits(engine) == 2


async def test_each_lane_and_type_is_kept(engine: Engine) -> None:
    tasks = [
        msgspec.structs.replace(engine.new_task(b"%d" % number, queue=f"q{number % 3}"), type=f"t{number % 2}")
        for number in range(12)
    ]

    answers = await asyncio.gather(*[engine.submitter.submit([task]) for task in tasks])

    found = {row["id"]: row for row in await engine.database.fetch("SELECT id, lane, type, payload FROM task")}
    for task, [answer] in zip(tasks, answers, strict=True):
        row = found[submitted(answer)]
        assert (row["type"], row["payload"]) == (task.type, task.payload)
        assert row["lane"] == lane_of(row["id"]) == engine.lanes.find(task.lane)
    assert {lane_of(wake) for wake in engine.woken} == {row["lane"] for row in found.values()}


async def test_when_many_wait_the_important_go_first_behind_the_oldest(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitter, "MAX_SMALL_ROWS_PER_COMMIT", 3)
    monkeypatch.setattr(submitter, "SMALL_AT_ONCE", 1)
    submitting = Submitter(engine.database, engine.lanes, engine.partitions, engine.woken.extend)
    order: list[str] = []

    def task(priority: PriorityClass) -> NewTask:
        new = engine.new_task()
        return msgspec.structs.replace(new, lane=msgspec.structs.replace(new.lane, priority=priority))

    lanes = {each: await engine.lanes.ensure(task(each).lane) for each in PriorityClass}
    low, critical = PriorityClass.LOW, PriorityClass.CRITICAL
    # They all wait when the first commit begins.
    for number, priority in enumerate([low, low, low, low, low, critical, critical]):
        name = f"{priority.word}{number}"
        submitting.submit_soon(task(priority), lanes[priority], lambda _, name=name: order.append(name))  # type: ignore[misc]
    assert submitting.backlog.weight == 7
    await submitting.close()
    await asyncio.sleep(0)

    assert order[:3] == ["low0", "critical5", "critical6"]
    assert order[3:] == ["low1", "low2", "low3", "low4"]
    assert submitting.backlog == (0, 0, 0.0)


def only_answer(answers: Sequence[Submission] | BaseException) -> Submission | BaseException:
    """What a caller of a single task was told."""
    return answers if isinstance(answers, BaseException) else answers[0]


async def submit_named(
    engine: Engine,
    request: uuid.UUID | None,
    fingerprint: bytes = b"f",
    *,
    payload: bytes = b"{}",
    by: Submitter | None = None,
) -> Submission | BaseException:
    """One task under its request's key, as the API's short way submits it."""
    submitting = by or engine.submitter
    lane = await engine.lanes.ensure(engine.lane_key())
    told: asyncio.Future[Sequence[Submission] | BaseException] = asyncio.get_running_loop().create_future()
    submitting.submit_soon(engine.new_task(payload), lane, told.set_result, request, fingerprint)
    return only_answer(await told)


class Commits:
    """Holds up every commit until it is let go."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._engine = engine
        self._run = engine.database.run_with
        self._held: list[asyncio.Event] = []
        self._asked: list[asyncio.Future[list[uuid.UUID]]] = []
        monkeypatch.setattr(engine.database, "run_with", self._hold_up)

    async def _hold_up(self, *arguments: object, **options: object) -> object:
        may_go_on = asyncio.Event()
        self._held.append(may_go_on)
        await may_go_on.wait()
        return await self._run(*arguments, **options)  # type: ignore[arg-type]

    async def ask(self, count: int) -> int:
        """Submit so many; returns how many commits began so far."""
        self._asked += [asyncio.ensure_future(self._engine.submit()) for _ in range(count)]
        for _ in range(10):
            await asyncio.sleep(0)
        return len(self._held)

    async def end(self, commit: int) -> int:
        """Let one end, and wait for those whose tasks it stores; returns the same."""
        before = sum(each.done() for each in self._asked)
        self._held[commit].set()
        while sum(each.done() for each in self._asked) == before:
            await asyncio.sleep(0)
        return await self.ask(0)

    async def end_all(self) -> None:
        while not all(each.done() for each in self._asked):
            for each in self._held:
                each.set()
            await asyncio.sleep(0)
        await asyncio.gather(*self._asked)


async def test_a_second_commit_is_made_beside_the_first_when_as_many_wait(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "LATE_SECONDS", math.inf)
    await engine.submit()
    held = Commits(engine, monkeypatch)

    assert await held.ask(3) == 1
    assert await held.ask(2) == 1
    assert await held.ask(1) == 2
    # Not more than two, however many wait.
    assert await held.ask(6) == 2

    await held.end_all()
    assert len(await stored(engine)) == 13


async def test_who_comes_when_a_commit_is_done_waits_for_as_many_as_the_other_has(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "LATE_SECONDS", math.inf)
    await engine.submit()
    held = Commits(engine, monkeypatch)
    assert await held.ask(3) == 1
    assert await held.ask(3) == 2
    assert await held.ask(1) == 2

    # One waits, and three are being committed: it goes when they are done.
    assert await held.end(0) == 2
    assert await held.end(1) == 3

    await held.end_all()
    assert await commits(engine) == 4


async def test_who_comes_while_a_commit_takes_long_goes_beside_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "LATE_SECONDS", -1.0)
    await engine.submit()
    held = Commits(engine, monkeypatch)

    assert await held.ask(3) == 1
    assert await held.ask(1) == 2

    await held.end_all()
    assert len(await stored(engine)) == 5


async def test_a_commit_holds_so_many_at_most(engine: Engine) -> None:
    await asyncio.gather(*[engine.submit() for _ in range(2 * MAX_SMALL_ROWS_PER_COMMIT + 2)])

    rows = await engine.database.fetch("SELECT count(*) AS n FROM task GROUP BY xmin::text")
    assert max(row["n"] for row in rows) <= MAX_SMALL_ROWS_PER_COMMIT
    assert sum(row["n"] for row in rows) == 2 * MAX_SMALL_ROWS_PER_COMMIT + 2


async def test_a_waiting_holder_gets_what_it_has_room_for_with_the_commit(engine: Engine) -> None:
    holder = await engine.holders.register(engine.tenant, "w")
    counter = Counter(holder, room=2)
    submitting = Submitter(engine.database, engine.lanes, engine.partitions, engine.woken.extend, holders=counter)
    lane = await engine.lanes.ensure(engine.lane_key())
    answers: list[Sequence[Submission] | BaseException] = []
    for number in range(3):
        submitting.submit_soon(engine.new_task(b"%d" % number), lane, answers.append)
    await submitting.close()
    await asyncio.sleep(0)

    ids = [submitted(only_answer(answer)) for answer in answers]
    # Room is given to the first.
    assert [(leased.id, leased.payload, leased.holder) for leased in counter.handed] == [
        (ids[0], b"0", holder),
        (ids[1], b"1", holder),
    ]
    assert [leased.id for leased in await engine.claim("other")] == [ids[2]]
    assert engine.woken == [ids[2]]
    assert (await engine.settle(counter.handed)).settled == ids[:2]
    assert not counter.is_open


async def test_room_is_given_back_when_nothing_could_be_stored(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(await engine.holders.register(engine.tenant, "w"), room=1)
    submitting = Submitter(engine.database, engine.lanes, engine.partitions, engine.woken.extend, holders=counter)

    async def away(*_: object, **__: object) -> None:
        raise Unavailable("away")

    await engine.lanes.ensure(engine.lane_key())
    monkeypatch.setattr(engine.database, "run_with", away)
    with pytest.raises(Unavailable):
        await submitting.submit([engine.new_task()])

    assert not counter.is_open
    assert counter.handed == []


async def test_those_with_the_key_of_their_request_share_a_commit_with_others(engine: Engine) -> None:
    await engine.submit()
    requests = [None, *[make_uuid7() for _ in range(8)], None]
    payloads = [b"%d" % place for place in range(10)]

    answers = await asyncio.gather(
        *[submit_named(engine, request, payload=each) for request, each in zip(requests, payloads, strict=True)]
    )

    ids = [submitted(answer) for answer in answers]
    assert await commits(engine) == 2
    rows = await engine.database.fetch("SELECT id, payload FROM task")
    found = {row["id"]: row["payload"] for row in rows}
    assert [found[identifier] for identifier in ids] == payloads
    kept = await engine.database.fetch("SELECT tasks, tenant, fingerprint FROM request_key")
    assert {row["tasks"] for row in kept} == {identifier.bytes for identifier in ids[1:-1]}
    assert {(row["tenant"], row["fingerprint"]) for row in kept} == {(engine.tenant, b"f")}


async def test_who_repeats_a_request_gets_its_task_and_holds_nobody_up(engine: Engine) -> None:
    old, new = make_uuid7(), make_uuid7()
    first = await submit_named(engine, old)

    repeated, fresh, bare = await asyncio.gather(
        submit_named(engine, old), submit_named(engine, new), submit_named(engine, None)
    )

    assert isinstance(repeated, Submitted)
    assert (repeated.id, repeated.is_new) == (submitted(first), False)
    assert isinstance(await submit_named(engine, old, b"another body"), IdempotencyConflict)
    assert await stored(engine) == sorted([submitted(first), submitted(fresh), submitted(bare)])
    # The others were stored with the first try.
    assert await commits(engine) == 2
    assert sorted(leased.id for leased in await engine.claim()) == await stored(engine)


async def test_two_calls_of_one_request_are_one_task(engine: Engine) -> None:
    request = make_uuid7()

    answers = await asyncio.gather(*[submit_named(engine, request) for _ in range(5)])

    assert {submitted(answer) for answer in answers} == set(await stored(engine))
    assert sum(isinstance(answer, Submitted) and answer.is_new for answer in answers) == 1
    assert len(await stored(engine)) == 1


async def test_a_repeated_request_is_handed_to_nobody(engine: Engine) -> None:
    holder = await engine.holders.register(engine.tenant, "w")
    old, new = make_uuid7(), make_uuid7()
    first = await submit_named(engine, old)
    counter = Counter(holder, room=5)
    submitting = Submitter(engine.database, engine.lanes, engine.partitions, engine.woken.extend, holders=counter)

    repeated, fresh = await asyncio.gather(
        submit_named(engine, old, by=submitting), submit_named(engine, new, by=submitting)
    )

    assert submitted(repeated) == submitted(first)
    assert [leased.id for leased in counter.handed] == [submitted(fresh)]
    assert not counter.is_open
    assert (await engine.settle(counter.handed)).settled == [submitted(fresh)]


async def test_an_id_that_is_taken_is_minted_anew(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    [taken] = await engine.submit()
    make_row, rows = minting.make_row, [[taken]]
    monkeypatch.setattr(minting, "make_row", lambda *slots: rows.pop() if rows else make_row(*slots))

    [task] = await engine.submit()

    assert task != taken
    assert due_ms_of(task) >= due_ms_of(taken)
    assert await stored(engine) == sorted([taken, task])


async def test_what_the_database_refuses_fails_alone(engine: Engine) -> None:
    good, bad = engine.new_task(), msgspec.structs.replace(engine.new_task(), type="a\x00b")

    answers = await asyncio.gather(
        *[engine.submitter.submit([task]) for task in (good, bad, good)], return_exceptions=True
    )

    assert isinstance(answers[1], InvalidInput)
    assert [isinstance(answer, list) and isinstance(answer[0], Submitted) for answer in answers] == [True, False, True]
    assert len(await stored(engine)) == 2


async def test_a_caller_that_fails_or_is_gone_harms_nobody(engine: Engine) -> None:
    lane = await engine.lanes.ensure(engine.lane_key())
    seen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["message"]))
    answers: list[Sequence[Submission] | BaseException] = []

    def fail(_: Sequence[Submission] | BaseException) -> None:
        raise ValueError("the caller's own")

    gone = asyncio.ensure_future(engine.submit())
    await asyncio.sleep(0)
    engine.submitter.submit_soon(engine.new_task(), lane, fail)
    engine.submitter.submit_soon(engine.new_task(), lane, answers.append)
    gone.cancel()
    await engine.submitter.close()
    await asyncio.sleep(0)

    assert seen == ["a caller could not be answered after its commit"]
    assert len(answers) == 1
    assert len(await stored(engine)) == 3


async def test_one_that_comes_alone_is_stored_like_those_that_come_together(engine: Engine) -> None:
    [[lone]] = [await engine.submit()]
    pair = [identifier for [identifier] in await asyncio.gather(engine.submit(), engine.submit())]

    rows = {
        row["id"]: tuple(row.values())[2:]
        for row in await engine.database.fetch(
            "SELECT id, created_at, lane, type, payload, options, labels, expires_at, run_at = created_at AS is_now,"
            "       created_at = to_timestamp(due_ms(id) / 1000.0) AS is_minted, number, failures, home,"
            "       wake = id AS is_first"
            "  FROM task JOIN due USING (lane) WHERE due.task = task.id"
        )
    }

    assert rows[lone] == rows[pair[0]] == rows[pair[1]]
    assert {lane_of(wake) for wake in engine.woken} == {lane_of(lone)}


async def test_one_that_comes_alone_with_an_id_that_is_too_old_is_stored_under_another(engine: Engine) -> None:
    await engine.submit()
    clock = engine.database.clock
    behind = clock.now_ms() - 60_000
    original = clock.now_ms
    asked: list[int] = []

    def now_ms() -> int:
        asked.append(1)
        return behind if len(asked) == 1 else original()

    clock.now_ms = now_ms  # type: ignore[method-assign]
    try:
        [identifier] = await engine.submit()
    finally:
        clock.now_ms = original  # type: ignore[method-assign]

    assert due_ms_of(identifier) > behind + 50_000
    assert identifier in await stored(engine)
