"""Tables with transactions, as far as PostgreSQL's matter to a node, and what must always hold in them.

A statement looks at what is committed, locks what it takes, and commits at
once or (a late commit) long after others that began later.  Who needs a locked
row waits for the lock's owner and then looks again; a claim skips it.  Numbers
of transactions and snapshots are PostgreSQL's: a number is assigned when a
statement begins to write, and a snapshot's `xmax` is one past the highest
*completed* transaction, not past the highest there is.

Every commit checks what must hold in the tables themselves; `Broken` says
which rule did not.
"""

import random
import uuid
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from duetime.clock import from_us
from duetime.ids import SCHEDULE_LANES_END, due_ms_of, lane_of, make_id
from duetime.model.task import LaneKey, Outcome, Waiting
from simulation.faults import Faults

Attempt = tuple[uuid.UUID, int]
Key = tuple[str, Any]
FIRST_US = 1_700_000_000_000_000


class Broken(AssertionError):
    """A rule that must always hold does not."""


class Blocked(Exception):
    """A row is locked: look again when its owner has ended."""

    def __init__(self, by: "Transaction") -> None:
        super().__init__()
        self.by = by


@dataclass(slots=True)
class Task:
    id: uuid.UUID
    type: str
    payload: bytes
    options: bytes | None
    run_us: int
    expires_at: datetime | None


@dataclass(slots=True)
class Waits:
    """A row of due or held."""

    task: uuid.UUID
    wake: uuid.UUID
    waiting: Waiting


@dataclass(slots=True)
class Claim:
    task: uuid.UUID
    waiting: Waiting
    holder: int
    wake: uuid.UUID
    picked_us: int
    is_handed_over: bool = False
    visible_at: float = 0.0

    @property
    def number(self) -> int:
        return self.waiting.number


@dataclass(slots=True)
class End:
    outcome: Outcome
    holder: int | None
    #: The process whose report it was; None: somebody else's decision.
    by: int | None
    is_servers: bool
    picked_us: int | None
    failures: int


@dataclass(slots=True)
class Holder:
    id: int
    tenant: int
    name: str
    beats: int = 0
    running: dict[Attempt, int] = field(default_factory=dict)
    max_silence: float | None = None
    ended_us: int | None = None
    ended_at: float = 0.0
    signed_off: bool = False
    beaten_at: float = 0.0


@dataclass(eq=False, slots=True)
class Transaction:
    xid: int
    #: The database's clock, read after the number was assigned.
    at_us: int
    locked: list[Key] = field(default_factory=list)
    staged: list[tuple[str, Any, Any]] = field(default_factory=list)
    deleted: list[Key] = field(default_factory=list)
    waiters: list[Callable[[], None]] = field(default_factory=list)
    #: Set without a lock; run at the commit.
    effects: list[Callable[[], None]] = field(default_factory=list)
    #: Where the statement began, in a transaction of several.
    mark: tuple[int, int, int, int] = (0, 0, 0, 0)
    #: Its client had given up before it began.
    is_late: bool = False

    @property
    def at_ms(self) -> int:
        return self.at_us // 1000

    @property
    def at(self) -> datetime:
        return from_us(self.at_us)

    def begin_statement(self) -> None:
        self.mark = (len(self.locked), len(self.staged), len(self.deleted), len(self.effects))


_TABLES = ("task", "due", "claim", "held", "dead", "attempt", "key", "request", "submission", "holder", "operation")


