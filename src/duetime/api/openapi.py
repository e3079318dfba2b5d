"""The OpenAPI 3.1 document, made from the operations and the types of their bodies.

`openapi.json` in the repository is this document; `python -m
duetime.api.openapi openapi.json` writes it, and a test compares the two.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from duetime.api.bodies.answers import Accepted, BatchProblem, Rejected
from duetime.api.bodies.requests import NAME_PATTERN, PRINTABLE
from duetime.api.bodies.seconds import schema_hook
from duetime.api.limits import breakers, queues
from duetime.api.limits import keys as limits
from duetime.api.limits.breakers import HOST_PATTERN
from duetime.api.operations import Operation, Parameter, Reply
from duetime.api.problems import Problem
from duetime.api.reference import operations as reference_operations
from duetime.api.schedules import operations as schedule_operations
from duetime.api.service import cluster, health, metrics, outbox
from duetime.api.tasks import dead_operations
from duetime.api.tasks import operations as task_operations
from duetime.api.tenancy import keys, tenants, tiers
from duetime.api.tenancy import signing as admin
from duetime.api.tenancy.schemas import SHORT_NAME_PATTERN
from duetime.api.types import handlers as types
from duetime.api.workers import operations as worker_operations

OPERATIONS: list[Operation] = [
    *task_operations.OPERATIONS,
    *dead_operations.OPERATIONS,
    *outbox.OPERATIONS,
    *schedule_operations.OPERATIONS,
    *worker_operations.OPERATIONS,
    *keys.OPERATIONS,
    *admin.OPERATIONS,
    *tenants.OPERATIONS,
    *tiers.OPERATIONS,
    *types.OPERATIONS,
    *queues.OPERATIONS,
    *limits.OPERATIONS,
    *breakers.OPERATIONS,
    *cluster.OPERATIONS,
    *health.OPERATIONS,
    *metrics.OPERATIONS,
    *reference_operations.OPERATIONS,
]
TAGS = {
    "Tasks": "A task is one thing to do at one time.",
    "Schedules": "Schedules make tasks again and again. Calendars hold times that schedules exclude.",
    "Dead letters": "Tasks whose attempts are used up or whose failure is permanent.",
    "Outbox": "Tasks that producers write in their own transactions with `duetime.enqueue`.",
    "Workers": "The protocol of workers, which run tasks in their own process.",
    "Administration": "Keys and secrets of a tenant, and the nodes.",
    "Server": "The node itself.",
}
DESCRIPTION = """duetime runs a task at its time, at least once and effectively once, and loses nothing when any
process dies.

Every call under `/v1` needs `Authorization: Bearer <key>`. Errors are problem details (RFC 9457) with a stable `code`;
wrong input is a 422 that names each field and what would be right. Times are RFC 3339 with their zone; durations are
seconds, or text like `"30s"`, `"5m"`, `"2h"`, `"1d"`, `"1h30m"`. Lists give `next`, the cursor of the following page.
An admin key acts for another tenant with the header `Duetime-Tenant`.

