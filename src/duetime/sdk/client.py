"""`Client`: submit, look at and steer tasks and schedules, and administer types and limits, from plain code.

It only sends calls; what a call is, how its answer reads and when it is sent
again is in `wire`, `schedule_wire` and `admin_wire`.  A call that is safe to repeat is retried
for `retry_for` seconds after connection errors, 429, 502, 503 and 504.
"""

import builtins
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

import urllib3

from duetime.sdk import schedule_wire as calls
from duetime.sdk import wire
from duetime.sdk.administration import Administration
from duetime.sdk.errors import (
    BatchIncomplete,
    Duration,
    InvalidRequest,
    SdkError,
    SearchIncomplete,
    ServerUnavailable,
    ServerUnreachable,
    WaitTimeout,
)
from duetime.sdk.pool import Pool
from duetime.sdk.schedule_shapes import (
    Backfill,
    Calendar,
    CalendarPut,
    DeletedSchedule,
    Exclusion,
    Preview,
    Run,
    Schedule,
    ScheduleOptions,
    TimesOptions,
    Triggered,
)
from duetime.sdk.schedule_wire import ScheduleFilter
from duetime.sdk.server import find_server
from duetime.sdk.shapes import (
    Attempt,
    BatchResult,
    BulkResult,
    DeadLetter,
    Explanation,
    Page,
    Submission,
    SubmitOptions,
    Task,
    TaskOrId,
    as_duration,
)
from duetime.sdk.wire import Answer, Call, Filter, Tries

T = TypeVar("T")


