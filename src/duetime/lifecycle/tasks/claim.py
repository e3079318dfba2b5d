"""Claim due rows for holders that have room now, and look at what waits."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import asyncpg
import msgspec

from duetime.clock import from_database
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import LATEST, due_ms_of
from duetime.lifecycle.tasks.onward import decode_options
from duetime.long_work import LongWork
from duetime.model.task import LeasedTask

SQL = load(__package__, "claim.sql")


@dataclass(frozen=True)
class LaneOrder:
    """At most this many rows of one lane after its hint, for these holders in turn."""

    lane: int
    hint: uuid.UUID
    #: (holder, how many rows), in order.
    holders: Sequence[tuple[int, int]]


class Claims(msgspec.Struct):
    #: Per lane, in order of wake.
    taken: dict[int, list[tuple[uuid.UUID, LeasedTask]]]
    #: Per lane that did not fill its room, where to look next: the first wake that is not due yet, or one that was
    #: due, if others took part of the share and there may be more.
    later: dict[int, uuid.UUID]


async def claim_due(
    database: Database,
    orders: Sequence[LaneOrder],
    until: uuid.UUID,
    now: datetime | None = None,
    turns: LongWork | None = None,
) -> Claims:
    """Take what is due of each lane, by the node's clock (`wake < until`) and the database's; each lane stands once."""
    lanes: list[int] = []
    hints: list[uuid.UUID] = []
    rooms: list[int] = []
    slots: list[int] = []
    holders: list[int] = []
    for order in sorted(orders, key=lambda order: order.lane):
        lanes.append(order.lane)
        hints.append(order.hint)
        # PostgreSQL counts slots from 1, and the first row of a lane has place 1.
        slots.append(len(holders))
        for holder, count in order.holders:
            holders += [holder] * count
        rooms.append(len(holders) - slots[-1])
    wanted: dict[str, object] = {"lanes": lanes, "hints": hints, "rooms": rooms, "slots": slots}
    wanted |= {"until": until, "now_ms": due_ms_of(until) - 1, "holders": holders, "now": now}
    asked = database.clock.ask()
    try:
        rows = await database.run_with(SQL["claim_due"], wanted)
    except asyncpg.LockNotAvailableError:
        rows = await database.run_with(SQL["claim_around"], wanted)
    # Behind the tasks one row for each lane.
    ends = rows[len(rows) - len(lanes) :]
    if now is None:
        database.clock.hear(asked, ends[0]["picked_at"])
    read = partial(_read_rows, ends[0]["picked_at"])
    claims = Claims({}, {})
    for lane, wake, task in await (turns or LongWork()).spread(rows[: len(rows) - len(lanes)], read):
        claims.taken.setdefault(lane, []).append((wake, task))
    for taken in claims.taken.values():
        taken.sort(key=_by_wake)
    room_of = dict(zip(lanes, rooms, strict=True))
    for end in ends:
        # If it got all that it asked for, nobody has looked for the next row.
        if end["wake"] is not None and len(claims.taken.get(end["lane"], ())) < room_of[end["lane"]]:
            claims.later[end["lane"]] = end["wake"]
    return claims


@dataclass(frozen=True)
class Look:
    """The first waiting row of each lane, and the transactions that were open then."""

    first: dict[int, uuid.UUID | None]
    now_us: int
    oldest_open: int
    next_new: int


async def peek(database: Database, hints: dict[int, uuid.UUID], until: uuid.UUID = LATEST) -> Look:
    """Look at lanes after their hints and before `until`. Takes nothing."""
    rows = await database.run(SQL["peek"], lanes=list(hints), hints=list(hints.values()), until=until)
    return Look(
        {row["lane"]: row["wake"] for row in rows}, rows[0]["now_us"], rows[0]["oldest_open"], rows[0]["next_new"]
    )


async def note(database: Database) -> Look:
    """The transactions that are open now. Looks at no lane."""
    [row] = await database.run(SQL["note"])
    return Look({}, row["now_us"], row["oldest_open"], row["next_new"])


def _by_wake(pair: tuple[uuid.UUID, LeasedTask]) -> uuid.UUID:
    return pair[0]


def _read_rows(picked_at: datetime, rows: Sequence[asyncpg.Record]) -> list[tuple[int, uuid.UUID, LeasedTask]]:
    read = []
    sent, run_at = b"", picked_at
    for row in rows:
        lane, wake, task, number, failures, crashes, releases, holder, home, *rest = row
        kind, payload, options, labels, run_at_sent, expires_at, _ = rest
        if run_at_sent != sent:
            # Most have the same time as the one before, and making it is the costliest part.
            sent, run_at = run_at_sent, from_database(run_at_sent)
        # Positional, in the order of the struct's fields: by name it takes twice as long.
        leased = LeasedTask(
            task,
            lane if home is None else home,
            number,
            holder,
            kind,
            payload,
            run_at,
            picked_at,
            failures,
            crashes,
            releases,
            decode_options(options) if options else None,
            labels.encode() if labels else None,
            expires_at,
        )
        read.append((lane, wake or task, leased))
    return read
