"""Log which tasks became dead letters: each once, and no more lines than a person can read.

Settling reports dead letters after the commit, which costs a few appends; once a second they are written to the log,
with the names that only the database knows.  Beyond a number of lines each second, for each tenant and in all, one line
says how many were left out and how to list them.  A dead letter whose commit the database did not confirm may be
missing here; it is in `duetime dead list`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta

import msgspec
import structlog

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Unavailable
from duetime.ids import lane_of
from duetime.lifecycle.tasks.onward import Dead
from duetime.model.attempt import REASONS
from duetime.service import Loop

log = structlog.get_logger()
WRITE_EVERY = timedelta(seconds=1)
LINES_PER_TENANT = 5
LINES = 20
#: How many lanes keep their dead letters for a line; those of more lanes are only counted.
MAX_LANES = 1_000
#: How many tenants the line about the rest names.
MAX_NAMED = 5

SQL = load(__package__, "dead_log.sql")


class _Error(msgspec.Struct):
    message: str = ""


class _Detail(msgspec.Struct):
    error: _Error | None = None


_read_detail = msgspec.json.Decoder(_Detail).decode


class DeadLog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[int, list[Dead]] = {}
        self._counts: Counter[int] = Counter()
        self.loop = Loop("dead letters", self.step)

    def note(self, letters: Iterable[Dead]) -> None:
        """Note tasks that have just become dead letters."""
        for letter in letters:
            self._counts[letter.lane] += 1
            if letter.lane not in self._kept and len(self._kept) < MAX_LANES:
                self._kept[letter.lane] = []
            kept = self._kept.get(letter.lane)
            if kept is not None and len(kept) < LINES_PER_TENANT:
                kept.append(letter)

    async def step(self) -> timedelta:
        await self._write()
        return WRITE_EVERY

    async def close(self) -> None:
        """Write what is left; without the database only the number."""
        try:
            await self._write()
        except Unavailable:
            log.warning("dead letters", count=self._counts.total(), see="duetime dead list")

    async def _write(self) -> None:
        if not self._counts:
            return
        counts, kept = self._counts, self._kept
        self._counts, self._kept = Counter(), {}
        try:
            rows = await self._database.run(
                SQL["read_tenants"], lanes=[lane for lane, _ in counts.most_common(MAX_LANES)]
            )
            places = {row["lane"]: (row["tenant"], row["queue"]) for row in rows}
            chosen = list(_choose(kept, {lane: tenant for lane, (tenant, _) in places.items()}))
            rows = await self._database.run(
                SQL["read_types"], lanes=[lane_of(each.task) for each in chosen], tasks=[each.task for each in chosen]
            )
        except Unavailable:
            self._counts.update(counts)
            for lane, letters in self._kept.items():
                kept[lane] = (kept.get(lane, []) + letters)[:LINES_PER_TENANT]
            self._kept = kept
            raise
        types = {row["task"]: row["type"] for row in rows}
        left = Counter[str]()
        for lane, count in counts.items():
            left[places[lane][0] if lane in places else ""] += count
        for letter in chosen:
            tenant, queue = places[letter.lane]
            left[tenant] -= 1
            log.warning(
                "dead letter",
                tenant=tenant,
                task=str(letter.task),
                type=types.get(letter.task),
                queue=queue,
                attempt=letter.number,
                reason=REASONS.get(letter.reason, letter.reason),
                error=_message_of(letter.detail),
            )
        _say_rest(+left)


def _choose(kept: dict[int, list[Dead]], tenants: dict[int, str]) -> Iterator[Dead]:
    """The dead letters that get a line: one of each tenant, then a second one of each, up to the limits."""
    by_tenant: dict[str, list[Dead]] = {}
    for lane, letters in kept.items():
        if lane in tenants:
            by_tenant.setdefault(tenants[lane], []).extend(letters)
    turns = [letters[turn] for turn in range(LINES_PER_TENANT) for letters in by_tenant.values() if turn < len(letters)]
    yield from turns[:LINES]


def _say_rest(left: Counter[str]) -> None:
    if not left:
        return
    named = [(tenant, count) for tenant, count in left.most_common(MAX_NAMED) if tenant]
    see = f"duetime dead list --tenant {named[0][0]}" if len(left) == 1 and named else "duetime dead list --tenant NAME"
    log.warning("more dead letters, without a line each", count=left.total(), tenants=dict(named), see=see)


def _message_of(detail: bytes | None) -> str | None:
    if detail is None:
        return None
    error = _read_detail(detail).error
    return None if error is None else error.message
