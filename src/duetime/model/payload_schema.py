"""JSON Schemas for payloads: judged in microseconds, without network and without slow patterns.

A schema is code from outside: it may not fetch anything, its patterns run in
linear time, and it is bounded in size, in what it holds in memory and in what it
can cost (`schema_weight`): a judgement cannot be broken off, and everybody waits
for it, because the library lets no other thread run meanwhile.
"""

import itertools
from typing import Any

import jsonschema_rs
import msgspec

from duetime.model.pattern_weight import DFA_BYTES
from duetime.model.schema_weight import EndlessError, PatternError, weigh

MAX_SCHEMA_BYTES = 64 * 1024
#: What a compiled schema may hold in memory; it also bounds the time to compile it.
MAX_HELD_BYTES = 8 * 1024 * 1024
#: Nanoseconds that a judgement may take by its weight: twice to twenty times of what it takes in fact.
MAX_COST = 40_000_000
#: Up to here nobody notices a judgement.
LIGHT_COST = 1_000_000
#: Up to here a payload that is wrong is judged again, to say where.
_AGAIN_COST = 5_000_000
#: All that is wrong is looked for up to here: the library makes every error before it tells the first.
_TOLD_COST = 15_000_000
MAX_ERRORS = 5
_MAX_MESSAGE = 300
#: An error, and each value in what it is about, which it carries.
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
        #: A payload of so many bytes need not be looked at before it is judged.
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
        """What it holds in memory, at the most."""
        return self._weight.held_bytes

    def is_light(self, size: int) -> bool:
        """Whether a payload of so many bytes is judged before anybody notices."""
        return size <= self._light_bytes

    def is_valid(self, payload: object, size: int) -> bool:
        """`size` is the payload's length as JSON."""
        if size > self._right_bytes and self._weight.cost_of(payload)[0] > MAX_COST:
            return False
        return bool(self._validator.is_valid(payload))

    def judge(self, payload: object, size: int) -> list[tuple[str, str]]:
        """What is wrong, as (path, message): the first few; nothing is wrong with a payload that matches."""
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
        """Up to how many bytes every payload costs no more, to the next power of two below."""
        size = 1 << 20
        while size and self._weight.bound_of(size) > most:
            size >>= 1
        return size


def _tell(error: jsonschema_rs.ValidationError) -> tuple[str, str]:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
    return path, str(error.message)[:_MAX_MESSAGE]
