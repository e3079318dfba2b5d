"""JSON Schemas for payloads: compiled once, judged in microseconds, without network and without slow patterns.

A schema is code from outside: it may not fetch anything, its patterns run in
linear time, and it is bounded in size.
"""

from typing import Any

import jsonschema_rs
import msgspec

MAX_SCHEMA_BYTES = 64 * 1024
MAX_ERRORS = 5
_MAX_MESSAGE = 300


class SchemaError(ValueError):
    """The schema itself is wrong."""


class PayloadSchema:
    def __init__(self, schema: bytes) -> None:
        if len(schema) > MAX_SCHEMA_BYTES:
            raise SchemaError(f"has {len(schema)} bytes; at most {MAX_SCHEMA_BYTES} are allowed")
        value = msgspec.json.decode(schema)
        if not isinstance(value, dict | bool):
            raise SchemaError("must be an object, or true or false")
        try:
            jsonschema_rs.meta.validate(value)
            self._validator: Any = jsonschema_rs.validator_for(
                value, offline=True, pattern_options=jsonschema_rs.RegexOptions()
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
            message = getattr(error, "message", None) or str(error)
            raise SchemaError(f"is not a JSON Schema that can be used here: {message[:_MAX_MESSAGE]}") from error

    def is_valid(self, payload: object) -> bool:
        return bool(self._validator.is_valid(payload))

    def errors(self, payload: object) -> list[tuple[str, str]]:
        """What is wrong, as (path, message): the first few."""
        found: list[tuple[str, str]] = []
        for error in self._validator.iter_errors(payload):
            path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
            found.append((path, str(error.message)[:_MAX_MESSAGE]))
            if len(found) == MAX_ERRORS:
                break
        return found
