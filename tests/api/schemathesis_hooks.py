"""What no JSON schema can say, said to the fuzzer: how to make values that are right.

Times must lie within reach and in order, a cursor comes from an answer, a name
of a header must not be one of ours, a schedule must have a time left.
Everything else the fuzzer knows from the OpenAPI document.
"""

import string
import time
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import available_timezones

import schemathesis
from hypothesis import strategies as st

import duetime.api.schedules.schemas  # noqa: F401  its durations are kinds of Seconds
from duetime.api.bodies.seconds import Seconds, Wait, decode_hook
from duetime.model.duration import format_duration
from duetime.model.reserved_headers import is_reserved

_NOW = datetime.now(UTC)
_PRINTABLE = st.text(string.ascii_letters + string.digits + " -_éßλ漢", max_size=30)
_NO_ZONES = {"localtime", "posixrules", "Factory"}
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
schemathesis.openapi.format("network", st.sampled_from(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::1"]))
schemathesis.openapi.format("target-host", st.from_regex(r"[a-z]{1,10}\.example:[1-9][0-9]{0,3}", fullmatch=True))
schemathesis.openapi.format(
    "header-name",
    st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True).filter(lambda name: not is_reserved(name)),
)
# A cron that is left out never meets one that fires: not in January, and not on a weekday.
schemathesis.openapi.format(
    "cron",
    st.builds(
        "{} {} * 2-12 {}".format,
        st.sampled_from(["0", "*/15", "5,35", "H", "H(0-29)"]),
        st.sampled_from(["*", "0", "8-18", "*/6", "H"]),
        st.sampled_from(["*", "MON-FRI", "1#2", "5L", "H(1-5)"]),
    )
    | st.sampled_from(["@hourly", "@daily", "@weekly", "@monthly", "30 0 3 L * *", "0 12 15W * *", "0 4 LW * *"]),
)
schemathesis.openapi.format("cron-left-out", st.sampled_from(["* * 1 1 *", "0-29 * 2 JAN *", "* 0-11 31 1 *"]))
schemathesis.openapi.format("cron-field", st.sampled_from(["*", "0", "5-6", "*/4", "1,3,5", "H"]))
schemathesis.openapi.format("timezone", st.sampled_from(sorted(available_timezones() - _NO_ZONES)))
schemathesis.openapi.format(
    "rrule",
    st.builds(
        "FREQ={};INTERVAL={}".format, st.sampled_from(["HOURLY", "DAILY", "WEEKLY", "MONTHLY"]), st.integers(1, 9)
    ),
)
schemathesis.openapi.format("local-date", st.dates(date(2027, 1, 1), date(2029, 12, 31)).map(date.isoformat))
schemathesis.openapi.format(
    "local-time",
    st.datetimes(datetime(2027, 1, 1), datetime(2029, 12, 31)).map(lambda at: f"{at:%Y-%m-%dT%H:%M}"),
)
schemathesis.openapi.format("past", _instants(-_YEAR, timedelta(days=-2)))
schemathesis.openapi.format("recent", _instants(timedelta(days=-1), timedelta(minutes=-1)))
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
        _set_format(fields.get("expires_at", {}), "after-due")
    # `from` and `to` in order, a target or required tags, waits that go up: two fields that know of each other.
    for name in ("FilterRequest", "DeadFilterRequest"):
        schemas[name]["properties"].pop("to")
    schemas["TaskRequest"]["properties"].pop("requires")
    schemas["TemplateRequest"]["properties"].pop("requires")
    # Each is right only without some of the others.
    for name in ("debounce", "unique"):
        schemas["TaskRequest"]["properties"].pop(name)
    schemas["RetryRequest"]["properties"].pop("max_backoff")
    # It names headers that stand beside it.
    schemas["TargetRequest"]["properties"].pop("secret_headers")
    # A JSON Schema is more than a JSON schema can say, and a registered type would refuse what other calls submit.
    raw_schema["paths"].pop("/v1/types/{name}")
    raw_schema["paths"].pop("/v1/types/{name}/preview")
    # A burst goes with a rate, strict with a cap.
    for name in ("Limits", "KeyLimitRequest"):
        for field in ("burst", "strict"):
            schemas[name]["properties"].pop(field)
    # A burst needs a rate beside it, a tier must be there.
    for name in ("burst", "submit_burst", "submit_bytes_burst"):
        schemas["QuotasRequest"]["properties"].pop(name)
    schemas["TenantRequest"]["properties"].pop("tier")
    # Only for some roles.
    for name in ("types", "queues"):
        schemas["KeyRequest"]["properties"].pop(name)
    schemas["KeyRequest"]["properties"]["name"]["format"] = "printable"
    _keep_schedules_right(schemas)
    for path, methods in raw_schema["paths"].items():
        for operation in methods.values():
            operation["parameters"] = [
                each for each in operation.get("parameters", []) if each["name"] not in ("cursor", "to")
            ]
            if path.startswith("/v1/keys/{id}"):
                # The fuzzer's own key must stay valid.
                operation["parameters"][0]["schema"]["minimum"] = 1_000_000


def _keep_schedules_right(schemas: dict[str, Any]) -> None:
    """A cron that fires is always there; beside it stands what cannot contradict it."""
    spec = schemas["SpecRequest"]
    for name in ("phase", "after"):
        spec["properties"].pop(name)
    spec.pop("anyOf")
    spec["required"] = ["cron"]
    spec["properties"]["cron"]["anyOf"][1]["minItems"] = 1
    rule = schemas["ExclusionRule"]
    rule.pop("oneOf")
    rule["properties"] = {"cron": {"type": "string", "format": "cron-left-out"}}
    rule["required"] = ["cron"]
    entry = schemas["CalendarEntry"]["properties"]
    for name in ("year", "month", "day"):
        entry.pop(name)
    for name in ("ScheduleRequest", "NamedScheduleRequest", "PreviewRequest"):
        # Each is right only with some of the others.
        for policy in ("catchup_window", "catchup_rate", "version", "misfire"):
            schemas[name]["properties"].pop(policy)
    # A wrong item has its error in its place; the request is right.
    schemas["ScheduleBatchRequest"]["properties"]["items"]["items"] = {}
    for name in ("ScheduleRequest", "NamedScheduleRequest", "PreviewRequest"):
        _set_format(schemas[name]["properties"]["end_at"], "after-due")
    _set_format(schemas["BackfillRequest"]["properties"]["from"], "past")
    _set_format(schemas["BackfillRequest"]["properties"]["to"], "recent")
    _set_format(schemas["TriggerRequest"]["properties"]["as_of"], "past")


def _set_format(schema: dict[str, Any], name: str) -> None:
    for option in schema.get("anyOf", [schema]):
        if "format" in option:
            option["format"] = name


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
