"""Compiled recurrences, kept while they are used, and how they are evaluated.

Every question to a recurrence is bounded in steps.  Questions that may take long go
through `Evaluations`, in pieces that take turns.
"""

import time
from collections.abc import Callable, Generator, Sequence

from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.lifecycle.schedules.calendars import Calendars
from duetime.lifecycle.schedules.evaluations import Evaluations, Runner
from duetime.lifecycle.schedules.kept import Kept
from duetime.lifecycle.schedules.stored import first_fire
from duetime.long_work import LongWork
from duetime.model.schedule import ScheduleBody, decode_body
from duetime.recurrence import Fire, PreviewLine, Recurrence, Spec, compile_in_pieces, finish

SQL = load(__package__, "changes.sql")
#: Memory does not grow with the number of schedules; most take 3 kB, one of 1,000 cron exclusions 3 MB.
KEPT_RECURRENCES = 5_000
KEPT_BYTES = 64 * 1024 * 1024
KEPT_BYTES_OF_A_TENANT = 16 * 1024 * 1024
#: How many times larger a definition is in memory than in the database, about.
_BODY_GROWTH = 3
#: Up to this many steps a search costs next to nothing, whatever the definition says.
_PLAIN_SOURCES = 10
_PLAIN_DATES = 100

_Key = tuple[int, int, tuple[tuple[str, int], ...]]


class Recurrences:
    def __init__(
        self, database: Database, turns: LongWork | None = None, monotonic: Monotonic = time.monotonic
    ) -> None:
        self.evaluations = Evaluations(turns)
        self.calendars = Calendars(database, self.evaluations, monotonic)
        #: By the schedule's id and version and the versions of the calendars.
        self.kept: Kept[_Key, tuple[ScheduleBody, Recurrence]] = Kept(
            most=KEPT_RECURRENCES, most_bytes=KEPT_BYTES, most_bytes_of_a_tenant=KEPT_BYTES_OF_A_TENANT
        )

    async def of(
        self,
        tenant: int,
        schedule: tuple[int, int],
        key: str,
        definition: bytes,
        calendars: Sequence[str],
        runner: Runner | None = None,
    ) -> tuple[ScheduleBody, Recurrence]:
        """The body and recurrence of a stored schedule (its id and version); raises SpecError."""
        heads = await self.calendars.heads(tenant) if calendars else {}
        used = tuple((name, heads[name].version) for name in calendars if name in heads)
        place = (*schedule, used)
        found = self.kept.get(place)
        if found is None:
            body = decode_body(definition)
            found = (body, await self.compile(tenant, key, body, runner))
            self.kept.put(tenant, place, found, found[1].size + _BODY_GROWTH * len(definition))
        return found

    async def compile(self, tenant: int, key: str, body: ScheduleBody, runner: Runner | None = None) -> Recurrence:
        """Compile a definition; `runner` does what takes long.  Raises SpecError, also for an unknown calendar."""
        runner = runner or self.evaluations
        names = body.calendars()
        known = [*await self.calendars.heads(tenant)] if names else []
        compiled = await self.calendars.compiled(tenant, names, body.timezone, runner) if names else {}
        work = compile_in_pieces(body.definition(key), compiled, known)
        return finish(work) if is_plain(body.spec) else await runner.run(tenant, work)

    async def first_fire(self, tenant: int, body: ScheduleBody, recurrence: Recurrence, now_ms: int) -> Fire | None:
        """As `first_fire` of a stored schedule."""
        if is_plain(body.spec):
            return first_fire(body, recurrence, now_ms)
        return await self.evaluations.run(tenant, _at_once(lambda: first_fire(body, recurrence, now_ms)))

    async def preview(self, tenant: int, recurrence: Recurrence, from_ms: int, count: int) -> list[PreviewLine]:
        """The times from one on, with what is excluded between them; raises SpecError."""
        return await self.evaluations.run(tenant, recurrence.preview_in_pieces(from_ms, count))

    async def upcoming(
        self, tenant: int, spec: Spec, recurrence: Recurrence, from_ms: int, count: int
    ) -> list[PreviewLine]:
        """A few times from one on, without what is excluded; raises SpecError."""
        work = recurrence.upcoming_in_pieces(from_ms, count)
        if is_plain(spec) or recurrence.knows_upcoming(from_ms, count):
            return finish(work)
        return await self.evaluations.run(tenant, work)


def _at_once(ask: Callable[[], Fire | None]) -> Generator[None, None, Fire | None]:
    """One piece of work that cannot be divided."""
    return ask()
    yield


def is_plain(spec: Spec) -> bool:
    """Whether reading and evaluating it is so quick that it needs no turn of its own."""
    return (
        not spec.rrule
        and len(spec.cron) + len(spec.calendar) <= _PLAIN_SOURCES
        and len(spec.dates) <= _PLAIN_DATES
        and len(spec.exclude) <= _PLAIN_DATES
        and all(isinstance(each, str) or each.from_ is not None for each in spec.exclude)
    )
