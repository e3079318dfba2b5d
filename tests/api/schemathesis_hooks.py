"""What no JSON schema can say, said to the fuzzer: how to make values that are right.

Times must lie within reach and in order, a cursor comes from an answer, a name
of a header must not be one of ours.  Everything else the fuzzer knows from the
OpenAPI document.
"""

import string
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import schemathesis
from hypothesis import strategies as st

from duetime.api.seconds import Seconds, Wait, decode_hook
from duetime.api.validation import RESERVED_HEADERS, RESERVED_PREFIXES
from duetime.model.duration import format_duration

_NOW = datetime.now(UTC)
_PRINTABLE = st.text(string.ascii_letters + string.digits + " -_éßλ漢", max_size=30)
_LABEL_KEY = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,20}", fullmatch=True)


def _instants(first: timedelta, last: timedelta) -> st.SearchStrategy[str]:
    seconds = st.integers(int(first.total_seconds()), int(last.total_seconds()))
    return seconds.map(lambda each: (_NOW + timedelta(seconds=each)).isoformat())


def _uuid7(salt: int) -> str:
    return str(uuid.UUID(int=int(time.time() * 1000) << 80 | 7 << 76 | 2 << 62 | salt))


_YEAR = timedelta(days=365)
schemathesis.openapi.format("date-time", _instants(-_YEAR, 9 * _YEAR))
schemathesis.openapi.format("after-due", _instants(11 * _YEAR, 19 * _YEAR))
schemathesis.openapi.format("printable", _PRINTABLE.filter(bool))
schemathesis.openapi.format("label", st.tuples(_LABEL_KEY, _PRINTABLE).map("=".join))
schemathesis.openapi.format("uuid7", st.integers(0, (1 << 62) - 1).map(_uuid7))
schemathesis.openapi.format("ndjson", st.lists(st.just('{"type":"a"}'), max_size=5).map("\n".join))
schemathesis.openapi.format(
    "uri", st.from_regex(r"https?://[a-z]{1,10}\.example(:[1-9][0-9]{0,3})?(/[a-z0-9]{0,8}){0,3}", fullmatch=True)
)
schemathesis.openapi.format(
    "header-name",
    st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True).filter(
        lambda name: name.lower() not in RESERVED_HEADERS and not name.lower().startswith(RESERVED_PREFIXES)
    ),
)
for _kind in Seconds.__subclasses__():
    _most = min(_kind.maximum, 86_400_000.0)
    schemathesis.openapi.format(
        f"duration-{_kind.__name__.lower()}",
        st.integers(int(max(_kind.minimum, 1) * 1000), int(_most * 1000)).map(lambda ms: format_duration(ms / 1000)),
    )


@schemathesis.hook
def before_load_schema(context: schemathesis.HookContext, raw_schema: dict[str, Any]) -> None:
    _trust_formats(raw_schema)
    schemas = raw_schema["components"]["schemas"]
    for body in schemas.values():
        fields = body.get("properties", {})
        fields.pop("cursor", None)
        for option in fields.get("expires_at", {}).get("anyOf", []):
            if "format" in option:
                option["format"] = "after-due"
    # `from` and `to` in order, a target or required tags, waits that go up: two fields that know of each other.
    for name in ("FilterRequest", "DeadFilterRequest"):
        schemas[name]["properties"].pop("to")
    schemas["TaskRequest"]["properties"].pop("requires")
    schemas["RetryRequest"]["properties"].pop("max_backoff")
    for path, methods in raw_schema["paths"].items():
        for operation in methods.values():
            operation["parameters"] = [
                each for each in operation.get("parameters", []) if each["name"] not in ("cursor", "to")
            ]
            if path == "/v1/keys/{id}":
                # The fuzzer's own key must stay valid.
                operation["parameters"][0]["schema"]["minimum"] = 1_000_000


def _trust_formats(schema: Any) -> None:
    """A format that is registered here makes the right values by itself; its pattern is for other readers."""
    if isinstance(schema, list):
        for each in schema:
            _trust_formats(each)
    elif isinstance(schema, dict):
        if isinstance(schema.get("format"), str):
            schema.pop("pattern", None)
        for each in schema.values():
            _trust_formats(each)


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """JSON Schema takes 3.0 for an integer; we want it written as 3."""
    match body:
        case float() if body.is_integer():
            return int(body)
        case dict():
            return {name: map_body(context, value) for name, value in body.items()}
        case list():
            return [map_body(context, value) for value in body]
        case _:
            return body


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """A poll that is right would wait up to a minute, and there are hundreds of them."""
    if case.path == "/v1/workers/lease" and isinstance(case.body, dict) and "wait" in case.body:
        try:
            decode_hook(Wait, case.body["wait"])
        except ValueError:
            return
        case.body["wait"] = 0.01
