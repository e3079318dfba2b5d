"""How far a lane is drained for certain: never further than a row that may still come."""

import uuid
from dataclasses import dataclass, field

import asyncpg
from hypothesis import given
from hypothesis import strategies as st

from duetime.database.pool import Database
from duetime.ids import EARLIEST, due_ms_of, just_before, make_id
from duetime.lifecycle.tasks.claim import peek
from duetime.scheduler.hints import Hints
from engine import Engine

LANE = 257
TOLERANCE_MS = 5_000
NOON_MS = 1_700_000_000_000


def wake_at(due_ms: int) -> uuid.UUID:
    return make_id(due_ms, 7, LANE)


def firm_hints(at_ms: int = NOON_MS) -> Hints:
    """Hints with a firm note of that time."""
    hints = Hints(TOLERANCE_MS)
    hints.note(at_ms, oldest_open=10, next_new=11)
    hints.note(at_ms + 1_000, oldest_open=11, next_new=12)
    return hints


def test_nothing_is_certain_at_first() -> None:
    hints = Hints(TOLERANCE_MS)

    hints.seen(LANE, None)

    assert hints.low(LANE) == EARLIEST


def test_a_note_is_not_firm_while_a_transaction_below_it_is_open() -> None:
    hints = Hints(TOLERANCE_MS)
    for second in range(100):
        hints.note(NOON_MS + second * 1_000, oldest_open=10, next_new=11 + second)
        hints.seen(LANE, None)

    assert hints.low(LANE) == EARLIEST


def test_an_empty_lane_is_drained_up_to_the_firm_time_minus_the_tolerance() -> None:
    hints = firm_hints()

    hints.seen(LANE, None)

    assert hints.low(LANE) == just_before(NOON_MS - TOLERANCE_MS)


def test_a_waiting_row_is_never_skipped() -> None:
    hints = firm_hints()
    waiting = wake_at(NOON_MS - 60_000)

    hints.seen(LANE, waiting)

    assert hints.low(LANE) < waiting


def test_a_low_does_not_go_back() -> None:
    hints = firm_hints()
    hints.seen(LANE, None)
    low = hints.low(LANE)

    hints.seen(LANE, wake_at(due_ms_of(low) - 1))

    assert hints.low(LANE) == low


def test_only_lows_that_moved_are_kept() -> None:
    hints = firm_hints()
    hints.seen(LANE, None)

    assert hints.take_changed() == {LANE: hints.low(LANE)}
    assert hints.take_changed() == {}


def test_a_clock_that_went_back_makes_nothing_certain() -> None:
    hints = firm_hints()
    hints.seen(LANE, None)

    hints.forget()
    hints.seen(LANE, None)

    assert hints.low(LANE) == EARLIEST
    assert hints.take_changed() == {}


def test_what_a_clock_that_was_ahead_wrote_is_not_restored() -> None:
    hints = Hints(TOLERANCE_MS)
    past, future = wake_at(NOON_MS - 1), wake_at(NOON_MS + 1)

    hints.restore({1: past, 2: future}, NOON_MS)

    assert (hints.low(1), hints.low(2)) == (past, EARLIEST)


def test_a_transaction_that_stays_open_for_a_day_does_not_pile_up_notes() -> None:
    hints = Hints(TOLERANCE_MS)
    for second in range(86_400):
        hints.note(NOON_MS + second * 1_000, oldest_open=10, next_new=11 + second)

    hints.note(NOON_MS + 86_400_000, oldest_open=100_000, next_new=100_001)
    hints.seen(LANE, None)

    assert due_ms_of(hints.low(LANE)) == NOON_MS + 3_599 * 1_000 - TOLERANCE_MS


@dataclass
class Rows:
    """Rows of one lane, stored by transactions that commit in any order."""

    now_ms: int = NOON_MS
    next_xid: int = 100
    open: dict[int, uuid.UUID] = field(default_factory=dict)
    visible: list[uuid.UUID] = field(default_factory=list)

    def store(self, behind_ms: int) -> None:
        """Begin to store a row whose id was minted a while ago, within the tolerance."""
        self.open[self.next_xid] = make_id(self.now_ms - behind_ms, self.next_xid, LANE)
        self.next_xid += 1

    def look(self, hints: Hints) -> None:
        first = min((wake for wake in self.visible if wake > hints.low(LANE)), default=None)
        oldest_open = min(self.open, default=self.next_xid)
        self.next_xid += 1
        hints.note(self.now_ms, oldest_open, self.next_xid)
        hints.seen(LANE, first)


STEPS = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 20_000)),
    st.tuples(st.just("store"), st.integers(0, TOLERANCE_MS)),
    st.tuples(st.just("store later"), st.integers(0, 100_000)),
    st.tuples(st.just("commit"), st.integers(0, 100)),
    st.tuples(st.just("take"), st.just(0)),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
)


@given(st.lists(STEPS, max_size=60))
def test_no_row_ever_becomes_visible_behind_a_low(steps: list[tuple[str, int]]) -> None:
    database, hints = Rows(), Hints(TOLERANCE_MS)
    kept: dict[int, uuid.UUID] = {}
    for step, amount in steps:
        match step:
            case "pass":
                database.now_ms += amount
            case "store":
                database.store(amount)
            case "store later":
                database.store(-amount)
            case "commit" if database.open:
                xid = sorted(database.open)[amount % len(database.open)]
                database.visible.append(database.open.pop(xid))
            case "take" if database.visible:
                database.visible.remove(min(database.visible))
            case "look":
                database.look(hints)
            case "restart":
                kept |= hints.take_changed()
                hints = Hints(TOLERANCE_MS)
                hints.restore(kept, database.now_ms)

        assert all(wake > hints.low(LANE) for wake in database.visible)


async def test_a_note_lies_above_a_transaction_that_is_open_while_the_database_is_idle(
    database: Database, database_url: str
) -> None:
    engine = await Engine.open(database)
    lane = await engine.lanes.ensure(engine.lane_key())
    storing = await asyncpg.connect(database_url)
    transaction = storing.transaction()
    await transaction.start()
    number = await storing.fetchval("SELECT pg_current_xact_id()::text::bigint")

    during = [await peek(database, {lane: EARLIEST}) for _ in range(2)]
    await transaction.rollback()
    await storing.close()
    after = await peek(database, {lane: EARLIEST})

    assert all(look.oldest_open <= number < look.next_new for look in during)
    assert after.oldest_open >= during[-1].next_new
