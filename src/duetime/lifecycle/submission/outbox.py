"""Relay the outbox: create tasks from rows that producers wrote in their own transactions.

The row is deleted and its task stored in one transaction: after any failure
there is the row or the task, never both or neither, and two relays at once
share the rows.  No id is minted before the row is visible, so a producer whose
transaction stays open for minutes delays nothing and leaves nothing behind the
feeder.  A row that cannot become a task is kept, with the reason.  A row for which
the tenant's quotas leave no room is put aside, where it delays no others, and
relayed when there is room.

Rows are found by what an earlier look could not see, not by a position in the order
of numbers: a number that was given early may become visible late.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
import msgspec
import structlog

from duetime.database.changing import run_once
from duetime.database.gather import DATA_ERRORS
from duetime.database.pool import Database
from duetime.database.statements import Statement, load
from duetime.errors import DuetimeError, InvalidInput, Unavailable
from duetime.lifecycle.admission.room import BOUNDLESS, Room
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.batch import Answers, Batch, Load, Submission, Submitted, batch_of
from duetime.lifecycle.submission.submitter import Submitter
from duetime.model.task import NewTask, TimedTask

log = structlog.get_logger()
SQL = load(__package__, "outbox.sql")
_TRIES = 5
_LOOK_SECONDS = 60.0
#: At most this many of a tenant's rows that were put aside are tried at once.
MAX_ASIDE = 500

#: Makes a task of a body as POST /v1/tasks would have done at that time. Raises the error with which it would be
#: refused.
Read = Callable[[int, bytes, datetime], Awaitable[NewTask]]


def key_of(number: int) -> str:
    """Return the idempotency key under which the task of a number is found. No client can choose such a key."""
    return f"\x1foutbox:{number}"


@dataclass(frozen=True)
class Snapshot:
    """The transactions that had ended at a time: those before `following` that are not in `running`."""

    following: int = 0
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        """Parse PostgreSQL's format, `xmin:xmax:running,…`."""
        _, following, running = text.split(":")
        return cls(int(following), tuple(int(each) for each in running.split(",") if each))


#: Before the first look.
NOTHING_SEEN = Snapshot()


@dataclass(frozen=True)
class Letter:
    """One row of the outbox."""

    transaction: int
    id: int
    tenant: int
    body: bytes
    written_at: datetime


@dataclass(frozen=True)
class _Judged:
    """A letter with its task and lane, or with the reason why it has none. With neither, it has to wait."""

    letter: Letter
    task: NewTask | None = None
    lane: int = 0
    refusal: DuetimeError | None = None

    @property
    def waits(self) -> bool:
        return self.task is None and self.refusal is None


class _AgainError(Exception):
    """Roll back and mint new ids."""