Every answer has an `X-Request-Id`: the one of the request, if it is up to 128 letters, digits and `. _ : / + = @ ~ -`,
else one that the server makes. Problems repeat it as `request_id`; the server's log names it where it tells of a
fault."""

_IN_PATH = re.compile(r"\{(\w+)\}")
_REFERENCE = "#/components/schemas/{name}"
#: Every call under /v1 can answer with these; 404: `Duetime-Tenant` names no tenant.
_ALWAYS_WITH_KEY = (401, 403, 404, 429, 500, 503)
_ALWAYS = (500, 503)
#: A body may arrive too slowly, or while too many others arrive.
_WITH_BODY = (408, 429)
_NAMES = {
    "TaskView": "Task",
    "AttemptView": "Attempt",
    "DeadView": "DeadLetter",
    "TargetView": "Target",
    "RetryView": "RetryPolicy",
    "Waiting": "WaitingReason",
    "KeyInfo": "Key",
    "QueueView": "Queue",
    "KeyLimitView": "KeyLimit",
    "BreakerView": "Breaker",
    "NodeView": "Node",
    "FailureBody": "Failure",
    "LeasedAnswer": "LeasedTask",
    "ScheduleView": "Schedule",
    "CalendarView": "Calendar",
    "PreviewView": "Preview",
    "FireView": "Fire",
    "RunView": "Run",
    "SkipView": "Skip",
    "DeletedView": "DeletedSchedule",
    "TriggeredView": "Triggered",
    "OutboxView": "OutboxNumber",
    "RefusedView": "Refused",
    "RefusalView": "Refusal",
}
_REQUEST_ID = {
    "description": "The id of the request: the client's own, or the server's.",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
}
_WITH_REQUEST_ID = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
_RESPONSE_NAMES = {status.value: status.phrase.title().replace(" ", "") for status in HTTPStatus}
_BOTH_TIMES = {
    "required": ["run_at", "delay"],
    "properties": {"run_at": {"not": {"type": "null"}}, "delay": {"not": {"type": "null"}}},
}
_ONE_TIME = {"oneOf": [{"required": ["run_at"]}, {"required": ["delay"]}]}
_ONE_CHOICE = {
    "oneOf": [
        {"required": ["ids"], "properties": {"cursor": {"type": "null"}}},
        {"required": ["filter"]},
        {"required": ["all"], "properties": {"all": {"const": True}}},
    ]
}
#: What can be done next with the thing that an answer names: the field of the answer, and the calls that take it.
_NEXT: dict[tuple[str, int], tuple[str, list[str]]] = {
    ("submit_task", 202): ("id", ["get_task", "explain_task", *(verb.name for verb in task_operations.VERBS.values())]),
    ("make_key", 201): ("id", ["revoke_key"]),
    ("put_schedule", 201): ("name", schedule_operations.NEXT_OF_SCHEDULE),
    ("put_queue", 201): ("name", ["get_queue", "delete_queue"]),
    ("put_limit", 201): ("name", ["get_limit", "delete_limit"]),
    ("put_calendar", 200): ("name", ["get_calendar", "delete_calendar"]),
}
#: An exclusion is one of three things.
_NULL, _TEXT = {"type": "null"}, {"type": "string"}
_ONE_EXCLUSION = {
    "oneOf": [
        {
            "required": ["from", "to"],
            "properties": {"from": _TEXT, "to": _TEXT, "cron": _NULL, "calendar": _NULL},
        },
        {"required": ["cron"], "properties": {"from": _NULL, "to": _NULL, "cron": _TEXT, "calendar": _NULL}},
        {"required": ["calendar"], "properties": {"from": _NULL, "to": _NULL, "cron": _NULL, "calendar": _TEXT}},
    ]
}
_SOME = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]}
_SOME_SOURCE = {
    "anyOf": [
        *({"required": [name], "properties": {name: _SOME}} for name in ("cron", "rrule", "calendar", "dates")),
        *({"required": [name], "properties": {name: {"not": _NULL}}} for name in ("every", "after")),
    ]
}
#: Rules between two fields of one object, which no type can express.
_RULES: dict[str, dict[str, Any]] = {
    "TaskRequest": {"not": _BOTH_TIMES},
    "RescheduleRequest": _ONE_TIME,
    "BulkRescheduleRequest": _ONE_TIME,
    "RedriveRequest": _ONE_CHOICE,
    "DropRequest": _ONE_CHOICE,
    "ExclusionRule": _ONE_EXCLUSION,
    "SpecRequest": _SOME_SOURCE,
    "KeyLimitRequest": {
        "anyOf": [
            {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in ("max_running", "rate")
        ]
    },
}


#: Words for what does not exist yet: nothing makes one task wait for another.
_NOT_YET = frozenset({"blocked", "dependency"})


def build_document(operations: Sequence[Operation] = tuple(OPERATIONS)) -> dict[str, Any]:
    schemas = _Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "duetime",
            "version": "1",
            "summary": "A task scheduler: hand it a task and a time.",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "responses": {_RESPONSE_NAMES[status]: _problem_response(status) for status in _used_problems(operations)},
            "headers": {"RequestId": _REQUEST_ID},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key: `dt_…`."}},
        },
    }


class _Schemas:
    """The schema of every type, by reference if the type has a name."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        types: list[Any] = [Problem, BatchProblem, Accepted, Rejected]
        for operation in operations:
            types += [operation.body] if operation.body is not None else []
            types += [reply.body for reply in operation.replies.values() if reply.body is not None]
        unique = list({repr(each): each for each in types}.values())
        schemas, components = msgspec.json.schema_components(unique, schema_hook=schema_hook, ref_template=_REFERENCE)
        self._by_type: dict[str, dict[str, Any]] = {
            repr(each): _rename(schema) for each, schema in zip(unique, schemas, strict=True)
        }
        self.components = {_NAMES.get(name, name): _tidy(_rename(schema)) for name, schema in components.items()}
        for name, rule in _RULES.items():
            self.components[name] |= rule
        item = {"anyOf": [self.of(Accepted), self.of(Rejected)]}
        self.components["BatchAnswer"]["properties"]["results"]["items"] = item

    def of(self, kind: Any) -> dict[str, Any]:
        return self._by_type[repr(kind)]


