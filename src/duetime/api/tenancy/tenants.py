"""Tenants, and what was done to them."""

from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import Struct

from duetime.admin.keys import Caller
from duetime.admin.tenants import (
    Act,
    Tenant,
    TenantChange,
    check_short_name,
    find_tenant,
    page_tenants,
    put_tenant,
    read_audit,
)
from duetime.api.named import next_name, read_named_page
from duetime.api.operations import ADMINS, OWNERS, Operation, Parameter, Reply
from duetime.api.problems import with_more, wrong_with_each
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.filters import read_number_cursor, read_one, read_page
from duetime.api.tasks.operations import PAGES
from duetime.api.tenancy.schemas import TenantPage, TenantPut, TenantRequest, changed_egress, changed_quotas
from duetime.database.pool import Database
from duetime.errors import Forbidden, InvalidInput, NotFound
from duetime.lifecycle.admission.waiting import count_waiting
from duetime.model.egress_rules import NO_EGRESS_RULES

_TAG = "Administration"
_decode = make_decoder(TenantRequest)
_EGRESS_NOTE = "egress holds for what is there already too: a task whose call it refuses becomes a dead letter"
#: Above this, the number of waiting tasks is not counted to the end for a note.
_COUNT_AT_MOST = 1_000_000


class AuditPage(Struct):
    """What was done, the latest first; `next` is the cursor of the following page, null on the last one."""

    items: list[Act]
    next: str | None


LIST_TENANTS = Operation(
    method="GET",
    path="/v1/tenants",
    name="list_tenants",
    roles=ADMINS,
    tag=_TAG,
    summary="List the tenants, by name",
    parameters=PAGES,
    replies={200: Reply("A page.", TenantPage)},
)
GET_TENANT = Operation(
    method="GET",
    path="/v1/tenants/{name}",
    name="get_tenant",
    roles=OWNERS,
    tag=_TAG,
    summary="Get a tenant",
    description="With an owner's key only its own tenant is found.",
    replies={200: Reply("The tenant.", Tenant)},
)
PUT_TENANT = Operation(
    method="PUT",
    path="/v1/tenants/{name}",
    name="put_tenant",
    roles=ADMINS,
    tag=_TAG,
    summary="Create or change a tenant",
    description="Absent fields stay as they are. null removes a value, so that the tier's value or the default "
    "holds. Takes effect on every node within a second. `notes` says what the change means for existing "
    "tasks.",
    body=TenantRequest,
    example={"weight": 2, "quotas": {"submit_rate": 100, "max_waiting": 1_000_000}},
    replies={
        201: Reply("The tenant was created.", TenantPut),
        200: Reply("The tenant was changed, or it was the same already.", TenantPut),
    },
    also=(404,),
)
AUDIT = Operation(
    method="GET",
    path="/v1/audit",
    name="list_acts",
    roles=OWNERS,
    tag=_TAG,
    summary="List changes to tenants and keys, the latest first",
    description="With an owner's key only changes to its own tenant are listed.",
    parameters=(
        Parameter("tenant", "Only changes to this tenant.", {"type": "string", "maxLength": 63}),
        *PAGES,
    ),
    replies={200: Reply("A page.", AuditPage)},
    also=(404,),
    is_large=True,
)
OPERATIONS = [LIST_TENANTS, GET_TENANT, PUT_TENANT, AUDIT]


@dataclass(frozen=True)
class Tenancy:
    database: Database

    def routes(self) -> list[Route]:
        return [
            Route(LIST_TENANTS, self.page),
            Route(GET_TENANT, self.get),
            Route(PUT_TENANT, self.put),
            Route(AUDIT, self.audit),
        ]

    async def page(self, request: Request) -> Answer:
        after, limit = read_named_page(request)
        found = await page_tenants(self.database, after, limit + 1)
        return json_answer(200, TenantPage(found[:limit], next_name(found, limit)))

    async def get(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, await self._find(request.path["name"], request.caller))

    async def put(self, request: Request) -> Answer:
        request.query()
        name, by = request.path["name"], request.caller.key
        judge = partial(_check_names, name)
        asked = await request.json(_decode, judge=judge)
        if "\0" in name:
            raise InvalidInput.at("name", "must not hold a NUL")
        if asked.state == "suspended" and name == request.caller.tenant_name:
            raise Forbidden("a tenant cannot suspend itself: nobody of it could take that back")
        change = TenantChange(
            weight=asked.weight,
            state=asked.state,
            tier=asked.tier,
            spread=asked.spread,
            quotas=changed_quotas(asked.quotas),
            defaults=asked.defaults,
            egress=changed_egress(asked.egress),
        )
        try:
            is_new, stored = await put_tenant(self.database, name, change, by=by)
        except InvalidInput as error:
            raise with_more(error, partial(judge, asked)) from error
        notes = () if is_new else tuple(await self._notes(stored))
        if not is_new and asked.egress is not msgspec.UNSET and stored.effective.egress != NO_EGRESS_RULES:
            notes += (_EGRESS_NOTE,)
        return json_answer(201 if is_new else 200, TenantPut(**msgspec.structs.asdict(stored), notes=notes))

    async def _notes(self, tenant: Tenant) -> list[str]:
        """What its quotas mean for tasks that already wait."""
        notes = []
        quotas = tenant.effective.quotas.enforced
        if quotas.max_running == 0:
            notes.append("max_running is 0: nothing of the tenant starts until it is raised")
        most = quotas.max_waiting
        if most is not None and most < _COUNT_AT_MOST:
            waiting = await count_waiting(self.database, tenant.id, _COUNT_AT_MOST)
            if waiting >= most:
                count = f"{waiting:,}" if waiting < _COUNT_AT_MOST else f"{waiting:,} or more"
                until = f"fewer than {most:,} wait" if most else "it is raised"
                notes.append(f"{count} tasks wait; max_waiting is {most:,}: submissions are refused until {until}")
        return notes

    async def audit(self, request: Request) -> Answer:
        query = request.query()
        cursor, limit = read_page(query)
        before = read_number_cursor(cursor, (1 << 63) - 1, 18)
        caller, name = request.caller, read_one(query, "tenant")
        tenant = None if caller.role == "admin" else caller.tenant
        if name is not None:
            tenant = (await self._find(name, caller)).id
        found, has_more = await read_audit(self.database, tenant, before, limit)
        return json_answer(200, AuditPage(found, str(found[-1].id) if has_more else None))

    async def _find(self, name: str, caller: Caller) -> Tenant:
        """The tenant; for a caller that is not an admin, only its own exists."""
        is_shown = caller.role == "admin" or name == caller.tenant_name
        # PostgreSQL's text has no NUL, so no tenant's name has one either.
        found = await find_tenant(self.database, name) if is_shown and "\0" not in name else None
        if found is None:
            raise NotFound(f"there is no tenant {name[:80]}")
        return found


def _check_names(name: str, asked: TenantRequest) -> None:
    """Raise what is wrong with the names in a request in which something else is wrong."""
    tier = asked.tier
    errors = wrong_with_each(lambda: check_short_name("name", name))
    if isinstance(tier, str):
        errors += wrong_with_each(lambda: check_short_name("tier", tier))
    if errors:
        raise InvalidInput.all(errors)