class Outbox:
    def __init__(
        self, database: Database, lanes: Lanes, submitter: Submitter, read: Read, room: Room = BOUNDLESS
    ) -> None:
        self._room = room
        #: Tenants with rows that were put aside: their later rows wait behind these.
        self._behind: set[int] = set()
        self._database = database
        self._lanes = lanes
        self._submitter = submitter
        self._read = read

    async def look(self, base: Snapshot, after: tuple[int, int], limit: int) -> tuple[Snapshot, list[Letter]]:
        """Return rows that `base` did not see, in order, and the snapshot of this look."""
        # Without a base, it may have to skip millions of rows that cannot be vacuumed yet.
        rows = await self._database.run_with(
            SQL["read_visible"], span_of(base, after) | {"limit": limit}, timeout=_LOOK_SECONDS
        )
        letters = [Letter(*each) for _, *each in rows if each[0] is not None]
        return Snapshot.parse(rows[0]["snapshot"]), letters

    async def relay(self, letters: Sequence[Letter]) -> int:
        """Make tasks of these rows, refuse them, or put them aside. Return how many, without those of other relays."""
        left = await self._find_room(letters)
        judged: list[_Judged] = []
        for letter in letters:
            if left[letter.tenant]:
                left[letter.tenant] -= 1
                judged.append(await self._judge(letter))
            else:
                judged.append(_Judged(letter))
        return await self._move(judged)

    async def relay_aside(self) -> bool:
        """Continue with rows that were put aside if there is room. Return whether there may be room for more."""
        owners = [row["tenant"] for row in await self._database.run(SQL["read_owners"])]
        self._behind = set(owners)
        is_full = False
        for tenant in owners:
            sizes = [row["size"] for row in await self._database.run(SQL["read_sizes"], tenant=tenant, limit=MAX_ASIDE)]
            granted = await self._room.make_room(tenant, sizes)
            if not granted.most:
                continue
            rows = await self._database.run(SQL["read_aside"], tenant=tenant, limit=granted.most)
            await self._move([await self._judge(Letter(*row)) for row in rows], take_aside)
            is_full = is_full or granted.most == MAX_ASIDE
        return is_full

    async def _find_room(self, letters: Sequence[Letter]) -> dict[int, int]:
        """Return how many letters of each tenant there is room for."""
        sizes: dict[int, list[int]] = {}
        for letter in letters:
            sizes.setdefault(letter.tenant, []).append(len(letter.body))
        left = {}
        for tenant, wanted in sizes.items():
            left[tenant] = 0
            if tenant in self._behind:
                continue
            granted = await self._room.make_room(tenant, wanted)
            left[tenant] = granted.most
            if granted.refusal is not None:
                self._behind.add(tenant)
                name = self._lanes.tenant_name(tenant)
                log.warning("rows of the outbox wait", tenant=name, reason=granted.refusal.reason)
        return left

    async def retry(self, tenant: int, number: int) -> bool:
        """Let a refused row be tried again. False: there is no such row."""
        return bool(await run_once(self._database, SQL["retry"], tenant=tenant, id=number))

    async def delete(self, tenant: int, number: int) -> bool:
        """Delete a refused row. False: there is no such row."""
        return bool(await run_once(self._database, SQL["delete_refused"], tenant=tenant, id=number))

    async def _judge(self, letter: Letter) -> _Judged:
        try:
            task = await self._read(letter.tenant, letter.body, letter.written_at)
            lane = self._lanes.find(task.lane) or await self._lanes.ensure(task.lane)
        except Unavailable:
            raise
        except DuetimeError as error:
            return _Judged(letter, refusal=error)
        except Exception:
            # A fault of ours in one letter must not delay the letters of others.
            name = self._lanes.tenant_name(letter.tenant)
            log.exception("a row of the outbox cannot be judged", number=letter.id, tenant=name)
            return _Judged(letter, refusal=DuetimeError("a fault of the server; its log has more, by this number"))
        if isinstance(task, TimedTask) and task.delay:
            run_at = letter.written_at + timedelta(seconds=task.delay)
            task = msgspec.structs.replace(task, run_at=run_at, delay=None)
        return _Judged(letter, task, lane)

    async def _move(self, judged: list[_Judged], take: "Take | None" = None) -> int:
        """Relay all in one transaction. If the database refuses it, divide the letters until the bad one is alone."""
        try:
            return await self._move_together(judged, take or take_new)
        except DATA_ERRORS as error:
            if len(judged) == 1:
                refusal = InvalidInput(f"the database refuses this task: {error}")
                return await self._move_together([_Judged(judged[0].letter, refusal=refusal)], take or take_new)
        middle = len(judged) // 2
        return await self._move(judged[:middle], take) + await self._move(judged[middle:], take)

    async def _move_together(self, judged: list[_Judged], take: "Take") -> int:
        for _ in range(_TRIES):
            by_tenant: dict[int, list[_Judged]] = {}
            for each in judged:
                if each.task is not None:
                    by_tenant.setdefault(each.letter.tenant, []).append(each)
            batches = [_batch_of(each) for each in by_tenant.values()]
            load = Load(batches)
            minted_ms = await self._submitter.prepare(load)
            try:
                async with self._database.connection() as connection, connection.transaction():
                    taken = await take(connection, judged)
                    groups = [[each for each in group if each.letter.id in taken] for group in by_tenant.values()]
                    load = Load.minted(
                        [_only(batch, each, taken) for batch, each in zip(batches, by_tenant.values(), strict=True)]
                    )
                    answers = await self._store(connection, load, minted_ms)
                    refused = [
                        (each.letter, each.refusal)
                        for each in judged
                        if each.refusal is not None and each.letter.id in taken
                    ]
                    await _note(connection, groups, answers, refused)
                    waiting = [each.letter for each in judged if each.waits and each.letter.id in taken]
                    await _put_aside(connection, waiting)
            except (_AgainError, asyncpg.UniqueViolationError):
                await self._submitter.free_keys(load)
                # Ids that are too old or in the future by the database's time are refused: its clock may have jumped.
                await self._database.read_clock()
                continue
            self._submitter.announce(load, answers)
            return len(taken)
        raise Unavailable("the outbox waits: the database is too slow or its clock jumps")

    async def _store(self, connection: asyncpg.Connection, load: Load, minted_ms: int) -> Answers:
        if not load.tasks:
            return [[] for _ in load.batches]
        answers = await self._submitter.store_in(connection, load, minted_ms)
        if answers is None or any(None in answer for answer in answers):
            raise _AgainError
        return answers


