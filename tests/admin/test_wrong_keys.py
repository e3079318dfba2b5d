"""What wrong keys may cost the database, and that they do not lock out right ones."""

import asyncio
from collections.abc import Callable
from typing import cast

import asyncpg
import pytest
from structlog.testing import capture_logs

from duetime.admin import lookups, wrong_keys
from duetime.admin.keyring import IN_USE_SECONDS, Keys
from duetime.admin.keys import create_key, hash_key, is_readable, mint_key, revoke_key
from duetime.admin.tenants import create_tenant
from duetime.database.pool import Database
from duetime.database.statements import Statement
from duetime.errors import TooManyWrongKeys, Unavailable

BAD = "203.0.113.9"
GOOD = "198.51.100.7"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """A database that counts what it is asked, and may be held up or fail."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.batches: list[int] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    async def run(self, statement: Statement, **parameters: object) -> list[asyncpg.Record]:
        self.batches.append(len(cast(list[bytes], parameters["hashes"])))
        rows = await self._database.run(statement, **parameters)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return rows


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counting(database: Database, monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(lookups, "REST_SECONDS", 0.0)
    return Counting(database)


@pytest.fixture
def keys(counting: Counting, clock: Clock) -> Keys:
    return Keys(cast(Database, counting), clock)


def of(peer: str) -> Callable[[], str]:
    return lambda: peer


async def refusals(keys: Keys, attempts: int, peer: str = BAD) -> int:
    """How many of so many attempts with a new wrong key each are refused without a look-up."""
    refused = 0
    for _ in range(attempts):
        try:
            assert await keys.resolve(mint_key(), of(peer)) is None
        except TooManyWrongKeys:
            refused += 1
    return refused


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dt_",
        "dt_wrong",
        "x" * 46,
        "dt_" + "A" * 42,
        "dt_" + "A" * 44,
        "dt_" + "A" * 42 + "B",
        "dt_" + "é" * 43,
        "dt_" + "A" * 42 + "\n",
        "dt_" + "A" * 43 + "\n",
        "DT_" + "A" * 43,
        "dt_" + "A" * 1_000_000,
    ],
)
async def test_what_cannot_be_a_key_is_not_looked_up(keys: Keys, counting: Counting, text: str) -> None:
    assert not is_readable(text)
    assert await keys.resolve(text, of(BAD)) is None
    assert counting.batches == []


def test_every_key_that_is_made_is_readable() -> None:
    assert all(is_readable(mint_key()) for _ in range(1_000))


async def test_a_wrong_key_is_looked_up_once_a_second(keys: Keys, counting: Counting, clock: Clock) -> None:
    wrong = mint_key()

    for _ in range(50):
        assert await keys.resolve(wrong, of(BAD)) is None
    assert counting.batches == [1]

    clock.now += wrong_keys.REMEMBER_SECONDS
    assert await keys.resolve(wrong, of(BAD)) is None
    assert counting.batches == [1, 1]


async def test_a_key_that_was_wrong_works_at_once_where_it_is_made_and_within_a_second_elsewhere(
    database: Database, keys: Keys, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await create_tenant(database, "a")
    later = mint_key()
    elsewhere = Keys(database, clock)
    assert await keys.resolve(later, of(BAD)) is None
    assert await elsewhere.resolve(later, of(BAD)) is None

    monkeypatch.setattr("duetime.admin.keys.mint_key", lambda: later)
    await create_key(database, tenant.id)
    keys.welcome(hash_key(later))

    assert await keys.resolve(later, of(BAD)) is not None
    clock.now += wrong_keys.REMEMBER_SECONDS
    assert await elsewhere.resolve(later, of(BAD)) is not None


async def test_what_is_remembered_of_wrong_keys_and_peers_is_bounded(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrong_keys, "REMEMBER_AT_MOST", 10)
    monkeypatch.setattr(wrong_keys, "PEERS_AT_MOST", 10)

    for number in range(50):
        await keys.resolve(mint_key(), of(f"peer-{number}"))

    assert len(keys._wrong._wrong) == len(keys._wrong._peers) == len(keys._wrong._unreported) == 10


async def test_a_peer_has_an_allowance_of_wrong_keys(keys: Keys, counting: Counting, clock: Clock) -> None:
    assert await refusals(keys, 150) == 50
    assert len(counting.batches) == wrong_keys.BURST
    # Nobody else has to do with it.
    assert await refusals(keys, 50, GOOD) == 0

    clock.now += 1.0

    assert await refusals(keys, 50) == 40


async def test_wrong_keys_that_are_looked_up_together_are_all_charged(
    keys: Keys, counting: Counting, clock: Clock
) -> None:
    for _ in range(5):
        await asyncio.gather(*[keys.resolve(mint_key(), of(BAD)) for _ in range(150)], return_exceptions=True)

    # The first wave overdraws the allowance, and the others find it empty.
    assert counting.batches == [100, 50]
    assert await refusals(keys, 1) == 1
    clock.now += (wrong_keys.MOST_OVERDRAWN + 2) / wrong_keys.PER_SECOND
    assert await refusals(keys, 1) == 0


async def test_right_keys_go_on_beside_wrong_ones_of_the_same_address(
    database: Database, keys: Keys, clock: Clock
) -> None:
    tenant = await create_tenant(database, "a")
    in_use, _ = [(await create_key(database, tenant.id))[1] for _ in range(2)]
    assert await keys.resolve(in_use, of(BAD)) is not None

    assert await refusals(keys, 200) == 100
    # It is remembered, then it was not used for long, then it is looked up all the same.
    assert await keys.resolve(in_use, of(BAD)) is not None
    clock.now += IN_USE_SECONDS
    await keys.refresh()
    await refusals(keys, 200)
    assert keys.recall(hash_key(in_use)) is None
    assert await keys.resolve(in_use, of(BAD)) is not None


async def test_a_key_made_here_is_looked_up_whatever_its_address_has_sent(database: Database, keys: Keys) -> None:
    tenant = await create_tenant(database, "a")
    await refusals(keys, 200)

    _, key = await create_key(database, tenant.id)
    keys.welcome(hash_key(key))

    assert await keys.resolve(key, of(BAD)) is not None


async def test_a_key_that_ended_is_throttled_like_any_wrong_one(database: Database, keys: Keys, clock: Clock) -> None:
    tenant = await create_tenant(database, "a")
    info, key = await create_key(database, tenant.id)
    assert await keys.resolve(key, of(BAD)) is not None
    await revoke_key(database, tenant.id, info.id)
    clock.now += 1.0
    assert await keys.resolve(key, of(BAD)) is None
    await refusals(keys, 200)
    clock.now += 0.05
    await keys.refresh()

    assert await keys.resolve(key, of(BAD)) is None  # Remembered as wrong.
    clock.now += wrong_keys.REMEMBER_SECONDS
    await refusals(keys, 50)
    with pytest.raises(TooManyWrongKeys):
        await keys.resolve(key, of(BAD))


async def test_keys_are_looked_up_many_at_a_time_and_one_statement_at_a_time(
    keys: Keys, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting.may_answer.clear()
    asking = [asyncio.create_task(keys.resolve(mint_key(), of(f"peer-{number}"))) for number in range(250)]
    while not counting.batches:
        await asyncio.sleep(0)

    # All wait; only one statement was begun.
    assert counting.batches == [100]
    counting.may_answer.set()
    assert await asyncio.gather(*asking) == [None] * 250
    assert counting.batches == [100, 100, 50]


async def test_of_very_many_unknown_keys_some_are_refused_and_known_ones_go_first(
    database: Database, keys: Keys, counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "WAITING_AT_MOST", 200)
    tenant = await create_tenant(database, "a")
    _, known = await create_key(database, tenant.id)
    assert await keys.resolve(known, of(GOOD)) is not None
    clock.now += 2.0
    counting.may_answer.clear()
    order: list[str] = []

    async def ask(key: str, peer: str) -> None:
        try:
            await keys.resolve(key, of(peer))
        except TooManyWrongKeys:
            order.append("refused")
        else:
            order.append("right" if key == known else "wrong")

    first = asyncio.create_task(ask(mint_key(), "first"))
    while len(counting.batches) < 2:
        await asyncio.sleep(0)
    flood = [asyncio.create_task(ask(mint_key(), f"peer-{number}")) for number in range(300)]
    right = asyncio.create_task(ask(known, GOOD))
    while len(order) < 100:
        await asyncio.sleep(0)
    counting.may_answer.set()
    await asyncio.gather(first, *flood, right)

    assert order.count("refused") == 100
    assert order.index("right") <= 100 + 1 + 99 + 1
    assert counting.batches == [1, 1, 100, 100, 1]


async def test_many_requests_with_one_new_key_ask_once(database: Database, keys: Keys, counting: Counting) -> None:
    tenant = await create_tenant(database, "a")
    _, key = await create_key(database, tenant.id)

    callers = await asyncio.gather(*[keys.resolve(key, of(GOOD)) for _ in range(50)])

    assert all(callers)
    assert counting.batches == [1]


async def test_a_key_revoked_while_it_is_looked_up_is_not_remembered(
    database: Database, keys: Keys, counting: Counting
) -> None:
    tenant = await create_tenant(database, "a")
    info, key = await create_key(database, tenant.id)
    counting.may_answer.clear()
    before = asyncio.create_task(keys.resolve(key, of(GOOD)))
    while not counting.batches:
        await asyncio.sleep(0)
    # Its answer is on the way when the key ends.
    await database.fetch("SELECT 1")
    keys.forget(await revoke_key(database, tenant.id, info.id))
    after = asyncio.create_task(keys.resolve(key, of(GOOD)))
    await asyncio.sleep(0)
    counting.may_answer.set()

    await before
    assert await after is None
    assert keys.recall(hash_key(key)) is None


async def test_without_the_database_nobody_is_charged(keys: Keys, counting: Counting) -> None:
    counting.error = Unavailable("the database does not answer")
    for _ in range(150):
        with pytest.raises(Unavailable):
            await keys.resolve(mint_key(), of(BAD))

    counting.error = None
    assert await refusals(keys, 50) == 0


async def test_who_goes_away_while_a_key_is_looked_up_leaves_the_others_their_answer(
    keys: Keys, counting: Counting
) -> None:
    counting.may_answer.clear()
    wrong = mint_key()
    gone, stays = [asyncio.create_task(keys.resolve(wrong, of(BAD))) for _ in range(2)]
    while not counting.batches:
        await asyncio.sleep(0)

    gone.cancel()
    counting.may_answer.set()

    assert await stays is None
    assert counting.batches == [1]


async def test_the_log_tells_of_wrong_keys_once_in_a_while_and_never_a_key(keys: Keys, clock: Clock) -> None:
    wrong = mint_key()
    secret = "hunter2-of-somebody-else"
    with capture_logs() as lines:
        await keys.resolve(wrong, of(BAD))
        await keys.refresh()
        for _ in range(99):
            await keys.resolve(mint_key(), of(BAD))
        await refusals(keys, 20)
        await keys.resolve(secret, of(GOOD))
        await keys.refresh()
        assert len(lines) == 1
        clock.now += wrong_keys.REPORT_EVERY_SECONDS
        await keys.refresh()
        await keys.refresh()

    told = [(line["event"], line["peer"], line["count"], line["throttled"]) for line in lines]
    assert told == [
        ("wrong API keys", BAD, 1, 0),
        ("wrong API keys", BAD, 119, 20),
        ("wrong API keys", GOOD, 1, 0),
    ]
    assert lines[0]["begins"] == wrong[:8]
    assert lines[2]["begins"] is None
    assert secret not in str(lines)
    assert wrong not in str(lines)


async def test_of_many_peers_the_log_names_some_and_counts_the_others(keys: Keys) -> None:
    with capture_logs() as lines:
        for number in range(50):
            await keys.resolve(mint_key(), of(f"peer-{number}"))
        await keys.refresh()

    assert len(lines) == wrong_keys.LINES_AT_MOST
    assert {line["other_peers"] for line in lines} == {45}


def test_refusals_of_a_peer_are_answered_at_once_until_there_are_too_many(clock: Clock) -> None:
    wrong = wrong_keys.WrongKeys(clock)

    waits = [wrong.penalty_seconds(BAD) for _ in range(150)]

    assert waits == [0.0] * 100 + [wrong_keys.PENALTY_SECONDS] * 50
    assert wrong.penalty_seconds(GOOD) == 0.0
    clock.now += 1.0
    assert wrong.penalty_seconds(BAD) == 0.0
