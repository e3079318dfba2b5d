"""What a task type says about its tasks, and how single submissions are kept apart or together, as pure data.

`TypeRules` is what is stored with a type.  `Flow` is what those rules, or the
submission itself, mean for one new task: by which keys it is counted, unique or
debounced.  A key is a hash, so that it has one size whatever the value is.
"""

import hashlib
import re
from typing import Any

import msgspec

from duetime.model.limits import TypeLimits
from duetime.model.retry import RetryPolicy
from duetime.model.task import TaskState

#: Names joined by dots: where in a payload the key is.
KEY_PATH_PATTERN = r"^[^.\u0000-\u001F\u007F]{1,100}(\.[^.\u0000-\u001F\u007F]{1,100}){0,7}$"
OPEN_STATES = (
    TaskState.BLOCKED,
    TaskState.SCHEDULED,
    TaskState.READY,
    TaskState.RUNNING,
    TaskState.RETRYING,
    TaskState.PAUSED,
)

_KEY_PATH = re.compile(KEY_PATH_PATTERN[1:-1])
_decode = msgspec.json.Decoder().decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class TypeDefaults(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a submission gets for the fields that it leaves out."""

    queue: str | None = None
    #: As text: `high`.
    priority: str | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    sla: float | None = None


class Throttle(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attempts start at this pace; those beyond it wait. Durations in seconds."""

    limit: int
    period: float
    #: How many may start beyond the limit.
    burst: int = 0
    key: str | None = None


class RateLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Submissions beyond it are refused."""

    limit: int
    period: float
    key: str | None = None


class Debounce(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of several submissions within the period only the last one runs."""

    period: float
    key: str | None = None
    timeout: float | None = None


class Unique(msgspec.Struct, frozen=True, omit_defaults=True):
    """While a task is in one of these states, another task with the same key is not stored."""

    key: str | None = None
    states: tuple[TaskState, ...] = OPEN_STATES
    period: float | None = None


class TypeRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything a type says besides its schema."""

    defaults: TypeDefaults | None = None
    limits: TypeLimits | None = None
    throttle: Throttle | None = None
    rate_limit: RateLimit | None = None
    debounce: Debounce | None = None
    unique: Unique | None = None

    @property
    def is_empty(self) -> bool:
        return self == _NO_RULES

    @property
    def matters_to_submissions(self) -> bool:
        return not (self.defaults is None and self.rate_limit is None and self.debounce is None and self.unique is None)

    def limits_in_force(self) -> TypeLimits | None:
        """The limits, with the throttle written as a limit: a rate, its burst, its key."""
        if self.throttle is None:
            return self.limits
        asked = self.throttle
        return msgspec.structs.replace(
            self.limits or TypeLimits(),
            rate=asked.limit / asked.period,
            burst=asked.limit + asked.burst,
            rate_key=asked.key,
        )


_NO_RULES = TypeRules()


class RateTicket(msgspec.Struct, frozen=True):
    """Counted under this key: at most this many at once and in each period."""

    key: bytes
    limit: int
    period: float


class UniqueTicket(msgspec.Struct, frozen=True):
    key: bytes
    states: tuple[TaskState, ...]
    period: float | None


class DebounceTicket(msgspec.Struct, frozen=True):
    key: bytes
    period: float
    timeout: float | None


class Flow(msgspec.Struct, frozen=True):
    """The rules between a submission and its task; at most one of `unique` and `debounce`."""

    rate: RateTicket | None = None
    unique: UniqueTicket | None = None
    debounce: DebounceTicket | None = None


def is_key_path(text: str) -> bool:
    return _KEY_PATH.fullmatch(text) is not None


def value_at(payload: Any, path: str) -> object:
    """The value at a path in a payload; null if there is none."""
    for name in path.split("."):
        if not isinstance(payload, dict):
            return None
        payload = payload.get(name)
    return payload


def key_of(type: str, payload: bytes, path: str | None) -> bytes:
    """The key of a type's rule: what the payload has at the path, or the type alone."""
    return _hash([type] if path is None else [type, value_at(_decode(payload), path)])


def key_named(type: str, name: str) -> bytes:
    """A key that a submission gives itself; equal to the key of a payload that contains the same value."""
    return _hash([type, name])


def key_of_payload(type: str, payload: bytes) -> bytes:
    """The whole payload, however it is formatted."""
    return _hash([type, "payload", _decode(payload)])


def _hash(parts: list[object]) -> bytes:
    return hashlib.blake2b(_encode_sorted(parts), digest_size=16).digest()
