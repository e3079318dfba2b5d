"""What operators read and set while the service runs: breakers, the outbox, nodes, the audit log."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from duetime.sdk.errors import FieldError

#: The state to force on a breaker: no calls, no limit, or let it decide by itself.
BreakerState = Literal["open", "closed", "auto"]


class Breaker(msgspec.Struct, frozen=True):
    """How many calls to a target host, or starts of the whole tenant, are allowed, and why."""

    #: `tenant`: all tasks of the tenant, both HTTP calls and tasks of workers.
    host: str
    state: str = ""
    reason: str = ""
    #: When calls begin again, if none are made now.
    next_probe_at: datetime | None = None
    #: Calls that may start per second. None: not limited. 0: none, or only probes.
    allowed_rate: float | None = None
    #: Calls that were judged most recently, and how many of them failed.
    calls: int = 0
    failures: int = 0
    #: `open` or `closed` if it was forced. None: it decides by itself.
    forced: str | None = None
    note: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """Why it could not become a task: the problem that submitting it would have returned."""

    code: str = ""
    detail: str = ""
    errors: list[FieldError] = []


class Refused(msgspec.Struct, frozen=True):
    """What a producer wrote in its own transaction, and why it did not become a task."""

    id: int
    #: As the producer wrote it.
    body: Any = None
    written_at: datetime | None = None
    refused_at: datetime | None = None
    error: Refusal = Refusal()


class OutboxNumber(msgspec.Struct, frozen=True):
    """The state of an outbox number: `waiting`, `accepted` or `refused`."""

    id: int
    state: str = ""
    #: The task that it became.
    task: str | None = None
    refused: Refused | None = None


class Node(msgspec.Struct, frozen=True):
    """A node of the cluster, as seen by the node that answers."""

    name: str
    #: How many shards it feeds.
    shards: int = 0
    #: Whether it is the node that gave this answer.
    answers: bool = False


class Act(msgspec.Struct, frozen=True):
    """A change to a tenant or a key: by whom, when, and the values before and after."""

    id: int
    at: datetime | None = None
    tenant: str | None = None
    #: `key`, or `database` for a change that was made without a key.
    actor: str = ""
    key: int | None = None
    #: The first characters of the key.
    key_hint: str | None = None
    action: str = ""
    subject: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
