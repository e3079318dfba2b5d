"""JSON Schemas for payloads: compiled once, judged in microseconds, without network and without slow patterns.

A schema is code from outside: it may not fetch anything, its patterns run in
linear time, and it is bounded in size and in what it can cost (`schema_weight`):
a judgement cannot be broken off, and everybody waits for it.
"""

import itertools
from typing import Any

import jsonschema_rs
import msgspec

from duetime.model.schema_weight import EndlessError, weigh

MAX_SCHEMA_BYTES = 64 * 1024
#: Subschemas when all references are written out.
MAX_SUBSCHEMAS = 10_000
#: Meetings of a subschema with a value: some tenths of a second.
MAX_COST = 1_000_000
#: Up to this cost all that is wrong is looked for: the library makes every error before it tells the first.
MAX_TOLD_COST = 20_000
MAX_ERRORS = 5
_MAX_MESSAGE = 300


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
        except (EndlessError, RecursionError) as error:
            raise SchemaError("has too many references, or is nested too deeply") from error
        if self._weight.size > MAX_SUBSCHEMAS:
            raise SchemaError(f"has more than {MAX_SUBSCHEMAS:,} subschemas when its references are written out")
        try:
            jsonschema_rs.meta.validate(value)
            self._validator: Any = jsonschema_rs.validator_for(
                value, offline=True, pattern_options=jsonschema_rs.RegexOptions()
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
            message = getattr(error, "message", None) or str(error)
            raise SchemaError(f"is not a JSON Schema that can be used here: {message[:_MAX_MESSAGE]}") from error

    def is_valid(self, payload: object) -> bool:
        return self._weight.cost_of(payload) <= MAX_COST and bool(self._validator.is_valid(payload))

    def errors(self, payload: object) -> list[tuple[str, str]]:
        """What is wrong, as (path, message): the first few."""
        cost = self._weight.cost_of(payload)
        if cost > MAX_COST:
            return [("", "is too large to be judged by the schema of its type; send less, or simplify the schema")]
        if cost > MAX_TOLD_COST:
            if self._weight.has_alternatives:
                return [("", "does not match the schema of its type, and is too large to say where")]
            try:
                self._validator.validate(payload)
            except jsonschema_rs.ValidationError as error:
                return [_tell(error)]
        return [_tell(error) for error in itertools.islice(self._validator.iter_errors(payload), MAX_ERRORS)]


def _tell(error: jsonschema_rs.ValidationError) -> tuple[str, str]:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
    return path, str(error.message)[:_MAX_MESSAGE]
