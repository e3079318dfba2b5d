"""The calls about tasks and dead letters."""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Literal, TypedDict

import msgspec

from duetime.sdk.calls.call import RATE_LIMITED, ApiCall, encode, make_query, without_none
from duetime.sdk.calls.collection import Collection
from duetime.sdk.errors import ServerUnavailable
from duetime.sdk.shapes.answers import Page, Problem
from duetime.sdk.shapes.tasks import (
    Attempt,
    BatchItem,
    BatchResult,
    BulkResult,
    DeadLetter,
    Explanation,
    Submission,
    Task,
    TaskOrId,
    id_of,
)

MAX_BATCH = 5_000
#: One MiB below what the server accepts.
MAX_BATCH_BYTES = 15 * 1024 * 1024

TASKS = Collection("tasks", Task, Page[Task])
DEAD = Collection("dead", DeadLetter, Page[DeadLetter])

Verb = Literal["cancel", "pause", "resume", "reschedule", "retry", "run-now"]

_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 1.0


def looks(timeout: float) -> Iterator[float]:
    """Yield growing pauses between looks until the time is over. There is at least one look."""
    until = time.monotonic() + timeout
    pause = _FIRST_LOOK_SECONDS
    while True:
        left = until - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(_LONGEST_LOOK_SECONDS, pause * 1.5)


class Filter(TypedDict, total=False):
    """A filter of tasks, for lists and for the bulk verbs."""

    state: str | None
    type: str | None
    queue: str | None
    priority: str | None
    labels: dict[str, str] | None
    from_: datetime | str | None
    to: datetime | str | None
    schedule: str | None


def _filter_fields(filter: Filter) -> dict[str, Any]:
    fields = without_none(filter)
    if "from_" in fields:
        fields["from"] = fields.pop("from_")
    if "labels" in fields:
        fields["label"] = [f"{name}={value}" for name, value in fields.pop("labels").items()]
    return fields


_read_batch = msgspec.json.Decoder(BatchResult).decode
_read_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_bulk = msgspec.json.Decoder(BulkResult).decode
_read_attempts = msgspec.json.Decoder(Page[Attempt]).decode
_read_explanation = msgspec.json.Decoder(Explanation).decode


def probe(name: Literal["healthz", "readyz"]) -> ApiCall[bytes]:
    """Ask whether the node is alive, or whether it takes requests."""
    return ApiCall("GET", f"/{name}", bytes)


def submit(submission: Submission | Mapping[str, object]) -> ApiCall[Task]:
    return ApiCall("POST", TASKS.path, TASKS.read, encode(submission))


def submit_many(
    submissions: Iterable[Submission | Mapping[str, Any]], *, atomic: bool = False
) -> Iterator[ApiCall[BatchResult]]:
    """Divide tasks into calls of up to 5,000 tasks or 15 MiB each. An atomic batch has to fit into one call."""
    given = iter(submissions)
    while chunk := [
        each if isinstance(each, Submission) else Submission(**each) for each in islice(given, MAX_BATCH + atomic)
    ]:
        bodies = _bodies_of(chunk)
        if atomic and (len(bodies) > 1 or len(chunk) > MAX_BATCH):
            raise ValueError("an atomic batch is at most 5,000 tasks and 15 MiB")
        for body in bodies:
            yield submit_batch(body, atomic=atomic)


def submit_batch(body: bytes, *, atomic: bool = False) -> ApiCall[BatchResult]:
    """One call with an array of tasks in the format of the API."""
    return ApiCall("POST", "/v1/tasks/batch?atomic=true" if atomic else "/v1/tasks/batch", _read_batch, body)


def _bodies_of(submissions: list[Submission]) -> list[bytes]:
    """Put all tasks into one call, or into several if one would be too long."""
    body = encode(submissions)
    if len(body) <= MAX_BATCH_BYTES or len(submissions) == 1:
        return [body]
    middle = len(submissions) // 2
    return [*_bodies_of(submissions[:middle]), *_bodies_of(submissions[middle:])]


def is_for_now(item: BatchItem) -> bool:
    """Whether the item was refused and can be sent again. Retrying after a rate limit is left to the caller."""
    return item.error is not None and item.error.status == 429 and item.error.code != RATE_LIMITED


def refused_for_now(result: BatchResult) -> tuple[list[int], ServerUnavailable] | None:
    """Return the places of items that may be accepted later, and when to send them. None: there are none."""
    if not result.rejected:
        return None
    places = [place for place, item in enumerate(result.results) if is_for_now(item)]
    if not places:
        return None
    problem = result.results[places[0]].error or Problem()
    return places, ServerUnavailable(
        problem.detail, status=problem.status, code=problem.code, retry_after=problem.retry_after
    )


def part_of_batch(call: ApiCall[BatchResult], places: list[int]) -> ApiCall[BatchResult]:
    """Make a request of its own for some items of a batch."""
    items = _read_parts(call.body or b"[]")
    return ApiCall(
        call.method, call.path, call.read_body, b"[" + b",".join(bytes(items[place]) for place in places) + b"]"
    )


def get(task: TaskOrId) -> ApiCall[Task]:
    return TASKS.get(id_of(task))


def list_attempts(task: TaskOrId, *, limit: int | None, cursor: str | None) -> ApiCall[Page[Attempt]]:
    query = make_query({"limit": limit, "cursor": cursor})
    return ApiCall("GET", TASKS.path_of(id_of(task), "attempts") + query, _read_attempts)


def act(verb: Verb, task: TaskOrId, **fields: Any) -> ApiCall[Task]:
    """Return the call of a verb on one task."""
    return TASKS.act(verb, id_of(task), without_none(fields) or None)


def act_on_many(
    verb: Verb, filter: Filter, *, limit: int | None, cursor: str | None, **fields: Any
) -> ApiCall[BulkResult]:
    body = {"filter": _filter_fields(filter), "limit": limit, "cursor": cursor, **fields}
    return TASKS.post(("bulk", verb), without_none(body), _read_bulk)


def explain(task: TaskOrId) -> ApiCall[Explanation]:
    return ApiCall("GET", TASKS.path_of(id_of(task), "explain"), _read_explanation)


def list_tasks(filter: Filter, *, limit: int | None, cursor: str | None) -> ApiCall[Page[Task]]:
    return TASKS.list(limit=limit, cursor=cursor, **_filter_fields(filter))


def list_dead(filter: Filter, *, limit: int | None, cursor: str | None) -> ApiCall[Page[DeadLetter]]:
    return DEAD.list(limit=limit, cursor=cursor, **_filter_fields(filter))


def act_on_dead(
    verb: Literal["redrive", "drop"],
    ids: Iterable[TaskOrId] | TaskOrId | None,
    filter: Filter,
    *,
    everything: bool,
    rate: float | None,
    limit: int | None,
    cursor: str | None,
) -> ApiCall[BulkResult]:
    if (ids is not None) + bool(filter) + everything != 1:
        raise ValueError(f"{verb}: give ids, or a filter, or all=True")
    body: dict[str, Any] = {"rate": rate, "limit": limit, "cursor": cursor}
    if ids is not None:
        body["ids"] = [id_of(each) for each in ([ids] if isinstance(ids, TaskOrId) else ids)]
    elif everything:
        body["all"] = True
    else:
        body["filter"] = _filter_fields(filter)
    return DEAD.post((verb,), without_none(body), _read_bulk)
