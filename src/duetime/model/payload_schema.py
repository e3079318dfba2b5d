"""JSON Schemas for payloads: judged in microseconds, without network and without slow patterns.

A schema is code from outside: it may not fetch anything, its patterns run in
linear time, and it is bounded in size, in the memory that it holds and in what it
can cost (`schema_weight`).  A judgement cannot be interrupted, and everything else
waits for it, because the library lets no other thread run in the meantime.
"""

import itertools
from typing import Any

import jsonschema_rs
import msgspec

from duetime.model.pattern_weight import DFA_BYTES
from duetime.model.schema_weight import EndlessError, PatternError, weigh

MAX_SCHEMA_BYTES = 64 * 1024
#: The most memory that a compiled schema may hold; it also bounds the time to compile it.
MAX_HELD_BYTES = 8 * 1024 * 1024
#: The most nanoseconds that a judgement may take by its weight, which is 2 to 20 times the real time.
MAX_COST = 40_000_000
#: Up to this cost a judgement is too short to be noticed.
LIGHT_COST = 1_000_000
#: Up to this cost a payload that is wrong is judged again, to say where.
_AGAIN_COST = 5_000_000
#: Up to this cost all errors are collected: the library makes every error before it returns the first.
_TOLD_COST = 15_000_000
MAX_ERRORS = 5
_MAX_MESSAGE = 300
#: The cost of an error, and of each value inside the value that the error is about, which the error contains.
_ERROR_NS, _ERROR_VALUE_NS = 8_000, 200


class SchemaError(ValueError):
    """The schema itself is wrong."""


class PayloadSchema:
    def __init__(self, schema: bytes) -> None:
        if len(schema) > MAX_SCHEMA_BYTES:
            raise SchemaError(f"has {len(schema)} bytes; at most {MAX_SCHEMA_BYTES} are allowed")
        try:
            value = msgspec.json.decode(schema)
        except RecursionError as error:
            raise SchemaError("is nested too deeply") from error
        if not isinstance(value, dict | bool):
            raise SchemaError("must be an object, or true or false")
        try:
            self._weight = weigh(value)
        except PatternError as error:
            raise SchemaError(f"cannot be used: {error}") from error
        except (EndlessError, RecursionError) as error:
            reason = str(error) if isinstance(error, EndlessError) else "is nested too deeply"
            raise SchemaError(f"{reason}, so that nobody can say what it costs") from error
        if self._weight.held_bytes > MAX_HELD_BYTES:
            raise SchemaError(
                f"would take about {self._weight.held_bytes // 1024:,} KiB of memory when it is compiled; at most "
                f"{MAX_HELD_BYTES // 1024:,} are allowed. Shorten the repetitions in its patterns, or use maxLength"
            )
        if self._weight.small_ns > MAX_COST:
            raise SchemaError("is too dear even for a small payload: simplify its references, enums or patterns")
        #: A payload of up to this many bytes is judged without a look at its cost.
        self._light_bytes = self._find_size(LIGHT_COST)
        self._right_bytes = self._find_size(MAX_COST)
        options = jsonschema_rs.RegexOptions(max(self._weight.pattern_bytes, 1024), DFA_BYTES)
        try:
            self._validator: Any = jsonschema_rs.validator_for(value, offline=True, pattern_options=options)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
            message = getattr(error, "message", None) or str(error)
            raise SchemaError(f"is not a JSON Schema that can be used here: {message[:_MAX_MESSAGE]}") from error

    @property
    def held_bytes(self) -> int:
        """The most memory that it holds."""
        return self._weight.held_bytes

    def is_light(self, size: int) -> bool:
        """Whether judging a payload of this many bytes is too short to be noticed."""
        return size <= self._light_bytes

    def is_valid(self, payload: object, size: int) -> bool:
        """Whether the payload matches; `size` is its length as JSON."""
        if size > self._right_bytes and self._weight.cost_of(payload)[0] > MAX_COST:
            return False
        return bool(self._validator.is_valid(payload))

    def judge(self, payload: object, size: int) -> list[tuple[str, str]]:
        """The first few errors as (path, message); a payload that matches has none."""
        if size <= self._light_bytes and self._validator.is_valid(payload):
            return []
        cost, checks, values = self._weight.cost_of(payload)
        if cost > MAX_COST:
            return [("", "is too large to be judged by the schema of its type; send less, or simplify the schema")]
        is_dear = cost > _AGAIN_COST
        if (not is_dear or self._weight.has_alternatives) and self._validator.is_valid(payload):
            return []
        if not is_dear and checks * (_ERROR_NS + _ERROR_VALUE_NS * values) <= _TOLD_COST:
            return [_tell(error) for error in itertools.islice(self._validator.iter_errors(payload), MAX_ERRORS)]
        if self._weight.has_alternatives:
            return [("", "does not match the schema of its type, and is too large to say where")]
        try:
            self._validator.validate(payload)
        except jsonschema_rs.ValidationError as error:
            return [_tell(error)]
        return []

    def _find_size(self, most: int) -> int:
        """The largest power of two, in bytes, up to which no payload costs more than this."""
        size = 1 << 20
        while size and self._weight.bound_of(size) > most:
            size >>= 1
        return size


def _tell(error: jsonschema_rs.ValidationError) -> tuple[str, str]:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
    return path, str(error.message)[:_MAX_MESSAGE]
