"""An in-memory double of the few statements of the data path, with transactions.

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
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from duetime.ids import due_ms_of, just_after, lane_of, make_id
from duetime.lifecycle.submission.storing import MINT_AHEAD_MS, MINT_TOLERANCE_MS
from duetime.model.attempt import Again, Bury, Next
from duetime.model.task import Options, Outcome, Waiting

Attempt = tuple[uuid.UUID, int]
Key = tuple[str, object]
FIRST_MS = 1_700_000_000_000


class Broken(AssertionError):
    """A rule that must always hold does not."""


class Blocked(Exception):
    """A row is locked: look again when its owner has ended."""

    def __init__(self, by: "Transaction") -> None:
        super().__init__()
        self.by = by


@dataclass(frozen=True)
class Faults:
    """One rule switched off each: the simulation has to notice."""

    #: A row reported while its lane is being claimed is forgotten.
    forgets_wakes_in_flight: bool = False
    #: A row reported behind a lane's hint does not lower it.
    keeps_hint_on_wake: bool = False
    #: Ids are stored however old they are.
    stores_old_ids: bool = False
    #: A note is firm although a transaction with a number above the snapshot's is open.
    trusts_snapshot_end: bool = False
    #: A holder is ended although it has beaten since it was looked at.
    lapses_without_counter: bool = False
    #: A database that was away counts as silence of the holders.
    lapses_while_away: bool = False
    #: Whoever reports an attempt ends it.
    settles_for_anybody: bool = False
    #: What a holder has started is remembered by task, not by attempt.
    charges_by_task: bool = False
    #: New ids are minted while a commit with the old ones is in doubt.
    mints_anew_in_doubt: bool = False
    #: Rows are claimed a little before their time.
    claims_early: bool = False
    #: Rows are claimed that are due by what the node knows of the database's clock, although it went back since.
    claims_by_the_nodes_clock: bool = False
    #: What ended holders left behind is looked for among those that ended lately, and among all only at the start.
    sweeps_lately_ended: bool = False
    #: A claim is taken without a lock.
    claims_without_lock: bool = False
    #: A worker begins what it was handed out, however late the answer to its poll arrived.
    begins_late: bool = False
    #: A verb commits itself, so that a copy that was given up is carried out when the server gets to it.
    verbs_commit_themselves: bool = False
    #: A verb is repeated while its first copy is in doubt.
    repeats_verbs_in_doubt: bool = False


@dataclass(slots=True)
class Task:
    id: uuid.UUID
    submission: int
    key: str | None
    options: Options | None
    expires_ms: int | None


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


@dataclass(slots=True)
class Holder:
    id: int
    name: str
    beats: int = 0
    running: frozenset[Attempt] = frozenset()
    ended_ms: int | None = None
    ended_at: float = 0.0
    signed_off: bool = False
    beaten_at: float = 0.0


@dataclass(eq=False, slots=True)
class Transaction:
    xid: int
    #: The database's clock, read after the number was assigned.
    at_ms: int
    locked: list[Key] = field(default_factory=list)
    staged: list[tuple[str, object, object]] = field(default_factory=list)
    deleted: list[Key] = field(default_factory=list)
    waiters: list[Callable[[], None]] = field(default_factory=list)
    #: Set without a lock; run at the commit.
    effects: list[Callable[[], None]] = field(default_factory=list)
    #: Its statement had been given up before it began.
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    first: dict[int, uuid.UUID | None]
    now_ms: int
    oldest_open: int
    next_new: int


@dataclass(frozen=True, slots=True)
class Move:
    """One claim to be moved onward, by whom it was decided, and what follows."""

    claim: Claim
    outcome: Outcome
    following: Next
    by: int | None = None


class Store:
    def __init__(self, chance: random.Random, faults: Faults, now: Callable[[], float]) -> None:
        self.chance = chance
        self.faults = faults
        self._now = now
        self.offset_ms = 0
        self.tables: dict[str, dict[object, object]] = {
            name: {}
            for name in ("task", "due", "claim", "held", "dead", "attempt", "key", "submission", "holder", "operation")
        }
        self.task: dict[uuid.UUID, Task] = self.tables["task"]  # type: ignore[assignment]
        self.due: dict[uuid.UUID, Waits] = self.tables["due"]  # type: ignore[assignment]
        self.claim: dict[uuid.UUID, Claim] = self.tables["claim"]  # type: ignore[assignment]
        self.held: dict[uuid.UUID, Waits] = self.tables["held"]  # type: ignore[assignment]
        self.dead: dict[uuid.UUID, int] = self.tables["dead"]  # type: ignore[assignment]
        self.attempt: dict[Attempt, End] = self.tables["attempt"]  # type: ignore[assignment]
        self.holder: dict[int, Holder] = self.tables["holder"]  # type: ignore[assignment]
        self.over: dict[uuid.UUID, Outcome] = {}
        #: Calls of verbs that had their effect, and those that were answered.
        self._carried_out: set[int] = set()
        self.answered: set[int] = set()
        self.lane_hint: dict[int, uuid.UUID] = {}
        self.living: dict[str, int] = {}
        self.lanes: dict[int, list[uuid.UUID]] = defaultdict(list)
        self.due_of: dict[uuid.UUID, uuid.UUID] = {}
        self.visible_at: dict[uuid.UUID, float] = {}
        self.locks: dict[Key, Transaction] = {}
        self._staged: dict[Key, Transaction] = {}
        self._next_xid = 100
        self._last_completed = 99
        self.open: dict[int, Transaction] = {}
        self._holders = 0
        #: Who wants to know of rows that became visible, were locked, or of attempts that ended.
        self.on_visible: Callable[[uuid.UUID], None] = lambda wake: None
        self.on_locked: Callable[[uuid.UUID], None] = lambda wake: None
        self.on_end: Callable[[Attempt, End, Waiting], None] = lambda attempt, end, waiting: None

    # Transactions

    def now_ms(self) -> int:
        return FIRST_MS + self.offset_ms + int(self._now() * 1000)

    def begin(self) -> Transaction:
        """A transaction gets its number; its clock is read after that."""
        transaction = Transaction(self._next_xid, self.now_ms())
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
                assert isinstance(row, Waits)
                wakes = self.lanes[lane_of(row.wake)]
                del wakes[bisect_left(wakes, row.wake)]
                del self.due_of[row.task]
                del self.visible_at[row.wake]
                touched.add(row.task)
        for table, key, row in transaction.staged:
            if key in self.tables[table]:
                raise Broken(f"{table} {key} is there twice")
            self.tables[table][key] = row
            if isinstance(row, Claim):
                row.visible_at = self._now()
            if table == "due":
                assert isinstance(row, Waits)
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
            self.check_place(task)
        for table, key, row in transaction.staged:
            if table == "due":
                assert isinstance(row, Waits)
                self.on_visible(row.wake)
            elif table == "claim" and key in self.over:
                raise Broken(f"task {key} was claimed after its end")
        for waiter in waiters:
            waiter()

    def rollback(self, transaction: Transaction) -> None:
        for waiter in self._end(transaction):
            waiter()

    def let_go(self, transaction: Transaction) -> None:
        """A statement that has to wait looks again from its beginning, in the same transaction."""
        for key in transaction.locked:
            del self.locks[key]
        for table, key, _ in transaction.staged:
            del self._staged[table, key]
        for steps in (transaction.locked, transaction.staged, transaction.deleted, transaction.effects):
            steps.clear()

    def _end(self, transaction: Transaction) -> list[Callable[[], None]]:
        for key in transaction.locked:
            if self.locks.get(key) is transaction:
                del self.locks[key]
        for table, key, _ in transaction.staged:
            self._staged.pop((table, key), None)
        self.open.pop(transaction.xid, None)
        self._last_completed = max(self._last_completed, transaction.xid)
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

    def _lock(self, transaction: Transaction, table: str, key: object) -> None:
        owner = self.locks.get((table, key))
        if owner is not None and owner is not transaction:
            raise Blocked(owner)
        if owner is None:
            self.locks[table, key] = transaction
            transaction.locked.append((table, key))
            if table == "due":
                self.on_locked(key)  # type: ignore[arg-type]

    def _take(self, transaction: Transaction, table: str, key: object) -> None:
        self._lock(transaction, table, key)
        transaction.deleted.append((table, key))

    def _put(self, transaction: Transaction, table: str, key: object, row: object) -> bool:
        """Insert, or find that somebody else has: ON CONFLICT DO NOTHING."""
        owner = self._staged.get((table, key))
        if owner is not None and owner is not transaction:
            raise Blocked(owner)
        if owner is transaction or (key in self.tables[table] and (table, key) not in transaction.deleted):
            return False
        self._staged[table, key] = transaction
        transaction.staged.append((table, key, row))
        return True

    def _mint(self, due_ms: int, lane: int) -> uuid.UUID:
        return make_id(due_ms, self.chance.getrandbits(42), lane)

    def _put_due(self, transaction: Transaction, task: uuid.UUID, wake: uuid.UUID, waiting: Waiting) -> uuid.UUID:
        self._put(transaction, "due", wake, Waits(task, wake, waiting))
        return wake

    def _put_end(self, transaction: Transaction, task: uuid.UUID, waiting: Waiting, end: End, is_final: bool) -> None:
        attempt = (task, waiting.number)
        if not self._put(transaction, "attempt", attempt, end):
            raise Broken(f"attempt {attempt} ended twice")

        def effect() -> None:
            if is_final:
                self.over[task] = end.outcome
            self.on_end(attempt, end, waiting)

        transaction.effects.append(effect)

    # Statements

    def submit(
        self, transaction: Transaction, tasks: Sequence[Task], minted_ms: int, keep_conflicts: bool
    ) -> tuple[bool, set[uuid.UUID]]:
        """Whether the ids were fresh, and which were stored."""
        if transaction.at_ms > minted_ms + MINT_TOLERANCE_MS and not self.faults.stores_old_ids:
            return False, set()
        if transaction.at_ms < minted_ms - MINT_AHEAD_MS and not keep_conflicts:
            return False, set()
        stored = set()
        for task in sorted(tasks, key=lambda task: task.key or ""):
            if task.key is not None and not self._put(transaction, "key", task.key, task.id):
                continue
            if not self._put(transaction, "task", task.id, task):
                if not keep_conflicts:
                    raise Broken("an id was minted twice")
                continue
            if not self._put(transaction, "submission", task.submission, task.id):
                raise Broken(f"submission {task.submission} was stored twice")
            self._put_due(transaction, task.id, task.id, Waiting(1))
            stored.add(task.id)
        return True, stored

    def read_tasks(self, transaction: Transaction, ids: Sequence[uuid.UUID]) -> bool:
        return any(each in self.task for each in ids)

    def probe(self, transaction: Transaction, ids: Sequence[uuid.UUID]) -> bool:
        """The same, after waiting for whoever is storing them."""
        for each in ids:
            owner = self._staged.get(("task", each))
            if owner is not None:
                raise Blocked(owner)
        return self.read_tasks(transaction, ids)

    def read_keys(self, transaction: Transaction, keys: Sequence[str]) -> dict[str, uuid.UUID]:
        table = self.tables["key"]
        return {key: table[key] for key in keys if key in table}  # type: ignore[misc]

    def claim_due(
        self, transaction: Transaction, orders: Sequence[tuple[int, uuid.UUID, Sequence[int]]], until: uuid.UUID
    ) -> tuple[dict[int, list[Claim]], dict[int, uuid.UUID], int]:
        """What was taken, where to look next, and when it was picked."""
        if not (self.faults.claims_early or self.faults.claims_by_the_nodes_clock):
            until = min(until, just_after(transaction.at_ms))
        taken: dict[int, list[Claim]] = {}
        later: dict[int, uuid.UUID] = {}
        for lane, hint, holders in orders:
            wakes = self.lanes[lane]
            rows: list[Claim] = []
            for place in range(bisect_right(wakes, hint), len(wakes)):
                wake = wakes[place]
                if len(rows) == len(holders) or wake >= until:
                    break
                if ("due", wake) in self.locks and not self.faults.claims_without_lock:
                    continue
                row = self.due[wake]
                if self.faults.claims_without_lock:
                    transaction.deleted.append(("due", wake))
                    self.on_locked(wake)
                else:
                    self._take(transaction, "due", wake)
                claim = Claim(row.task, row.waiting, holders[len(rows)], wake)
                self._put(transaction, "claim", row.task, claim)
                rows.append(claim)
            if rows:
                taken[lane] = rows
            place = bisect_left(wakes, until)
            if place < len(wakes):
                later[lane] = wakes[place]
        return taken, later, transaction.at_ms

    def peek(self, transaction: Transaction, hints: dict[int, uuid.UUID]) -> Look:
        """Its own number is the note: whatever has a higher one reads its clock later."""
        first: dict[int, uuid.UUID | None] = {}
        for lane, hint in hints.items():
            wakes = self.lanes[lane]
            place = bisect_right(wakes, hint)
            first[lane] = wakes[place] if place < len(wakes) else None
        snapshot_end = self._last_completed + 1
        oldest_open = min((xid for xid in self.open if xid < snapshot_end), default=snapshot_end)
        next_new = snapshot_end if self.faults.trusts_snapshot_end else transaction.xid + 1
        return Look(first, transaction.at_ms, oldest_open, next_new)

    def read_hints(self, transaction: Transaction) -> dict[int, uuid.UUID]:
        return dict(self.lane_hint)

    def keep_hints(self, transaction: Transaction, lows: dict[int, uuid.UUID]) -> None:
        transaction.effects.append(lambda: self.lane_hint.update(lows))

    def read_clock(self, transaction: Transaction) -> int:
        return self.now_ms() * 1000

    def register(self, transaction: Transaction, name: str) -> int:
        if (found := self.living.get(name)) is not None:
            self._lock(transaction, "holder", found)
            return found
        self._lock(transaction, "name", name)
        self._holders += 1
        holder = Holder(self._holders, name, beaten_at=self._now())

        def effect() -> None:
            self.holder[holder.id] = holder
            self.living[name] = holder.id

        transaction.effects.append(effect)
        return holder.id

    def find(self, transaction: Transaction, name: str) -> int | None:
        return self.living.get(name)

    def beat(self, transaction: Transaction, holder: int, running: frozenset[Attempt]) -> bool:
        self._lock(transaction, "holder", holder)
        row = self.holder[holder]
        if row.ended_ms is not None:
            return False

        def effect() -> None:
            row.beats += 1
            row.running = running
            row.beaten_at = self._now()

        transaction.effects.append(effect)
        return True

    def read_held(self, transaction: Transaction, holder: int) -> set[Attempt]:
        return {(claim.task, claim.number) for claim in self.claim.values() if claim.holder == holder}

    def read_claims(self, transaction: Transaction, attempts: Iterable[Attempt]) -> list[Claim]:
        return [
            claim for task, number in attempts if (claim := self.claim.get(task)) is not None and claim.number == number
        ]

    def read_ends(
        self, transaction: Transaction, attempts: Iterable[Attempt]
    ) -> dict[Attempt, tuple[Outcome, str | None]]:
        ends = {}
        for attempt in attempts:
            end = self.attempt.get(attempt)
            if end is not None:
                ends[attempt] = (end.outcome, None if end.holder is None else self.holder[end.holder].name)
        return ends

    def read_beats(self, transaction: Transaction) -> dict[int, int]:
        return {holder: self.holder[holder].beats for holder in self.living.values()}

    def end_silent(self, transaction: Transaction, silent: Sequence[tuple[int, int]]) -> set[int]:
        ended = set()
        for holder, beats in sorted(silent):
            self._lock(transaction, "holder", holder)
            row = self.holder[holder]
            if row.ended_ms is None and (row.beats == beats or self.faults.lapses_without_counter):
                ended.add(holder)
        return self._end_holders(transaction, ended)

    def sign_off(self, transaction: Transaction, name: str, running: frozenset[Attempt]) -> int | None:
        holder = self.living.get(name)
        if holder is None:
            return None
        self._lock(transaction, "holder", holder)
        row = self.holder[holder]
        if row.ended_ms is not None:
            return None

        def effect() -> None:
            row.signed_off = True
            row.running |= running

        transaction.effects.append(effect)
        self._end_holders(transaction, {holder})
        return holder

    def read_signed_off(self, transaction: Transaction, holder: int) -> list[tuple[Claim, bool]]:
        running = self.holder[holder].running
        return [(each, (each.task, each.number) in running) for each in self.claim.values() if each.holder == holder]

    def _end_holders(self, transaction: Transaction, holders: set[int]) -> set[int]:
        now_ms = transaction.at_ms

        def effect() -> None:
            for holder in holders:
                self.holder[holder].ended_ms = now_ms
                self.holder[holder].ended_at = self._now()
                del self.living[self.holder[holder].name]

        transaction.effects.append(effect)
        return holders

    def read_left_behind(self, transaction: Transaction, lookback_ms: int | None) -> list[tuple[Claim, bool, bool]]:
        """Claims of ended holders, whether they had been started as far as their holder said, and had signed off."""
        since_ms = None if lookback_ms is None else transaction.at_ms - lookback_ms
        left = []
        for claim in self.claim.values():
            holder = self.holder[claim.holder]
            if holder.ended_ms is not None and (since_ms is None or holder.ended_ms > since_ms):
                if self.faults.charges_by_task:
                    was_started = any(task == claim.task for task, _ in holder.running)
                else:
                    was_started = (claim.task, claim.number) in holder.running
                left.append((claim, was_started, holder.signed_off))
        return left

    def move_onward(self, transaction: Transaction, moves: Sequence[Move]) -> dict[Attempt, uuid.UUID | None]:
        """Settle, lapse, release: what was still there, with the wake that follows."""
        now_ms = transaction.at_ms
        moved: dict[Attempt, uuid.UUID | None] = {}
        for move in sorted(moves, key=lambda move: move.claim.task):
            wanted = move.claim
            if wanted.task in self.claim:
                self._lock(transaction, "claim", wanted.task)
            claim = self.claim.get(wanted.task)
            if claim is None or claim.number != wanted.number:
                continue
            if claim.holder != wanted.holder and not self.faults.settles_for_anybody:
                continue
            self._take(transaction, "claim", claim.task)
            wake = None
            is_final = False
            match move.following:
                case Again(seconds, waiting):
                    wait_ms = -int(-seconds * 1000 // 1)
                    wake = self._put_due(
                        transaction, claim.task, self._mint(now_ms + wait_ms, lane_of(claim.task)), waiting
                    )
                case Bury():
                    self._put(transaction, "dead", claim.task, claim.number)
                case _:
                    is_final = True
            self._put_end(transaction, claim.task, claim.waiting, End(move.outcome, claim.holder, move.by), is_final)
            moved[claim.task, claim.number] = wake
        return moved

    # Steering

    def _take_waiting(self, transaction: Transaction, table: str, task: uuid.UUID) -> Waits | None:
        key = self.due_of.get(task) if table == "due" else task
        if key is None or key not in self.tables[table]:
            return None
        self._lock(transaction, table, key)
        transaction.deleted.append((table, key))
        return self.tables[table][key]  # type: ignore[return-value]

    def change(
        self, transaction: Transaction, asked: int, operation: int, verb: str, arguments: tuple[object, ...]
    ) -> object:
        """A verb, under the id of this try; `asked` is the same for all tries of one call."""
        if not self._put(transaction, "operation", operation, "made") and not self.faults.verbs_commit_themselves:
            return None
        moved = getattr(self, verb)(transaction, *arguments)
        if moved:
            transaction.effects.append(lambda: self._carry_out(asked, verb))
        return moved

    def _carry_out(self, asked: int, verb: str) -> None:
        if asked in self._carried_out:
            raise Broken(f"{verb} was carried out twice for one call")
        if asked in self.answered:
            raise Broken(f"{verb} was carried out after its call had been answered")
        self._carried_out.add(asked)

    def find_or_give_up(self, transaction: Transaction, operation: int) -> bool:
        """Whether the verb of this id was carried out; if not, it never will be."""
        if self._put(transaction, "operation", operation, "given up"):
            return False
        return self.tables["operation"][operation] == "made"

    def cancel(self, transaction: Transaction, task: uuid.UUID) -> bool:
        for table in ("due", "held"):
            if (row := self._take_waiting(transaction, table, task)) is not None:
                self._put_end(transaction, task, row.waiting, End(Outcome.CANCELLED, None, None), True)
                return True
        if task in self.claim:
            self._take(transaction, "claim", task)
            claim = self.claim[task]
            self._put_end(transaction, task, claim.waiting, End(Outcome.CANCELLED, claim.holder, None), True)
            return True
        if task in self.dead:
            self._take(transaction, "dead", task)
            waiting = Waiting(self.dead[task] + 1)
            self._put_end(transaction, task, waiting, End(Outcome.CANCELLED, None, None), True)
            return True
        return False

    def pause(self, transaction: Transaction, task: uuid.UUID) -> bool:
        row = self._take_waiting(transaction, "due", task)
        return row is not None and self._put(transaction, "held", task, row)

    def resume(self, transaction: Transaction, task: uuid.UUID) -> uuid.UUID | None:
        row = self._take_waiting(transaction, "held", task)
        if row is None:
            return None
        now_ms = transaction.at_ms
        wake = row.wake if due_ms_of(row.wake) > now_ms else self._mint(now_ms, lane_of(task))
        return self._put_due(transaction, task, wake, row.waiting)

    def reschedule(self, transaction: Transaction, task: uuid.UUID, run_at_ms: int) -> uuid.UUID | None:
        wake = self._mint(max(transaction.at_ms, run_at_ms), lane_of(task))
        if (row := self._take_waiting(transaction, "due", task)) is not None:
            return self._put_due(transaction, task, wake, row.waiting)
        if (row := self._take_waiting(transaction, "held", task)) is not None:
            self._put(transaction, "held", task, Waits(task, wake, row.waiting))
        return None

    def redrive(self, transaction: Transaction, task: uuid.UUID) -> uuid.UUID | None:
        if task not in self.dead:
            return None
        self._take(transaction, "dead", task)
        return self._put_due(
            transaction, task, self._mint(transaction.at_ms, lane_of(task)), Waiting(self.dead[task] + 1)
        )
