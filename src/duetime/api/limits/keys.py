"""Limits of keys: what tasks with the same `concurrency_key` or `rate_key` may do together."""

from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct

from duetime.admin.limits import LimitRule, LimitRules
from duetime.api.named import name_in_path, next_name, read_named_page
from duetime.api.operations import Operation, Reply
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.operations import PAGES
from duetime.errors import FieldError, InvalidInput
from duetime.model.limits import Limits, LimitScope, wrong_with

_TAG = "Administration"
MAX_NAME = 255


class KeyLimitRequest(Limits, frozen=True, forbid_unknown_fields=True):
    """The limit of a key, or of each key that a pattern fits."""


class KeyLimitView(Struct):
    """The limit of a key, or of each key that a pattern fits."""

    name: str
    max_running: int | None
    rate: float | None
    burst: int | None
    strict: bool
    version: int
    updated_at: datetime


class KeyLimitPut(KeyLimitView):
    """The limit as it is now, and its effects."""

    notes: list[str]


class KeyLimitPage(Struct):
    """Some limits, by name; `next` is the cursor of the following page, null on the last one."""

    items: list[KeyLimitView]
    next: str | None


_decode = make_decoder(KeyLimitRequest)
_ONE = "/v1/limits/{name}"
LIST_LIMITS = Operation(
    method="GET",
    path="/v1/limits",
    name="list_limits",
    tag=_TAG,
    summary="List the limits of keys, by name",
    parameters=PAGES,
    replies={200: Reply("A page.", KeyLimitPage)},
)
GET_LIMIT = Operation(
    method="GET",
    path=_ONE,
    name="get_limit",
    tag=_TAG,
    summary="Get the limit of a key",
    replies={200: Reply("The limit.", KeyLimitView)},
)
PUT_LIMIT = Operation(
    method="PUT",
    path=_ONE,
    name="put_limit",
    tag=_TAG,
    summary="Limit the tasks that name a key",
    description="`max_running` limits tasks with this `concurrency_key`, `rate` limits tasks with this `rate_key`. "
    "A name that ends in `*` is a pattern: the limit holds for each matching key separately. A limit for "
    "the exact key has precedence over patterns, and a longer pattern over a shorter one. Takes effect on "
    "every node within a second.",
    body=KeyLimitRequest,
    example={"max_running": 2, "rate": 10.0, "burst": 20},
    replies={
        201: Reply("The limit was created.", KeyLimitPut),
        200: Reply("The limit was changed, or it was the same already.", KeyLimitPut),
    },
)
DELETE_LIMIT = Operation(
    method="DELETE",
    path=_ONE,
    name="delete_limit",
    tag=_TAG,
    summary="Remove the limit of a key",
    replies={204: Reply("The limit was removed.")},
)
OPERATIONS = [LIST_LIMITS, GET_LIMIT, PUT_LIMIT, DELETE_LIMIT]


@dataclass(frozen=True)
class LimitCalls:
    rules: LimitRules

    def routes(self) -> list[Route]:
        return [
            Route(LIST_LIMITS, self.page),
            Route(GET_LIMIT, self.get),
            Route(PUT_LIMIT, self.put),
            Route(DELETE_LIMIT, self.delete),
        ]

    async def page(self, request: Request) -> Answer:
        after, limit = read_named_page(request)
        found = await self.rules.page(request.caller.tenant, LimitScope.KEY, after, limit + 1)
        return json_answer(200, KeyLimitPage([_view(rule) for rule in found[:limit]], next_name(found, limit)))

    async def get(self, request: Request) -> Answer:
        request.query()
        return json_answer(
            200, _view(await self.rules.get(request.caller.tenant, LimitScope.KEY, name_in_path(request, "limit")))
        )

    async def put(self, request: Request) -> Answer:
        request.query()
        name, caller = request.path["name"], request.caller
        asked = await request.json(_decode, judge=lambda some: _check(name, some, is_part=True))
        _check(name, asked)
        is_new, rule = await self.rules.put(caller.tenant, LimitScope.KEY, name, limits=asked, by=caller.key)
        view = _view(rule)
        notes = ["max_running is 0: no task with such a concurrency_key starts"] if asked.max_running == 0 else []
        if "*" in name[:-1]:
            notes.append("only a * at the end makes a pattern; any other is a character of the key")
        done = KeyLimitPut(**{field: getattr(view, field) for field in KeyLimitView.__struct_fields__}, notes=notes)
        return json_answer(201 if is_new else 200, done)

    async def delete(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        await self.rules.delete(
            request.caller.tenant, LimitScope.KEY, name_in_path(request, "limit"), by=request.caller.key
        )
        return Answer(204, b"")


def _check(name: str, asked: KeyLimitRequest, *, is_part: bool = False) -> None:
    """Raise everything that is wrong; `is_part`: only some of the request could be read."""
    errors = [FieldError(field, right) for field, right in wrong_with(asked, is_part=is_part)]
    if not name.isprintable() or len(name) > MAX_NAME:
        wrong = f"use 1 to {MAX_NAME} printable characters; a * at the end makes a pattern"
        errors.append(FieldError("name", wrong))
    if asked.is_empty and not is_part:
        errors.append(FieldError("max_running", "give max_running, rate, or both; DELETE lifts the limit"))
    if errors:
        raise InvalidInput.all(errors)


def _view(rule: LimitRule) -> KeyLimitView:
    limits = rule.limits
    return KeyLimitView(
        rule.name, limits.max_running, limits.rate, limits.burst, limits.strict, rule.version, rule.updated_at
    )
