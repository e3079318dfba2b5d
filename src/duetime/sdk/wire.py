"""Requests and answers of the HTTP API, without I/O: what both clients share.

A `Call` is one logical request: its bytes, its key, and how to read its answer.
The key (a UUIDv7 in `Idempotency-Key`) stays the same however often the call is
sent, so the server does it once.  `Tries` decides whether and when to send again.
"""

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from duetime.sdk.errors import (
    ApiError,
    ConfigurationError,
    InvalidRequest,
    ServerUnavailable,
)
from duetime.sdk.problems import error_of
from duetime.sdk.shapes import (
    Attempt,
    BatchItem,
    BatchResult,
    BulkResult,
    DeadLetter,
    Explanation,
    Page,
    Problem,
    Submission,
    Task,
    TaskOrId,
    id_of,
)
from duetime.sdk.uuid7 import make_uuid7

T = TypeVar("T")
U = TypeVar("U")

KEY_HEADER = "Idempotency-Key"
TENANT_HEADER = "Duetime-Tenant"
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_BATCH = 5_000
#: One MiB below what the server takes.
MAX_BATCH_BYTES = 15 * 1024 * 1024

#: The type takes no more of this key now: the caller decides whether to come again.
RATE_LIMITED = "rate_limited"

Verb = Literal["cancel", "pause", "resume", "reschedule", "retry", "run-now"]

_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 1.0

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def raise_for_status(self) -> None:
        if not 200 <= self.status < 300:
            raise error_of(self.status, self.headers, self.body)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One logical request."""

    method: str
    path: str
    read_body: Callable[[bytes], T]
    body: bytes | None = None
    key: str = field(default_factory=lambda: str(make_uuid7()))
    is_renamed: bool = False

    def read(self, answer: Answer) -> T:
        """The answer's value; raises the ApiError that its status stands for."""
        answer.raise_for_status()
        try:
            return self.read_body(answer.body)
        except msgspec.DecodeError as error:
            detail = f"the answer of {self.method} {self.path} cannot be read: {error}"
            raise ApiError(detail, status=answer.status, code="unreadable") from error

    def read_as(self, read_body: Callable[[bytes], U]) -> "Call[U]":
        """The same call, with another way to read its answer."""
        return Call(self.method, self.path, read_body, self.body, self.key, self.is_renamed)

    def renamed(self, error: InvalidRequest) -> "Call[T]":
        """The call under a key made by the server's clock, if this machine's was too far off; else raises."""
        if self.is_renamed or error.answered_at is None or all(each.path != KEY_HEADER for each in error.errors):
            raise error
        key = str(make_uuid7(int(error.answered_at.timestamp() * 1000)))
        return replace(self, key=key, is_renamed=True)


