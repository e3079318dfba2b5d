"""One request of the HTTP API and its answer, without I/O: what both clients share.

An `ApiCall` is one logical request: its bytes, its key, and how to read its answer.
The key (a UUIDv7 in `Idempotency-Key`) stays the same however often the call is
sent, so the server does it once.  `Tries` decides whether and when to send again.
"""

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from duetime.sdk.calls.problems import error_of
from duetime.sdk.errors import (
    ApiError,
    ConfigurationError,
    InvalidRequest,
    ServerUnavailable,
)
from duetime.sdk.uuid7 import make_uuid7

T = TypeVar("T")
U = TypeVar("U")

KEY_HEADER = "Idempotency-Key"
TENANT_HEADER = "Duetime-Tenant"
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

#: The type takes no more of this key now. The caller decides whether to try again.
RATE_LIMITED = "rate_limited"

encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def raise_for_status(self) -> None:
        if not 200 <= self.status < 300:
            raise error_of(self.status, self.headers, self.body)


@dataclass(frozen=True)
class ApiCall(Generic[T]):
    """One logical request."""

    method: str
    path: str
    read_body: Callable[[bytes], T]
    body: bytes | None = None
    key: str = field(default_factory=lambda: str(make_uuid7()))
    is_renamed: bool = False

    def read(self, answer: Answer) -> T:
        """Return the answer's value, or raise the ApiError that its status stands for."""
        answer.raise_for_status()
        try:
            return self.read_body(answer.body)
        except msgspec.DecodeError as error:
            detail = f"the answer of {self.method} {self.path} cannot be read: {error}"
            raise ApiError(detail, status=answer.status, code="unreadable") from error

    def read_as(self, read_body: Callable[[bytes], U]) -> "ApiCall[U]":
        """The same call, with another way to read its answer."""
        return ApiCall(self.method, self.path, read_body, self.body, self.key, self.is_renamed)

    def renamed(self, error: InvalidRequest) -> "ApiCall[T]":
        """Return the call with a key made by the server's clock if this machine's clock was too far off; else raise."""
        if self.is_renamed or error.answered_at is None or all(each.path != KEY_HEADER for each in error.errors):
            raise error
        key = str(make_uuid7(int(error.answered_at.timestamp() * 1000)))
        return replace(self, key=key, is_renamed=True)


class Tries:
    """Decides when to send a call again: the waits grow, with jitter, for at most `retry_for` seconds."""

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
        """Return the seconds until the next try. Raise the error if that is too late or no retry is wanted."""
        if error.code == RATE_LIMITED:
            raise error
        bound = min(self.LONGEST_WAIT, self.FIRST_WAIT * 2.0 ** min(self._count, 16))
        self._count += 1
        # Between half of the wait and all of it: retries are spread out, and never become a tight loop.
        wait = bound * (0.5 + 0.5 * self._chance())
        if error.retry_after is not None:
            wait = max(wait, error.retry_after)
        if self._monotonic() + wait > self._until:
            raise error
        return wait


def check_tenant(tenant: str | None) -> str | None:
    """Check a value that is sent in a header."""
    if tenant is not None and not _TENANT.fullmatch(tenant):
        raise ConfigurationError(f'"{tenant}" is not the name of a tenant')
    return tenant


def make_query(fields: Mapping[str, Any]) -> str:
    """Return the query with its question mark, without parameters that are None."""
    parts = [
        (name, each.isoformat() if isinstance(each, datetime) else str(each))
        for name, value in fields.items()
        if value is not None
        for each in (value if isinstance(value, list) else [value])
    ]
    return "?" + urlencode(parts, errors="surrogateescape") if parts else ""


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
