"""`AsyncClient`: the same calls as `Client`, for asyncio."""

import asyncio
import builtins
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from duetime.sdk import schedule_wire as calls
from duetime.sdk import wire
from duetime.sdk.administration import AsyncAdministration
from duetime.sdk.errors import (
    BatchIncomplete,
    Duration,
    InvalidRequest,
    SdkError,
    SearchIncomplete,
    ServerUnavailable,
    WaitTimeout,
)
from duetime.sdk.loops import HttpClients
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


class AsyncClient(AsyncAdministration):
    """For asyncio code: `async with AsyncClient() as client`.

    It may be used in several event loops, one after the other or at the same time, and on both sides of a fork.
    """

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
        self._timeout = timeout
        self._https = HttpClients(self._url, self._key, self._tenant)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections, of this event loop and of others."""
        await self._https.close()

    async def send(self, call: Call[T]) -> T:
        """Send a call until it is answered, or its time is over."""
        tries = Tries(self._retry_for)
        while True:
            try:
                return call.read(await self._exchange(call))
            except InvalidRequest as error:
                call = call.renamed(error)
            except ServerUnavailable as error:
                await asyncio.sleep(tries.wait_after(error))

    async def _exchange(self, call: Call[T]) -> Answer:
        return await self._https.here().request(
            call.method, call.path, call.body, timeout=self._timeout, idempotency_key=call.key
        )

    async def submit(self, type: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Task:
        """Submit one task; the same `idempotency_key` gives the first task back.

        Without `retry`, it has 20 attempts, with waits that double from 1 s to 1 h: about 8 hours in all.
        """
        return await self.send(wire.submit(Submission(type, payload, **options)))

    async def submit_many(
        self, submissions: Iterable[Submission | Mapping[str, Any]], *, atomic: bool = False
    ) -> BatchResult:
        """Submit any number of tasks, in calls of up to 5,000; `atomic`: all of one call, or none.

        What a quota refuses is sent again for `retry_for` seconds.
        """
        result = BatchResult()
        for call in wire.submit_many(submissions, atomic=atomic):
            try:
                result.add(await self._send_batch(call))
            except SdkError as error:
                if not result.results:
                    raise
                raise BatchIncomplete(result, error) from error
        return result

    async def _send_batch(self, call: Call[BatchResult]) -> BatchResult:
        """Send it, and again what was refused for now; what is refused to the end has its problem in its place."""
        result = await self.send(call)
        tries = Tries(self._retry_for)
        while (later := wire.refused_for_now(result)) is not None:
            places, error = later
            try:
                await asyncio.sleep(tries.wait_after(error))
                result.replace(places, await self.send(wire.part_of_batch(call, places)))
            except ServerUnavailable:
                break
        return result

    async def get(self, task: TaskOrId) -> Task:
        return await self.send(wire.get(task))

    async def attempts(self, task: TaskOrId, *, page_size: int | None = None) -> AsyncIterator[Attempt]:
        """All attempts of a task in order, page by page; `get` has the latest of many or large ones."""
        cursor: str | None = None
        while True:
            page = await self.send(wire.list_attempts(task, limit=page_size, cursor=cursor))
            for item in page.items:
                yield item
            if (cursor := page.next) is None:
                return

    async def wait(self, task: TaskOrId, timeout: float = 60.0) -> Task:
        """Look until the task is over; raises WaitTimeout."""
        for pause in wire.looks(timeout):
            seen = await self.get(task)
            if seen.is_final:
                return seen
            await asyncio.sleep(pause)
        raise WaitTimeout(seen, timeout)

    async def list(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> AsyncIterator[Task]:
        """Every task that fits, page by page, as the iterator is used."""
        cursor: str | None = None
        while True:
            try:
                page = await self.list_page(limit=page_size, cursor=cursor, **filter)
            except SearchIncomplete as error:
                cursor = error.next
                continue
            for task in page.items:
                yield task
            if (cursor := page.next) is None:
                return

    async def list_page(self, *, limit: int | None = None, cursor: str | None = None, **filter: Unpack[Filter]) -> Page:
        return await self.send(wire.list_tasks(filter, limit=limit, cursor=cursor))

    async def list_dead(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> AsyncIterator[DeadLetter]:
        """Every dead letter that fits."""
        cursor: str | None = None
        while True:
            try:
                page = await self.send(wire.list_dead(filter, limit=page_size, cursor=cursor))
            except SearchIncomplete as error:
                cursor = error.next
                continue
            for letter in page.items:
                yield letter
            if (cursor := page.next) is None:
                return

    async def explain(self, task: TaskOrId) -> Explanation:
        return await self.send(wire.explain(task))

    async def cancel(self, task: TaskOrId) -> Task:
        return await self.send(wire.act("cancel", task))

    async def pause(self, task: TaskOrId) -> Task:
        return await self.send(wire.act("pause", task))

    async def resume(self, task: TaskOrId) -> Task:
        return await self.send(wire.act("resume", task))

    async def reschedule(
        self, task: TaskOrId, run_at: datetime | str | None = None, *, delay: Duration | None = None
    ) -> Task:
        return await self.send(wire.act("reschedule", task, run_at=run_at, delay=as_duration(delay)))

    async def retry(self, task: TaskOrId) -> Task:
        return await self.send(wire.act("retry", task))

    async def run_now(self, task: TaskOrId) -> Task:
        return await self.send(wire.act("run-now", task))

    async def bulk(
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
        return await self.send(
            wire.act_on_many(verb, filter, limit=limit, cursor=cursor, run_at=run_at, delay=as_duration(delay))
        )

    async def redrive(
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
        return await self.send(
            wire.act_on_dead("redrive", ids, filter, everything=all, rate=rate, limit=limit, cursor=cursor)
        )

    async def drop(
        self,
        ids: Iterable[TaskOrId] | TaskOrId | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        **filter: Unpack[Filter],
    ) -> BulkResult:
        """Throw dead letters away."""
        return await self.send(
            wire.act_on_dead("drop", ids, filter, everything=all, rate=None, limit=limit, cursor=cursor)
        )

    async def signing_secret(self) -> str:
        """The secret that signs calls to the tenant's HTTP targets (Standard Webhooks)."""
        return await self.send(wire.signing_secret())

    # Schedules

    async def schedule(
        self, name: str, type: str, payload: object = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Create or replace a schedule; what is left out has its default, also where it was set before."""
        return await self.send(calls.put_schedule(name, type, payload, options))

    async def get_schedule(self, name: str) -> Schedule:
        return await self.send(calls.get_schedule(name))

    async def list_schedules(
        self, *, page_size: int | None = None, **filter: Unpack[ScheduleFilter]
    ) -> AsyncIterator[Schedule]:
        """Every schedule that fits, by name, page by page, as the iterator is used."""
        cursor = None
        while True:
            page = await self.send(calls.list_schedules(filter, limit=page_size, cursor=cursor))
            for schedule in page.items:
                yield schedule
            if (cursor := page.next) is None:
                return

    async def delete_schedule(
        self, name: str, tasks: Literal["keep", "cancel"] = "keep", *, version: int | None = None
    ) -> DeletedSchedule:
        """It fires no more; `tasks="cancel"` cancels what it started and is not over."""
        return await self.send(calls.delete_schedule(name, tasks, version))

    async def pause_schedule(self, name: str, note: str | None = None) -> Schedule:
        return await self.send(calls.steer_schedule("pause", name, note))

    async def resume_schedule(self, name: str, note: str | None = None) -> Schedule:
        """Go on with the next time; what went by meanwhile is not made up for."""
        return await self.send(calls.steer_schedule("resume", name, note))

    async def trigger_schedule(self, name: str, as_of: datetime | str | None = None) -> Triggered:
        """A run at once, for now or for a time that is past."""
        return await self.send(calls.trigger_schedule(name, as_of))

    async def schedule_runs(self, name: str, *, page_size: int | None = None) -> AsyncIterator[Run]:
        """What became of its times, the latest first."""
        cursor = None
        while True:
            page = await self.send(calls.schedule_runs(name, limit=page_size, cursor=cursor))
            for run in page.items:
                yield run
            if (cursor := page.next) is None:
                return

    async def backfill_schedule(
        self, name: str, from_: datetime | str, to: datetime | str, *, rate: float | None = None
    ) -> Backfill:
        """Make the tasks of a past range, at `rate` a second."""
        return await self.send(calls.backfill_schedule(name, from_, to, rate))

    async def list_backfills(self, name: str) -> builtins.list[Backfill]:
        return (await self.send(calls.list_backfills(name))).items

    async def get_backfill(self, name: str, backfill: int) -> Backfill:
        return await self.send(calls.get_backfill(name, backfill))

    async def cancel_backfill(self, name: str, backfill: int) -> Backfill:
        """Make no more tasks; those that were made stay."""
        return await self.send(calls.cancel_backfill(name, backfill))

    async def preview_schedule(
        self,
        name: str | None = None,
        *,
        count: int | None = None,
        from_: datetime | str | None = None,
        **options: Unpack[TimesOptions],
    ) -> Preview:
        """When a stored schedule fires; or what the options describe would, under that name (which decides `H`)."""
        return await self.send(calls.preview_schedule(name, options, count=count, from_=from_))

    async def put_calendar(self, name: str, dates: Iterable[Exclusion]) -> CalendarPut:
        """Create or replace times that schedules leave out by this name."""
        return await self.send(calls.put_calendar(name, dates))

    async def get_calendar(self, name: str) -> Calendar:
        return await self.send(calls.get_calendar(name))

    async def list_calendars(self) -> builtins.list[Calendar]:
        found: builtins.list[Calendar] = []
        cursor = None
        while True:
            page = await self.send(calls.list_calendars(cursor=cursor))
            found += page.items
            if (cursor := page.next) is None:
                return found

    async def delete_calendar(self, name: str) -> None:
        await self.send(calls.delete_calendar(name))