def _rename(schema: Any) -> Any:
    match schema:
        case {"$ref": str(reference), **rest}:
            name = reference.rpartition("/")[2]
            return {"$ref": _REFERENCE.format(name=_NAMES.get(name, name)), **_rename(rest)}
        case dict():
            return {key: _rename(value) for key, value in schema.items()}
        case list() | tuple():
            return [_rename(value) for value in schema if not isinstance(value, str) or value not in _NOT_YET]
        case _:
            return schema


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove a type's own title, which adds nothing to its name in the document."""
    schema.pop("title", None)
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    return schema


def _operation(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        answer["description"] = operation.description
    if operation.needs_key:
        answer["security"] = [{"key": []}]
    parameters = [_path_parameter(operation, name) for name in _IN_PATH.findall(operation.path)]
    parameters += [_parameter(parameter) for parameter in operation.parameters]
    if parameters:
        answer["parameters"] = parameters
    if operation.body is not None:
        content: dict[str, Any] = {"application/json": {"schema": schemas.of(operation.body)}}
        if operation.example is not None:
            content["application/json"]["example"] = operation.example
        content |= {kind: {"schema": dict(schema)} for kind, schema in operation.other_bodies.items()}
        answer["requestBody"] = {"required": not operation.is_body_optional, "content": content}
    answer["responses"] = {
        str(status): _response(reply, schemas) | _links(operation, status)
        for status, reply in sorted(operation.replies.items())
    } | {str(status): {"$ref": f"#/components/responses/{_RESPONSE_NAMES[status]}"} for status in _problems(operation)}
    if operation is task_operations.SUBMIT_BATCH:
        content = {"application/problem+json": {"schema": {"anyOf": [schemas.of(BatchProblem), schemas.of(Problem)]}}}
        answer["responses"]["409"] = {
            "description": "The request's key was used for another request, or with `atomic` the key of a task "
            "belongs to another task. Nothing was stored.",
            "headers": _WITH_REQUEST_ID,
            "content": content,
        }
        answer["responses"]["422"] = {
            "description": "The request as a whole is wrong, or with `atomic` one of its tasks is wrong. Nothing "
            "was stored.",
            "headers": _WITH_REQUEST_ID,
            "content": content,
        }
    return answer


def _links(operation: Operation, status: int) -> dict[str, Any]:
    """What can be done next with the id or name in this answer."""
    field, following = _NEXT.get((operation.name, status), ("", []))
    links = {each: {"operationId": each, "parameters": {field: f"$response.body#/{field}"}} for each in following}
    return {"links": links} if links else {}


def _path_parameter(operation: Operation, name: str) -> dict[str, Any]:
    schema: dict[str, Any]
    if operation.path.startswith(("/v1/tenants", "/v1/tiers")):
        noun = "tenant" if operation.path.startswith("/v1/tenants") else "tier"
        description, schema = f"The {noun}'s name.", {"type": "string", "pattern": SHORT_NAME_PATTERN}
    elif operation.path.startswith("/v1/limits"):
        schema = {"type": "string", "format": "printable", "pattern": f"^{PRINTABLE}{{1,255}}$", "maxLength": 255}
        description = "A key, or a pattern that ends in `*`."
    elif name == "name":
        noun = {"/v1/calendars": "calendar", "/v1/types": "type", "/v1/queues": "queue"}.get(
            operation.path[: operation.path.index("/{")], "schedule"
        )
        description, schema = f"The {noun}'s name.", {"type": "string", "pattern": NAME_PATTERN}
    elif name == "host":
        description = "Host and port, as the list shows them."
        schema = {"type": "string", "format": "target-host", "pattern": HOST_PATTERN}
    elif operation.path.startswith("/v1/keys"):
        description, schema = "The key's number.", {"type": "integer", "minimum": 1}
    elif operation.path.startswith("/v1/outbox"):
        description, schema = "The number that `enqueue` gave.", {"type": "integer", "minimum": 1}
    elif operation.path.startswith("/v1/schedules"):
        description, schema = "The backfill's number.", {"type": "integer", "minimum": 1}
    else:
        description, schema = "The task's id.", {"type": "string", "format": "uuid"}
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = dict(parameter.schema)
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": False,
        "description": parameter.description,
        "schema": {"type": "array", "items": schema, "maxItems": 32} if parameter.is_many else schema,
    }


