# Made by tests/sdk/write_client.py of async_client.py: change that, then `make client`.
"""`Client`: submit, read and control tasks and schedules, and administer the service, from plain code."""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Unpack

from duetime.sdk.calls import tasks as calls
from duetime.sdk.calls.call import ApiCall, Tries
from duetime.sdk.calls.tasks import Filter
from duetime.sdk.client.sync_administration import Administration
from duetime.sdk.client.sync_schedules import Schedules
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


class Client(Administration, Schedules):
    """The client for plain code. Safe to share between threads, and between a process and its forked children."""

    def submit(self, type: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Task:
        """Submit one task. The same `idempotency_key` returns the first task.

        Without `retry`, it has 20 attempts, with waits that double from 1 s to 1 h: about 8 hours in all.
        """
        return self.send(calls.submit(Submission(type, payload, **options)))

    def submit_many(
        self, submissions: Iterable[Submission | Mapping[str, Any]], *, atomic: bool = False
    ) -> BatchResult:
        """Submit any number of tasks, in calls of up to 5,000. With `atomic`, a call stores all its tasks or none.

        Tasks that a quota refuses are sent again for `retry_for` seconds.
        """
        result = BatchResult()
        for call in calls.submit_many(submissions, atomic=atomic):
            try:
                result.add(self._send_batch(call))
            except SdkError as error:
                if not result.results:
                    raise
                raise BatchIncomplete(result, error) from error
        return result

    def _send_batch(self, call: ApiCall[BatchResult]) -> BatchResult:
        """Send a call, and send again what was refused for now. An item that stays refused keeps its problem."""
        result = self.send(call)
        tries = Tries(self._retry_for)
        while (later := calls.refused_for_now(result)) is not None:
            places, error = later
            try:
                time.sleep(tries.wait_after(error))
                result.replace(places, self.send(calls.part_of_batch(call, places)))
            except ServerUnavailable:
                break
        return result

    def get(self, task: TaskOrId) -> Task:
        return self.send(calls.get(task))

    def attempts(self, task: TaskOrId, *, page_size: int | None = None) -> Iterator[Attempt]:
        """Return all attempts of a task in order. `get` returns only the latest if they are many or large."""
        return self.items(lambda cursor: calls.list_attempts(task, limit=page_size, cursor=cursor))

    def wait(self, task: TaskOrId, timeout: float = 60.0) -> Task:
        """Read the task until it is over. Raises WaitTimeout."""
        for pause in calls.looks(timeout):
            seen = self.get(task)
            if seen.is_final:
                return seen
            time.sleep(pause)
        raise WaitTimeout(seen, timeout)

    def list(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> Iterator[Task]:
        """Return every task that matches. The iterator reads one page at a time."""
        return self.items(lambda cursor: calls.list_tasks(filter, limit=page_size, cursor=cursor))

    def list_page(self, *, limit: int | None = None, cursor: str | None = None, **filter: Unpack[Filter]) -> Page[Task]:
        return self.send(calls.list_tasks(filter, limit=limit, cursor=cursor))

    def list_dead(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> Iterator[DeadLetter]:
        """Return every dead letter that matches."""
        return self.items(lambda cursor: calls.list_dead(filter, limit=page_size, cursor=cursor))

    def explain(self, task: TaskOrId) -> Explanation:
        return self.send(calls.explain(task))

    def cancel(self, task: TaskOrId) -> Task:
        return self.send(calls.act("cancel", task))

    def pause(self, task: TaskOrId) -> Task:
        return self.send(calls.act("pause", task))

    def resume(self, task: TaskOrId) -> Task:
        return self.send(calls.act("resume", task))

    def reschedule(
        self, task: TaskOrId, run_at: datetime | str | None = None, *, delay: Duration | None = None
    ) -> Task:
        return self.send(calls.act("reschedule", task, run_at=run_at, delay=as_duration(delay)))

    def retry(self, task: TaskOrId) -> Task:
        return self.send(calls.act("retry", task))

    def run_now(self, task: TaskOrId) -> Task:
        return self.send(calls.act("run-now", task))

    def bulk(
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
        return self.send(
            calls.act_on_many(verb, filter, limit=limit, cursor=cursor, run_at=run_at, delay=as_duration(delay))
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
        """Give dead letters new attempts, at `rate` per second."""
        return self.send(
            calls.act_on_dead("redrive", ids, filter, everything=all, rate=rate, limit=limit, cursor=cursor)
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
        """Cancel dead letters for good."""
        return self.send(calls.act_on_dead("drop", ids, filter, everything=all, rate=None, limit=limit, cursor=cursor))
