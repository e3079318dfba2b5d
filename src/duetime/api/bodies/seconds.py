"""Durations in requests: each kind is a type that knows its range.

msgspec passes such a field to `decode_hook`, so a bad duration is reported with
its path like any other wrong value, and `schema_hook` describes the same range
in the OpenAPI document.
"""

from typing import Any, ClassVar

from duetime.config import MAX_SILENCE_SECONDS, MIN_SILENCE_SECONDS
from duetime.model.duration import DURATION_PATTERN, format_duration, parse_duration
from duetime.model.task import MAX_TIMEOUT_SECONDS
from duetime.model.tenant_breaker import MAX_PROBE_SECONDS, MAX_WINDOW_SECONDS, MIN_WINDOW_SECONDS

_DAY = 86_400.0


class Seconds(float):
    """A duration of a request, in seconds."""

    minimum: ClassVar[float] = 0.0
    maximum: ClassVar[float] = 3_653 * _DAY
    purpose: ClassVar[str] = "A duration"


class Delay(Seconds):
    purpose = "How long from now"


class Timeout(Seconds):
    minimum, maximum = 0.1, MAX_TIMEOUT_SECONDS
    purpose = "How long one attempt may take"


class Backoff(Seconds):
    maximum = 30 * _DAY
    purpose = "How long to wait between attempts"


class RetrySpan(Seconds):
    maximum = 365 * _DAY
    purpose = "How long after the first attempt to keep retrying"


class Sla(Seconds):
    minimum = 0.001
    purpose = "How long after its due time the task should have succeeded at the latest"


class KeyRetention(Seconds):
    minimum, maximum = 1.0, 7 * _DAY
    purpose = "How long the idempotency key is kept at least; it also stays until its task is over"


class Overlapping(Seconds):
    maximum = 90 * _DAY
    purpose = "How long the replaced key stays valid"


class Unused(Seconds):
    minimum = 60.0
    purpose = "How long a key has not been used"


class SigningOverlap(Seconds):
    maximum = 30 * _DAY
    purpose = "How long the former secret signs as well"


class Wait(Seconds):
    maximum = 60.0
    purpose = "How long to wait for a task to become due"


class Silence(Seconds):
    minimum, maximum = MIN_SILENCE_SECONDS, MAX_SILENCE_SECONDS
    purpose = "How long a worker may be silent before it counts as dead and loses what it holds"


class BreakerWindow(Seconds):
    minimum, maximum = MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS
    purpose = "How long more than that share of its attempts must have failed"


class ProbeEvery(Seconds):
    minimum, maximum = 1.0, MAX_PROBE_SECONDS
    purpose = "How often one of its tasks is tried while it is stopped"


class RetryAfter(Seconds):
    maximum = 365 * _DAY
    purpose = "When to try again, counted from now"


def decode_hook(kind: type, value: object) -> object:
    """Make a value of one of duetime's own types; a ValueError becomes a validation error."""
    if not issubclass(kind, Seconds):
        raise NotImplementedError(f"no way to read a {kind.__name__}")
    seconds = parse_duration(value)
    if not kind.minimum <= seconds <= kind.maximum:
        low, high = format_duration(kind.minimum), format_duration(kind.maximum)
        raise ValueError(f"must be between {low} and {high}")
    return kind(seconds)


def schema_hook(kind: type) -> dict[str, Any]:
    if not issubclass(kind, Seconds):
        raise NotImplementedError(f"no schema for a {kind.__name__}")
    low, high = format_duration(kind.minimum), format_duration(kind.maximum)
    return {
        "description": f'{kind.purpose}: seconds, or text like "30s", "5m", "2h", "1d", "1h30m"; {low} to {high}.',
        "anyOf": [
            {"type": "number", "minimum": kind.minimum, "maximum": kind.maximum},
            {"type": "string", "pattern": DURATION_PATTERN, "format": f"duration-{kind.__name__.lower()}"},
        ],
    }