def span_of(base: Snapshot, after: tuple[int, int]) -> dict[str, object]:
    """Return the transactions after the position that the snapshot did not show, and where the rest begins."""
    begin = max(after, (base.following, 0))
    return {
        "running": [each for each in base.running if each >= after[0]],
        "after_transaction": after[0],
        "after_id": after[1],
        "from_transaction": begin[0],
        "from_id": begin[1],
    }


async def retire_refused(database: Database, before: datetime) -> None:
    await database.run(SQL["retire_refused"], before=before)


def _batch_of(judged: list[_Judged]) -> Batch:
    tasks = [each.task for each in judged if each.task is not None]
    return batch_of(tasks, [each.lane for each in judged], judged[0].letter.tenant)


def _only(batch: Batch, judged: list[_Judged], taken: set[int]) -> Batch:
    """Return the batch without the letters that another relay takes."""
    places = [place for place, each in enumerate(judged) if each.letter.id in taken]
    if len(places) == len(judged):
        return batch
    left = batch_of([batch.tasks[place] for place in places], [batch.lanes[place] for place in places], batch.tenant)
    left.ids, left.minted_ms = [batch.ids[place] for place in places], batch.minted_ms
    left.run_us = None if batch.run_us is None else [batch.run_us[place] for place in places]
    return left


async def _run(connection: asyncpg.Connection, statement: Statement, **parameters: object) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = await connection.fetch(statement.sql, *statement.arguments(parameters), timeout=10.0)
    return rows


#: Deletes letters from where they wait. Returns the numbers of those that no other relay takes.
Take = Callable[[asyncpg.Connection, list[_Judged]], Awaitable[set[int]]]


async def take_new(connection: asyncpg.Connection, judged: list[_Judged]) -> set[int]:
    rows = await _run(
        connection,
        SQL["take"],
        transactions=[each.letter.transaction for each in judged],
        ids=[each.letter.id for each in judged],
    )
    return {row["id"] for row in rows}


async def take_aside(connection: asyncpg.Connection, judged: list[_Judged]) -> set[int]:
    rows = await _run(
        connection,
        SQL["take_aside"],
        tenants=[each.letter.tenant for each in judged],
        ids=[each.letter.id for each in judged],
    )
    return {row["id"] for row in rows}


async def _put_aside(connection: asyncpg.Connection, letters: list[Letter]) -> None:
    if letters:
        await _run(
            connection,
            SQL["put_aside"],
            tenants=[letter.tenant for letter in letters],
            ids=[letter.id for letter in letters],
            bodies=[letter.body for letter in letters],
            written_ats=[letter.written_at for letter in letters],
        )


async def _note(
    connection: asyncpg.Connection,
    groups: list[list[_Judged]],
    answers: list[Sequence[Submission | None]],
    refused: list[tuple[Letter, DuetimeError]],
) -> None:
    """Return which tasks the letters became, and which letters were refused, also by their own idempotency key."""
    noted: list[tuple[Letter, Submitted]] = []
    for group, answer in zip(groups, answers, strict=True):
        for each, submission in zip(group, answer, strict=True):
            if isinstance(submission, Submitted):
                noted.append((each.letter, submission))
            elif submission is not None:
                refused.append((each.letter, submission))
    if noted:
        await _run(
            connection,
            SQL["note_tasks"],
            tenants=[letter.tenant for letter, _ in noted],
            keys=[key_of(letter.id) for letter, _ in noted],
            tasks=[submission.id for _, submission in noted],
        )
    if refused:
        await _run(
            connection,
            SQL["refuse"],
            tenants=[letter.tenant for letter, _ in refused],
            ids=[letter.id for letter, _ in refused],
            bodies=[letter.body for letter, _ in refused],
            written_ats=[letter.written_at for letter, _ in refused],
            codes=[error.code for _, error in refused],
            details=[error.detail.replace("\0", "") for _, error in refused],
            errors=[msgspec.json.encode(error.errors) for _, error in refused],
        )
        log.info("rows of the outbox refused", count=len(refused))
