"""`AsyncClient`: submit, read and control tasks and schedules, and administer the service, for asyncio.

`Client` is the same for plain code; `tests/sdk/write_client.py` generates it from this module.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any, Unpack

from duetime.sdk.calls import tasks as calls
from duetime.sdk.calls.call import ApiCall, Tries
from duetime.sdk.calls.tasks import Filter
from duetime.sdk.client.async_administration import AsyncAdministration
from duetime.sdk.client.async_schedules import AsyncSchedules
from duetime.sdk.errors import BatchIncomplete, Duration, SdkError, ServerUnavailable, WaitTimeout
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.durations import as_duration
from duetime.sdk.shapes.tasks import (
    Attempt,
    BatchResult,
    BulkResult,
    DeadLetter,
    Explanation,
    Submission,
    SubmitOptions,
    Task,
    TaskOrId,
)


class AsyncClient(AsyncAdministration, AsyncSchedules):
    """The client for asyncio code: `async with AsyncClient() as client`.

    It may be used in several event loops, one after the other or at the same time, and on both sides of a fork.
    """

    async def submit(self, type: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Task:
        """Submit one task. The same `idempotency_key` returns the first task.

        Without `retry`, it has 20 attempts, with waits that double from 1 s to 1 h: about 8 hours in all.
        """
        return await self.send(calls.submit(Submission(type, payload, **options)))

    async def submit_many(
        self, submissions: Iterable[Submission | Mapping[str, Any]], *, atomic: bool = False
    ) -> BatchResult:
        """Submit any number of tasks, in calls of up to 5,000. With `atomic`, a call stores all its tasks or none.

        Tasks that a quota refuses are sent again for `retry_for` seconds.
        """
        result = BatchResult()
        for call in calls.submit_many(submissions, atomic=atomic):
            try:
                result.add(await self._send_batch(call))
            except SdkError as error:
                if not result.results:
                    raise
                raise BatchIncomplete(result, error) from error
        return result

    async def _send_batch(self, call: ApiCall[BatchResult]) -> BatchResult:
        """Send a call, and send again what was refused for now. An item that stays refused keeps its problem."""
        result = await self.send(call)
        tries = Tries(self._retry_for)
        while (later := calls.refused_for_now(result)) is not None:
            places, error = later
            try:
                await asyncio.sleep(tries.wait_after(error))
                result.replace(places, await self.send(calls.part_of_batch(call, places)))
            except ServerUnavailable:
                break
        return result

    async def get(self, task: TaskOrId) -> Task:
        return await self.send(calls.get(task))

    def attempts(self, task: TaskOrId, *, page_size: int | None = None) -> AsyncIterator[Attempt]:
        """Return all attempts of a task in order. `get` returns only the latest if they are many or large."""
        return self.items(lambda cursor: calls.list_attempts(task, limit=page_size, cursor=cursor))

    async def wait(self, task: TaskOrId, timeout: float = 60.0) -> Task:
        """Read the task until it is over. Raises WaitTimeout."""
        for pause in calls.looks(timeout):
            seen = await self.get(task)
            if seen.is_final:
                return seen
            await asyncio.sleep(pause)
        raise WaitTimeout(seen, timeout)

    def list(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> AsyncIterator[Task]:
        """Return every task that matches. The iterator reads one page at a time."""
        return self.items(lambda cursor: calls.list_tasks(filter, limit=page_size, cursor=cursor))

    async def list_page(
        self, *, limit: int | None = None, cursor: str | None = None, **filter: Unpack[Filter]
    ) -> Page[Task]:
        return await self.send(calls.list_tasks(filter, limit=limit, cursor=cursor))

    def list_dead(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> AsyncIterator[DeadLetter]:
        """Return every dead letter that matches."""
        return self.items(lambda cursor: calls.list_dead(filter, limit=page_size, cursor=cursor))

    async def explain(self, task: TaskOrId) -> Explanation:
        return await self.send(calls.explain(task))

    async def cancel(self, task: TaskOrId) -> Task:
        return await self.send(calls.act("cancel", task))

    async def pause(self, task: TaskOrId) -> Task:
        return await self.send(calls.act("pause", task))

    async def resume(self, task: TaskOrId) -> Task:
        return await self.send(calls.act("resume", task))

    async def reschedule(
        self, task: TaskOrId, run_at: datetime | str | None = None, *, delay: Duration | None = None
    ) -> Task:
        return await self.send(calls.act("reschedule", task, run_at=run_at, delay=as_duration(delay)))

    async def retry(self, task: TaskOrId) -> Task:
        return await self.send(calls.act("retry", task))

    async def run_now(self, task: TaskOrId) -> Task:
        return await self.send(calls.act("run-now", task))

    async def bulk(
        self,
        verb: calls.Verb,
        *,
        run_at: datetime | str | None = None,
        delay: Duration | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **filter: Unpack[Filter],
    ) -> BulkResult:
        """Do one step of a verb on all tasks that match; continue with `cursor=result.next`."""
        return await self.send(
            calls.act_on_many(verb, filter, limit=limit, cursor=cursor, run_at=run_at, delay=as_duration(delay))
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
        """Give dead letters new attempts, at `rate` per second."""
        return await self.send(
            calls.act_on_dead("redrive", ids, filter, everything=all, rate=rate, limit=limit, cursor=cursor)
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
        """Cancel dead letters for good."""
        return await self.send(
            calls.act_on_dead("drop", ids, filter, everything=all, rate=None, limit=limit, cursor=cursor)
        )
