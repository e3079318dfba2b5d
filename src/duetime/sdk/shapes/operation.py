"""What one looks at and sets while the service runs: breakers, the outbox, nodes, the audit log."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from duetime.sdk.errors import FieldError

#: What a breaker shall do: call nothing, limit nothing, or decide by itself.
BreakerState = Literal["open", "closed", "auto"]


class Breaker(msgspec.Struct, frozen=True):
    """What is let through to a target host, or of the whole tenant, and why."""

    #: `tenant`: all of the tenant's tasks, whoever runs them.
    host: str
    state: str = ""
    reason: str = ""
    #: When calls begin again, if there are none now.
    next_probe_at: datetime | None = None
    #: Calls that may start in a second; None: not limited; 0: none, or only probes.
    allowed_rate: float | None = None
    #: Calls that were judged last, and how many of them failed.
    calls: int = 0
    failures: int = 0
    #: `open` or `closed`, if somebody set it; None: it decides by itself.
    forced: str | None = None
    note: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """Why it could not become a task: what submitting it would have been answered with."""

    code: str = ""
    detail: str = ""
    errors: list[FieldError] = []


class Refused(msgspec.Struct, frozen=True):
    """What a producer wrote in its own transaction, and why it is no task."""

    id: int
    #: As it was written.
    body: Any = None
    written_at: datetime | None = None
    refused_at: datetime | None = None
    error: Refusal = Refusal()


class OutboxNumber(msgspec.Struct, frozen=True):
    """What became of a number of the outbox: `waiting`, `accepted` or `refused`."""

    id: int
    state: str = ""
    #: The task that was made of it.
    task: str | None = None
    refused: Refused | None = None


class Node(msgspec.Struct, frozen=True):
    """A node of the cluster, as the one that answers sees it."""

    name: str
    #: How many shards it feeds.
    shards: int = 0
    #: Whether it is the node that gave this answer.
    answers: bool = False


class Act(msgspec.Struct, frozen=True):
    """Something that was done to a tenant or a key: who, when, what before and after."""

    id: int
    at: datetime | None = None
    tenant: str | None = None
    #: `key`, or `database` for what was done without one.
    actor: str = ""
    key: int | None = None
    #: How the key begins.
    key_hint: str | None = None
    action: str = ""
    subject: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
