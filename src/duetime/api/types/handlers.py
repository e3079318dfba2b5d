"""Task types: a schema for the payloads of each, defaults, limits and flow control."""

from dataclasses import dataclass

from msgspec import Struct

from duetime.admin.types import TypeInfo, TypePreview, TypePut, Types
from duetime.api.auth import need_whole_type
from duetime.api.named import name_in_path, read_named_page
from duetime.api.operations import Confined, Operation, Reply
from duetime.api.problems import wrong_with_each
from duetime.api.schedules.reading import check_name
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.operations import PAGES
from duetime.api.types.reading import read_rules
from duetime.api.types.schemas import TypeRequest
from duetime.errors import FieldError, InvalidInput, NotFound
from duetime.lifecycle.lanes import Lanes
from duetime.model.flow import TypeRules

_TAG = "Administration"


class TypePage(Struct):
    """Some types, by name; `next` is the cursor of the following page, null on the last one."""

    items: list[TypeInfo]
    next: str | None


_decode = make_decoder(TypeRequest)
_ONE = "/v1/types/{name}"
LIST_TYPES = Operation(
    method="GET",
    path="/v1/types",
    name="list_types",
    confined=Confined.PART,
    tag=_TAG,
    summary="List the registered task types, by name",
    parameters=PAGES,
    replies={200: Reply("A page.", TypePage)},
    is_large=True,
)
GET_TYPE = Operation(
    method="GET",
    path=_ONE,
    name="get_type",
    confined=Confined.PART,
    tag=_TAG,
    summary="Get a registered task type",
    replies={200: Reply("The type.", TypeInfo)},
)
PUT_TYPE = Operation(
    method="PUT",
    path=_ONE,
    name="put_type",
    confined=Confined.PART,
    tag=_TAG,
    summary="Register a task type: a schema for its payloads, defaults, limits, flow control",
    description="Takes effect on every node within a second. All of it applies to new submissions; limits and "
    "throttle also apply to waiting tasks. The whole type is replaced: what is left out is removed. The "
    "answer says how many of the waiting tasks (a sample of up to 10,000) do not match the schema. Those "
    "tasks stay as they are.",
    body=TypeRequest,
    example={
        "schema": {"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}},
        "defaults": {"queue": "mail", "timeout": "30s"},
        "throttle": {"limit": 100, "period": "1m", "key": "to"},
    },
    replies={
        201: Reply("The type was registered.", TypePut),
        200: Reply("The type was changed, or it was the same already.", TypePut),
    },
)
PREVIEW_TYPE = Operation(
    method="POST",
    path=f"{_ONE}/preview",
    name="preview_type",
    confined=Confined.PART,
    tag=_TAG,
    summary="Check what registering a task type would mean, without storing anything",
    description="The checks are those of `PUT`. The answer says how many of the waiting tasks (a sample of up to "
    "10,000) would not match the schema, and names up to ten of them with what is wrong.",
    body=TypeRequest,
    example={"schema": {"type": "object", "required": ["to", "subject"]}},
    replies={200: Reply("What registering it would mean.", TypePreview)},
    may_name_new=True,
)
DELETE_TYPE = Operation(
    method="DELETE",
    path=_ONE,
    name="delete_type",
    confined=Confined.PART,
    tag=_TAG,
    summary="Delete a task type: its payloads may be any JSON again, and nothing limits it",
    replies={204: Reply("The type was deleted.")},
)
OPERATIONS = [LIST_TYPES, GET_TYPE, PUT_TYPE, PREVIEW_TYPE, DELETE_TYPE]


@dataclass(frozen=True)
class TypeCalls:
    types: Types
    lanes: Lanes

    def routes(self) -> list[Route]:
        return [
            Route(LIST_TYPES, self.page),
            Route(GET_TYPE, self.get),
            Route(PUT_TYPE, self.put),
            Route(PREVIEW_TYPE, self.preview),
            Route(DELETE_TYPE, self.delete),
        ]

    async def page(self, request: Request) -> Answer:
        after, limit = read_named_page(request)
        caller = request.caller
        likes = None if caller.confinement is None else caller.confinement.type_likes
        found, has_more = await self.types.page(caller.tenant, after, limit, likes)
        return json_answer(200, TypePage(found, found[-1].name if has_more else None))

    async def get(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, await self.types.get(request.caller.tenant, _reached_name(request)))

    async def put(self, request: Request) -> Answer:
        caller = request.caller
        need_whole_type(caller, request.path["name"])
        name, schema, rules = await _read(request, self.types)
        lanes = list(await self.lanes.of_tenant(caller.tenant))
        is_new, done = await self.types.put(caller.tenant, name, schema, lanes, rules=rules, by=caller.key)
        return json_answer(201 if is_new else 200, done)

    async def preview(self, request: Request) -> Answer:
        need_whole_type(request.caller, request.path["name"])
        name, schema, _ = await _read(request, self.types)
        tenant = request.caller.tenant
        lanes = list(await self.lanes.of_tenant(tenant))
        return json_answer(200, await self.types.preview(tenant, name, schema, lanes))

    async def delete(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        name, caller = _reached_name(request), request.caller
        need_whole_type(caller, name)
        await self.types.delete(caller.tenant, name, by=caller.key)
        return Answer(204, b"")


async def _read(request: Request, types: Types) -> tuple[str, bytes | None, TypeRules]:
    """The name, the schema and the rules of the request, checked."""
    request.query()
    name = request.path["name"]

    part: list[TypeRequest] = []

    def wrong_with(some: TypeRequest, *, is_part: bool) -> list[FieldError]:
        return wrong_with_each(lambda: check_name(name), lambda: read_rules(some, is_part=is_part))

    def check(some: TypeRequest) -> None:
        part.append(some)
        if errors := wrong_with(some, is_part=True):
            raise InvalidInput.all(errors)

    async def wrong_schema(some: TypeRequest) -> tuple[FieldError, ...]:
        try:
            await types.compile(request.caller.tenant, _schema_of(some))
        except InvalidInput as error:
            return error.errors
        return ()

    try:
        asked = await request.json(_decode, judge=check)
    except InvalidInput as error:
        if not part:
            raise
        raise InvalidInput.all([*error.errors, *await wrong_schema(part[0])]) from error
    try:
        # The code that stores the schema or tries it compiles it.
        return check_name(name), _schema_of(asked), read_rules(asked)
    except InvalidInput:
        raise InvalidInput.all([*wrong_with(asked, is_part=False), *await wrong_schema(asked)]) from None


def _schema_of(asked: TypeRequest) -> bytes | None:
    """The schema of the request; None if it is absent. A null is kept, and is refused as a schema."""
    return bytes(asked.schema) or None


def _reached_name(request: Request) -> str:
    name = name_in_path(request, "type")
    if not request.caller.may_type(name):
        raise NotFound(f"there is no registered type {name[:80]}")
    return name
