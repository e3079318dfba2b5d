"""`Client`: submit, look at and steer tasks from plain code.

It only sends calls; what a call is, how its answer reads and when it is sent
again is in `wire`.  Every call carries a key of its own and is safe to repeat,
so connection errors, 429, 502, 503 and 504 are retried for `retry_for` seconds.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import urllib3

from duetime.sdk import wire
from duetime.sdk.errors import (
    BatchIncomplete,
    Duration,
    InvalidRequest,
    SdkError,
    ServerUnavailable,
    ServerUnreachable,
    WaitTimeout,
)
from duetime.sdk.shapes import (
    BatchResult,
    BulkResult,
    DeadLetter,
    Explanation,
    Page,
    Submission,
    SubmitOptions,
    Task,
    as_duration,
)
from duetime.sdk.wire import Answer, Call, Filter, Tries

T = TypeVar("T")


class Client:
    """For plain code; safe to share between threads."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 30.0,
    ) -> None:
        self._url, self._key = wire.resolve(url, key)
        self._retry_for = retry_for
        self._pool = urllib3.PoolManager(
            maxsize=16, timeout=urllib3.Timeout(connect=5.0, read=timeout), retries=False, block=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._pool.clear()

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
            answer = self._pool.request(
                call.method, self._url + call.path, body=call.body, headers=call.headers(self._key), redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise ServerUnreachable(f"{self._url} does not answer: {error}") from error
        return Answer(answer.status, answer.headers, answer.data)

    def submit(self, type: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Task:
        """Submit one task; the same `idempotency_key` gives the first task back."""
        return self.send(wire.submit(Submission(type, payload, **options)))

    def submit_many(
        self, submissions: Iterable[Submission | Mapping[str, Any]], *, atomic: bool = False
    ) -> BatchResult:
        """Submit any number of tasks, in calls of up to 5,000; `atomic`: all of one call, or none."""
        result = BatchResult()
        for call in wire.submit_many(submissions, atomic=atomic):
            try:
                result.add(self.send(call))
            except SdkError as error:
                if not result.results:
                    raise
                raise BatchIncomplete(result, error) from error
        return result

    def get(self, task_id: object) -> Task:
        return self.send(wire.get(task_id))

    def wait(self, task_id: object, timeout: float = 60.0) -> Task:
        """Look until the task is over; raises WaitTimeout."""
        for pause in wire.looks(timeout):
            task = self.get(task_id)
            if task.is_final:
                return task
            time.sleep(pause)
        raise WaitTimeout(task, timeout)

    def list(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> Iterator[Task]:
        """Every task that fits, page by page, as the iterator is used."""
        cursor = None
        while True:
            page = self.list_page(limit=page_size, cursor=cursor, **filter)
            yield from page.items
            if (cursor := page.next) is None:
                return

    def list_page(self, *, limit: int | None = None, cursor: str | None = None, **filter: Unpack[Filter]) -> Page:
        return self.send(wire.list_tasks(filter, limit=limit, cursor=cursor))

    def list_dead(self, *, page_size: int | None = None, **filter: Unpack[Filter]) -> Iterator[DeadLetter]:
        """Every dead letter that fits."""
        cursor = None
        while True:
            page = self.send(wire.list_dead(filter, limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next) is None:
                return

    def explain(self, task_id: object) -> Explanation:
        return self.send(wire.explain(task_id))

    def cancel(self, task_id: object) -> Task:
        return self.send(wire.act("cancel", task_id))

    def pause(self, task_id: object) -> Task:
        return self.send(wire.act("pause", task_id))

    def resume(self, task_id: object) -> Task:
        return self.send(wire.act("resume", task_id))

    def reschedule(
        self, task_id: object, run_at: datetime | str | None = None, *, delay: Duration | None = None
    ) -> Task:
        return self.send(wire.act("reschedule", task_id, run_at=run_at, delay=as_duration(delay)))

    def retry(self, task_id: object) -> Task:
        return self.send(wire.act("retry", task_id))

    def run_now(self, task_id: object) -> Task:
        return self.send(wire.act("run-now", task_id))

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
        ids: Iterable[object] | None = None,
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
        ids: Iterable[object] | None = None,
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