class Tries:
    """When to send a call again: growing waits with jitter, within `retry_for` seconds."""

    FIRST_WAIT = 0.1
    LONGEST_WAIT = 5.0

    def __init__(
        self,
        retry_for: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._monotonic = monotonic
        self._chance = chance
        self._until = monotonic() + retry_for
        self._count = 0

    def wait_after(self, error: ServerUnavailable) -> float:
        """Seconds until the next try; raises the error when that would be too late, or is not wanted."""
        if error.code == RATE_LIMITED:
            raise error
        bound = min(self.LONGEST_WAIT, self.FIRST_WAIT * 2.0 ** min(self._count, 16))
        self._count += 1
        # Between half and all of it: spread out, and never a tight loop.
        wait = bound * (0.5 + 0.5 * self._chance())
        if error.retry_after is not None:
            wait = max(wait, error.retry_after)
        if self._monotonic() + wait > self._until:
            raise error
        return wait


def looks(timeout: float) -> Iterator[float]:
    """Pauses between looks, growing, until the time is over; at least one look."""
    until = time.monotonic() + timeout
    pause = _FIRST_LOOK_SECONDS
    while True:
        left = until - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(_LONGEST_LOOK_SECONDS, pause * 1.5)


def check_tenant(tenant: str | None) -> str | None:
    """It travels in a header."""
    if tenant is not None and not _TENANT.fullmatch(tenant):
        raise ConfigurationError(f'"{tenant}" is not the name of a tenant')
    return tenant


class Filter(TypedDict, total=False):
    """Which tasks: of lists and of the bulk verbs."""

    state: str | None
    type: str | None
    queue: str | None
    priority: str | None
    labels: dict[str, str] | None
    from_: datetime | str | None
    to: datetime | str | None
    schedule: str | None


def _filter_fields(filter: Filter) -> dict[str, Any]:
    fields: dict[str, Any] = {name: value for name, value in filter.items() if value is not None}
    if "from_" in fields:
        fields["from"] = fields.pop("from_")
    if "labels" in fields:
        fields["label"] = [f"{name}={value}" for name, value in fields.pop("labels").items()]
    return fields


def make_query(fields: Mapping[str, Any]) -> str:
    """The query with its question mark, without what is None."""
    parts = [
        (name, each.isoformat() if isinstance(each, datetime) else str(each))
        for name, value in fields.items()
        if value is not None
        for each in (value if isinstance(value, list) else [value])
    ]
    return "?" + urlencode(parts, errors="surrogateescape") if parts else ""


_read_task = msgspec.json.Decoder(Task).decode
_read_batch = msgspec.json.Decoder(BatchResult).decode
_read_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_page = msgspec.json.Decoder(Page[Task]).decode
_read_bulk = msgspec.json.Decoder(BulkResult).decode
_read_attempts = msgspec.json.Decoder(Page[Attempt]).decode
_read_dead = msgspec.json.Decoder(Page[DeadLetter]).decode
_read_explanation = msgspec.json.Decoder(Explanation).decode


def probe(name: Literal["healthz", "readyz"]) -> Call[bytes]:
    """Whether the node lives, or takes requests."""
    return Call("GET", f"/{name}", bytes)


def submit(submission: Submission | Mapping[str, object]) -> Call[Task]:
    return Call("POST", "/v1/tasks", _read_task, encode(submission))


def submit_many(
    submissions: Iterable[Submission | Mapping[str, Any]], *, atomic: bool = False
) -> Iterator[Call[BatchResult]]:
    """Calls of up to 5,000 tasks or 15 MiB each; an atomic batch has to fit into one."""
    given = iter(submissions)
    while chunk := [
        each if isinstance(each, Submission) else Submission(**each) for each in islice(given, MAX_BATCH + atomic)
    ]:
        bodies = _bodies_of(chunk)
        if atomic and (len(bodies) > 1 or len(chunk) > MAX_BATCH):
            raise ValueError("an atomic batch is at most 5,000 tasks and 15 MiB")
        for body in bodies:
            yield submit_batch(body, atomic=atomic)


def submit_batch(body: bytes, *, atomic: bool = False) -> Call[BatchResult]:
    """One call, of an array of tasks as the API takes them."""
    return Call("POST", "/v1/tasks/batch?atomic=true" if atomic else "/v1/tasks/batch", _read_batch, body)


def _bodies_of(submissions: list[Submission]) -> list[bytes]:
    """All in one, or in several if that would be too long."""
    body = encode(submissions)
    if len(body) <= MAX_BATCH_BYTES or len(submissions) == 1:
        return [body]
    middle = len(submissions) // 2
    return [*_bodies_of(submissions[:middle]), *_bodies_of(submissions[middle:])]


def is_for_now(item: BatchItem) -> bool:
    """Whether it was refused and is worth sending again: a rate limit is the caller's to decide on."""
    return item.error is not None and item.error.status == 429 and item.error.code != RATE_LIMITED


def refused_for_now(result: BatchResult) -> tuple[list[int], ServerUnavailable] | None:
    """The places of items that may be accepted later, and when; None: there are none."""
    if not result.rejected:
        return None
    places = [place for place, item in enumerate(result.results) if is_for_now(item)]
    if not places:
        return None
    problem = result.results[places[0]].error or Problem()
    return places, ServerUnavailable(
        problem.detail, status=problem.status, code=problem.code, retry_after=problem.retry_after
    )


def part_of_batch(call: Call[BatchResult], places: list[int]) -> Call[BatchResult]:
    """Some items of a batch, as a request of its own."""
    items = _read_parts(call.body or b"[]")
    return Call(
        call.method, call.path, call.read_body, b"[" + b",".join(bytes(items[place]) for place in places) + b"]"
    )


def _task_path(task: TaskOrId, *rest: str) -> str:
    return "/".join(("/v1/tasks", quote(id_of(task), safe=""), *rest))


def get(task: TaskOrId) -> Call[Task]:
    return Call("GET", _task_path(task), _read_task)


def list_attempts(task: TaskOrId, *, limit: int | None, cursor: str | None) -> Call[Page[Attempt]]:
    return Call("GET", _task_path(task, "attempts") + make_query({"limit": limit, "cursor": cursor}), _read_attempts)


def act(verb: Verb, task: TaskOrId, **fields: Any) -> Call[Task]:
    """One of the verbs, on one task."""
    given = without_none(fields)
    return Call("POST", _task_path(task, verb), _read_task, encode(given) if given else None)


def act_on_many(
    verb: Verb, filter: Filter, *, limit: int | None, cursor: str | None, **fields: Any
) -> Call[BulkResult]:
    body = {"filter": _filter_fields(filter), "limit": limit, "cursor": cursor, **fields}
    return Call("POST", f"/v1/tasks/bulk/{verb}", _read_bulk, encode(without_none(body)))


def explain(task: TaskOrId) -> Call[Explanation]:
    return Call("GET", _task_path(task, "explain"), _read_explanation)


def list_tasks(filter: Filter, *, limit: int | None, cursor: str | None) -> Call[Page[Task]]:
    return Call(
        "GET", "/v1/tasks" + make_query({**_filter_fields(filter), "limit": limit, "cursor": cursor}), _read_page
    )


def list_dead(filter: Filter, *, limit: int | None, cursor: str | None) -> Call[Page[DeadLetter]]:
    return Call(
        "GET", "/v1/dead" + make_query({**_filter_fields(filter), "limit": limit, "cursor": cursor}), _read_dead
    )


def act_on_dead(
    verb: Literal["redrive", "drop"],
    ids: Iterable[TaskOrId] | TaskOrId | None,
    filter: Filter,
    *,
    everything: bool,
    rate: float | None,
    limit: int | None,
    cursor: str | None,
) -> Call[BulkResult]:
    if (ids is not None) + bool(filter) + everything != 1:
        raise ValueError(f"{verb}: give ids, or a filter, or all=True")
    body: dict[str, Any] = {"rate": rate, "limit": limit, "cursor": cursor}
    if ids is not None:
        body["ids"] = [id_of(each) for each in ([ids] if isinstance(ids, TaskOrId) else ids)]
    elif everything:
        body["all"] = True
    else:
        body["filter"] = _filter_fields(filter)
    return Call("POST", f"/v1/dead/{verb}", _read_bulk, encode(without_none(body)))


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