class Tables:
    def __init__(self, chance: random.Random, faults: Faults, now: Callable[[], float]) -> None:
        self.chance = chance
        self.faults = faults
        self._now = now
        self.offset_us = 0
        self.tables: dict[str, dict[Any, Any]] = {name: {} for name in _TABLES}
        self.task: dict[uuid.UUID, Task] = self.tables["task"]
        self.due: dict[uuid.UUID, Waits] = self.tables["due"]
        self.claim: dict[uuid.UUID, Claim] = self.tables["claim"]
        self.held: dict[uuid.UUID, Waits] = self.tables["held"]
        self.dead: dict[uuid.UUID, int] = self.tables["dead"]
        self.attempt: dict[Attempt, End] = self.tables["attempt"]
        #: Lanes are made once and have no transactions here.
        self.lane: dict[int, LaneKey] = {}
        self.holder: dict[int, Holder] = {}
        self.over: dict[uuid.UUID, Outcome] = {}
        self.lane_hint: dict[int, uuid.UUID] = {}
        self.living: dict[tuple[int, str], int] = {}
        self.lanes: dict[int, list[uuid.UUID]] = defaultdict(list)
        self.due_of: dict[uuid.UUID, uuid.UUID] = {}
        self.claims_of: dict[int, dict[uuid.UUID, Claim]] = defaultdict(dict)
        self.visible_at: dict[uuid.UUID, float] = {}
        self.locks: dict[Key, Transaction] = {}
        self._staged: dict[Key, Transaction] = {}
        self._next_xid = 100
        self.last_completed = 99
        self.open: dict[int, Transaction] = {}
        #: Who wants to know of rows that became visible, were locked or were claimed, and of attempts that ended.
        self.on_visible: Callable[[uuid.UUID], None] = lambda wake: None
        self.on_locked: Callable[[uuid.UUID], None] = lambda wake: None
        self.on_claimed: Callable[[Transaction, Claim], None] = lambda transaction, claim: None
        self.on_end: Callable[[Attempt, End], None] = lambda attempt, end: None

    # Time

    @property
    def now(self) -> float:
        """Simulated seconds since the beginning, wherever the clock jumped."""
        return self._now()

    def now_us(self) -> int:
        return FIRST_US + self.offset_us + int(self._now() * 1_000_000)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    # Transactions

    def open_transaction(self) -> Transaction:
        """A transaction gets its number; its clock is read after that."""
        transaction = Transaction(self._next_xid, self.now_us())
        self._next_xid += 1
        self.open[transaction.xid] = transaction
        return transaction

    def commit(self, transaction: Transaction) -> None:
        touched: set[uuid.UUID] = set()
        for table, key in transaction.deleted:
            if key not in self.tables[table]:
                raise Broken(f"{table} {key} was taken twice")
            row = self.tables[table].pop(key)
            if table == "due":
                wakes = self.lanes[lane_of(row.wake)]
                del wakes[bisect_left(wakes, row.wake)]
                del self.due_of[row.task]
                del self.visible_at[row.wake]
                touched.add(row.task)
            elif table == "claim":
                self.claims_of[row.holder].pop(key, None)
        for table, key, row in transaction.staged:
            if key in self.tables[table]:
                raise Broken(f"{table} {key} is there twice")
            self.tables[table][key] = row
            if table == "claim":
                row.visible_at = self._now()
                self.claims_of[row.holder][key] = row
            elif table == "due":
                insort(self.lanes[lane_of(row.wake)], row.wake)
                if row.task in self.due_of:
                    raise Broken(f"task {row.task} waits twice")
                self.due_of[row.task] = row.wake
                self.visible_at[row.wake] = self._now()
                touched.add(row.task)
        for effect in transaction.effects:
            effect()
        waiters = self._end(transaction)
        for task in touched:
            # Of a schedule it is its turn.
            if lane_of(task) >= SCHEDULE_LANES_END:
                self.check_place(task)
        for table, key, row in transaction.staged:
            if table == "due":
                self.on_visible(row.wake)
            elif table == "claim":
                if key in self.over:
                    raise Broken(f"task {key} was claimed after its end")
                self.on_claimed(transaction, row)
        for waiter in waiters:
            waiter()

    def rollback(self, transaction: Transaction) -> None:
        for waiter in self._end(transaction):
            waiter()

    def let_go(self, transaction: Transaction) -> None:
        """A statement that has to wait, or fails, leaves nothing of its own behind in its transaction."""
        locked, staged, deleted, effects = transaction.mark
        for key in transaction.locked[locked:]:
            del self.locks[key]
        for table, key, _ in transaction.staged[staged:]:
            del self._staged[table, key]
        del transaction.locked[locked:], transaction.staged[staged:], transaction.deleted[deleted:]
        del transaction.effects[effects:]

    def _end(self, transaction: Transaction) -> list[Callable[[], None]]:
        for key in transaction.locked:
            if self.locks.get(key) is transaction:
                del self.locks[key]
        for table, key, _ in transaction.staged:
            self._staged.pop((table, key), None)
        self.open.pop(transaction.xid, None)
        self.last_completed = max(self.last_completed, transaction.xid)
        waiters, transaction.waiters = transaction.waiters, []
        return waiters

    def check_place(self, task: uuid.UUID) -> None:
        """A task is in exactly one of due, claim, held, dead, or it is over."""
        places = [
            name for name, table in (("claim", self.claim), ("held", self.held), ("dead", self.dead)) if task in table
        ]
        if task in self.due_of:
            places.append("due")
        if task in self.over:
            places.append("over")
        if len(places) != 1:
            raise Broken(f"task {task} is in {places or 'no place'}")

    # Rows

    def is_locked(self, table: str, key: Any) -> bool:
        return (table, key) in self.locks

    def lock(self, transaction: Transaction, table: str, key: Any) -> None:
        owner = self.locks.get((table, key))
        if owner is not None and owner is not transaction:
            raise Blocked(owner)
        if owner is None:
            self.locks[table, key] = transaction
            transaction.locked.append((table, key))
            if table == "due":
                self.on_locked(key)

    def take(self, transaction: Transaction, table: str, key: Any) -> None:
        self.lock(transaction, table, key)
        transaction.deleted.append((table, key))

    def storing(self, table: str, key: Any) -> Transaction | None:
        """Who inserts this row, and has not committed it."""
        return self._staged.get((table, key))

    def put(self, transaction: Transaction, table: str, key: Any, row: Any) -> bool:
        """Insert, or find that somebody else has: ON CONFLICT DO NOTHING."""
        owner = self._staged.get((table, key))
        if owner is not None and owner is not transaction:
            raise Blocked(owner)
        if owner is transaction or (key in self.tables[table] and (table, key) not in transaction.deleted):
            return False
        self._staged[table, key] = transaction
        transaction.staged.append((table, key, row))
        return True

    def mint(self, due_ms: int, lane: int) -> uuid.UUID:
        return make_id(due_ms, self.chance.getrandbits(42), lane)

    def put_due(self, transaction: Transaction, task: uuid.UUID, wake: uuid.UUID, waiting: Waiting) -> uuid.UUID:
        self.put(transaction, "due", wake, Waits(task, wake, waiting))
        return wake

    def put_end(self, transaction: Transaction, task: uuid.UUID, number: int, end: End, is_final: bool) -> None:
        attempt = (task, number)
        if not self.put(transaction, "attempt", attempt, end):
            raise Broken(f"attempt {attempt} ended twice")

        def effect() -> None:
            if is_final:
                self.over[task] = end.outcome
            self.on_end(attempt, end)

        transaction.effects.append(effect)

    def state_of(self, task: uuid.UUID, now_ms: int) -> str | None:
        if task not in self.task:
            return None
        if task in self.claim:
            return "running"
        if task in self.held:
            return "paused"
        if task in self.dead:
            return "dead"
        if (wake := self.due_of.get(task)) is not None:
            waiting = self.due[wake].waiting
            if due_ms_of(wake) <= now_ms:
                return "ready"
            return "retrying" if waiting.failures + waiting.crashes else "scheduled"
        outcome = self.over[task]
        return {Outcome.SUCCEEDED: "succeeded", Outcome.CANCELLED: "cancelled", Outcome.EXPIRED: "expired"}.get(
            outcome, "dead"
        )