def _response(reply: Reply, schemas: _Schemas) -> dict[str, Any]:
    headers = {
        name: {"description": description, "required": True, "schema": {"type": "string"}}
        for name, description in reply.headers.items()
    }
    answer: dict[str, Any] = {"description": reply.description, "headers": headers | _WITH_REQUEST_ID}
    if reply.body is not None:
        answer["content"] = {reply.content_type: {"schema": schemas.of(reply.body)}}
    elif reply.content_type != "application/json":
        answer["content"] = {reply.content_type: {"schema": {"type": "string"}}}
    return answer


def _problems(operation: Operation) -> list[int]:
    with_body = _WITH_BODY if operation.body is not None else ()
    return sorted({*(_ALWAYS_WITH_KEY if operation.needs_key else _ALWAYS), *with_body, *operation.problems})


def _used_problems(operations: Iterable[Operation]) -> list[int]:
    return sorted({status for operation in operations for status in _problems(operation)})


_MEANING = {
    400: "The body is not JSON, or it was cut off; nothing was done.",
    401: "There is no API key, or it is not valid.",
    403: "The API key does not allow this, or may not be used from here (`key_not_allowed_here`).",
    404: "It does not exist, or it belongs to another tenant.",
    408: "The body did not arrive in time; nothing was done.",
    409: "The current state forbids it. `code` says which rule.",
    413: "The body, the payload, or the number of items is too large.",
    415: "The call does not take a body of this media type.",
    422: "The request is understood but wrong. `errors` names each field and what would be right.",
    429: "Try again later: a quota of the tenant is used up (`quota_exceeded`, `too_many_waiting`), its type "
    "accepts no more tasks of this key (`rate_limited`), the service is behind (`overloaded`), or too many "
    "wrong API keys came from this address (`too_many_wrong_keys`). Nothing was done. `Retry-After` says "
    "when to try again.",
    500: "A fault of the server. Its log has the cause under `request_id`.",
    503: "Not available right now; try again. With the code `unknown` it is not known whether the request was "
    "carried out.",
}


def _problem_response(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": _MEANING[status],
        "content": {"application/problem+json": {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
    }
    header = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}.get(status)
    answer["headers"] = ({header: {"schema": {"type": "string"}}} if header else {}) | _WITH_REQUEST_ID
    return answer


def encode_document(document: dict[str, Any]) -> bytes:
    """The document as it is stored in the repository: indented, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(encode_document(build_document()))