class Client(Administration):
    """For plain code; safe to share between threads, and between a process and those that it forks."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        tenant: str | None = None,
        timeout: float = 30.0,
        retry_for: float = 30.0,
    ) -> None:
        """Without `url` and `key`: those of the environment, or of a `duetime up` in this folder.

        `tenant`: act for another one than the key's own, which an admin key may.
        """
        self._url, self._key = find_server(url, key)
        self._tenant = wire.check_tenant(tenant)
        self._retry_for = retry_for
        self._pool = Pool(self._url, maxsize=16, timeout=urllib3.Timeout(connect=5.0, read=timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    def send(self, call: Call[T]) -> T:
        """Send a call until it is answered, or its time is over."""
        tries = Tries(self._retry_for)
        while True:
            try:
                return call.read(self._exchange(call))
            except InvalidRequest as error:
                call = call.renamed(error)
            except ServerUnavailable as error:
                time.sleep(tries.wait_after(error))

    def _exchange(self, call: Call[T]) -> Answer:
        try:
            answer = self._pool.request(call.method, call.path, call.body, call.headers(self._key, self._tenant))
        except urllib3.exceptions.HTTPError as error:
            raise ServerUnreachable(f"{self._url} does not answer: {error}") from error
        return Answer(answer.status, answer.headers, answer.data)

    def submit(self, type: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Task:
        """Submit one task; the same `idempotency_key` gives the first task back.

        Without `retry`, it has 20 attempts, with waits that double from 1 s to 1 h: about 8 hours in all.
        """
        return self.send(wire.submit(Submission(type, payload, **options)))

    def submit_many(
        self, submissions: Iterable[Submission | Mapping[str, Any]], *, atomic: bool = False
    ) -> BatchResult:
        """Submit any number of tasks, in calls of up to 5,000; `atomic`: all of one call, or none.

        What a quota refuses is sent again for `retry_for` seconds.
        """
        result = BatchResult()
        for call in wire.submit_many(submissions, atomic=atomic):
            try:
                result.add(self._send_batch(call))
            except SdkError as error:
                if not result.results:
                    raise
                raise BatchIncomplete(result, error) from error
        return result

    def _send_batch(self, call: Call[BatchResult]) -> BatchResult:
        """Send it, and again what was refused for now; what is refused to the end has its problem in its place."""
        result = self.send(call)
        tries = Tries(self._retry_for)
        while (later := wire.refused_for_now(result)) is not None:
            places, error = later
            try:
                time.sleep(tries.wait_after(error))
                result.replace(places, self.send(wire.part_of_batch(call, places)))
            except ServerUnavailable:
                break
        return result

    def get(self, task: TaskOrId) -> Task:
        return self.send(wire.get(task))

    def attempts(self, task: TaskOrId, *, page_size: int | None = None) -> Iterator[Attempt]:
        """All attempts of a task in order, page by page; `get` has the latest of many or large ones."""
        cursor: str | None = None
        while True:
            page = self.send(wire.list_attempts(task, limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next) is None:
                return

    def wait(self, task: TaskOrId, timeout: float = 60.0) -> Task:
        """Look until the task is over; raises WaitTimeout."""
        for pause in wire.looks(timeout):
            seen = self.get(task)
            if seen.is_final:
                return seen
            time.sleep(pause)
        raise WaitTimeout(seen, timeout)

    def list(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> Iterator[Task]:
        """Every task that fits, page by page, as the iterator is used."""
        cursor: str | None = None
        while True:
            try:
                page = self.list_page(limit=page_size, cursor=cursor, **filter)
            except SearchIncomplete as error:
                cursor = error.next
                continue
            yield from page.items
            if (cursor := page.next) is None:
                return

    def list_page(self, *, limit: int | None = None, cursor: str | None = None, **filter: Unpack[Filter]) -> Page:
        return self.send(wire.list_tasks(filter, limit=limit, cursor=cursor))

    def list_dead(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> Iterator[DeadLetter]:
        """Every dead letter that fits."""
        cursor: str | None = None
        while True:
            try:
                page = self.send(wire.list_dead(filter, limit=page_size, cursor=cursor))
            except SearchIncomplete as error:
                cursor = error.next
                continue
            yield from page.items
            if (cursor := page.next) is None:
                return

    def explain(self, task: TaskOrId) -> Explanation:
        return self.send(wire.explain(task))

    def cancel(self, task: TaskOrId) -> Task:
        return self.send(wire.act("cancel", task))

    def pause(self, task: TaskOrId) -> Task:
        return self.send(wire.act("pause", task))

    def resume(self, task: TaskOrId) -> Task:
        return self.send(wire.act("resume", task))

    def reschedule(
        self, task: TaskOrId, run_at: datetime | str | None = None, *, delay: Duration | None = None
    ) -> Task:
        return self.send(wire.act("reschedule", task, run_at=run_at, delay=as_duration(delay)))

    def retry(self, task: TaskOrId) -> Task:
        return self.send(wire.act("retry", task))

    def run_now(self, task: TaskOrId) -> Task:
        return self.send(wire.act("run-now", task))

    def bulk(
        self,
        verb: wire.Verb,
        *,
        run_at: datetime | str | None = None,
        delay: Duration | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **filter: Unpack[Filter],
    ) -> BulkResult:
        """One step of a verb on all tasks that fit; go on with `cursor=result.next`."""
        return self.send(
            wire.act_on_many(verb, filter, limit=limit, cursor=cursor, run_at=run_at, delay=as_duration(delay))
        )

    def redrive(
        self,
        ids: Iterable[TaskOrId] | TaskOrId | None = None,
        *,
        all: bool = False,
        rate: float | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **filter: Unpack[Filter],
    ) -> BulkResult:
        """Give dead letters new attempts, spread out at `rate` a second."""
        return self.send(
            wire.act_on_dead("redrive", ids, filter, everything=all, rate=rate, limit=limit, cursor=cursor)
        )

    def drop(
        self,
        ids: Iterable[TaskOrId] | TaskOrId | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        **filter: Unpack[Filter],
    ) -> BulkResult:
        """Throw dead letters away."""
        return self.send(wire.act_on_dead("drop", ids, filter, everything=all, rate=None, limit=limit, cursor=cursor))

    def signing_secret(self) -> str:
        """The secret that signs calls to the tenant's HTTP targets (Standard Webhooks)."""
        return self.send(wire.signing_secret())

    # Schedules

    def schedule(self, name: str, type: str, payload: object = None, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create or replace a schedule; what is left out has its default, also where it was set before."""
        return self.send(calls.put_schedule(name, type, payload, options))

    def get_schedule(self, name: str) -> Schedule:
        return self.send(calls.get_schedule(name))

    def list_schedules(self, *, page_size: int | None = None, **filter: Unpack[ScheduleFilter]) -> Iterator[Schedule]:
        """Every schedule that fits, by name, page by page, as the iterator is used."""
        cursor = None
        while True:
            page = self.send(calls.list_schedules(filter, limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next) is None:
                return

    def delete_schedule(
        self, name: str, tasks: Literal["keep", "cancel"] = "keep", *, version: int | None = None
    ) -> DeletedSchedule:
        """It fires no more; `tasks="cancel"` cancels what it started and is not over."""
        return self.send(calls.delete_schedule(name, tasks, version))

    def pause_schedule(self, name: str, note: str | None = None) -> Schedule:
        return self.send(calls.steer_schedule("pause", name, note))

    def resume_schedule(self, name: str, note: str | None = None) -> Schedule:
        """Go on with the next time; what went by meanwhile is not made up for."""
        return self.send(calls.steer_schedule("resume", name, note))

    def trigger_schedule(self, name: str, as_of: datetime | str | None = None) -> Triggered:
        """A run at once, for now or for a time that is past."""
        return self.send(calls.trigger_schedule(name, as_of))

    def schedule_runs(self, name: str, *, page_size: int | None = None) -> Iterator[Run]:
        """What became of its times, the latest first."""
        cursor = None
        while True:
            page = self.send(calls.schedule_runs(name, limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next) is None:
                return

    def backfill_schedule(
        self, name: str, from_: datetime | str, to: datetime | str, *, rate: float | None = None
    ) -> Backfill:
        """Make the tasks of a past range, at `rate` a second."""
        return self.send(calls.backfill_schedule(name, from_, to, rate))

    def list_backfills(self, name: str) -> builtins.list[Backfill]:
        return self.send(calls.list_backfills(name)).items

    def get_backfill(self, name: str, backfill: int) -> Backfill:
        return self.send(calls.get_backfill(name, backfill))

    def cancel_backfill(self, name: str, backfill: int) -> Backfill:
        """Make no more tasks; those that were made stay."""
        return self.send(calls.cancel_backfill(name, backfill))

    def preview_schedule(
        self,
        name: str | None = None,
        *,
        count: int | None = None,
        from_: datetime | str | None = None,
        **options: Unpack[TimesOptions],
    ) -> Preview:
        """When a stored schedule fires; or what the options describe would, under that name (which decides `H`)."""
        return self.send(calls.preview_schedule(name, options, count=count, from_=from_))

    def put_calendar(self, name: str, dates: Iterable[Exclusion]) -> CalendarPut:
        """Create or replace times that schedules leave out by this name."""
        return self.send(calls.put_calendar(name, dates))

    def get_calendar(self, name: str) -> Calendar:
        return self.send(calls.get_calendar(name))

    def list_calendars(self) -> builtins.list[Calendar]:
        found: builtins.list[Calendar] = []
        cursor = None
        while True:
            page = self.send(calls.list_calendars(cursor=cursor))
            found += page.items
            if (cursor := page.next) is None:
                return found

    def delete_calendar(self, name: str) -> None:
        self.send(calls.delete_calendar(name))
