"""Tiers: weights and quotas for tenants that set none themselves."""

from dataclasses import dataclass

from duetime.admin.tenants import check_short_name
from duetime.admin.tiers import Tier, TierChange, delete_tier, get_tier, page_tiers, put_tier
from duetime.api.named import name_in_path, next_name, read_named_page
from duetime.api.operations import ADMINS, Operation, Reply
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.operations import PAGES
from duetime.api.tenancy.schemas import TierPage, TierRequest, changed_egress, changed_quotas
from duetime.database.pool import Database

_TAG = "Administration"
_ONE = "/v1/tiers/{name}"
_decode = make_decoder(TierRequest)

LIST_TIERS = Operation(
    method="GET",
    path="/v1/tiers",
    name="list_tiers",
    roles=ADMINS,
    tag=_TAG,
    summary="List the tiers, by name",
    parameters=PAGES,
    replies={200: Reply("A page.", TierPage)},
)
GET_TIER = Operation(
    method="GET",
    path=_ONE,
    name="get_tier",
    roles=ADMINS,
    tag=_TAG,
    summary="Get a tier",
    replies={200: Reply("The tier.", Tier)},
)
PUT_TIER = Operation(
    method="PUT",
    path=_ONE,
    name="put_tier",
    roles=ADMINS,
    tag=_TAG,
    summary="Create or change a tier",
    description="The values of a tier hold for its tenants where they set none of their own. Takes effect on every "
    "node within a second. Absent fields stay as they are. null removes a value.",
    body=TierRequest,
    example={"weight": 4, "quotas": {"submit_rate": 1000, "submit_burst": 5000}},
    replies={
        201: Reply("The tier was created.", Tier),
        200: Reply("The tier was changed, or it was the same already.", Tier),
    },
)
DELETE_TIER = Operation(
    method="DELETE",
    path=_ONE,
    name="delete_tier",
    roles=ADMINS,
    tag=_TAG,
    summary="Delete a tier that no tenant has",
    replies={204: Reply("The tier was deleted.")},
    also=(409,),
)
OPERATIONS = [LIST_TIERS, GET_TIER, PUT_TIER, DELETE_TIER]


@dataclass(frozen=True)
class TierCalls:
    database: Database

    def routes(self) -> list[Route]:
        return [
            Route(LIST_TIERS, self.page),
            Route(GET_TIER, self.get),
            Route(PUT_TIER, self.put),
            Route(DELETE_TIER, self.delete),
        ]

    async def page(self, request: Request) -> Answer:
        after, limit = read_named_page(request)
        found = await page_tiers(self.database, after, limit + 1)
        return json_answer(200, TierPage(found[:limit], next_name(found, limit)))

    async def get(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, await get_tier(self.database, name_in_path(request, "tier")))

    async def put(self, request: Request) -> Answer:
        request.query()
        name = request.path["name"]
        asked = await request.json(_decode, judge=lambda _: check_short_name("name", name))
        change = TierChange(asked.weight, changed_quotas(asked.quotas), changed_egress(asked.egress))
        is_new, tier = await put_tier(self.database, name, change, by=request.caller.key)
        return json_answer(201 if is_new else 200, tier)

    async def delete(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        await delete_tier(self.database, name_in_path(request, "tier"), by=request.caller.key)
        return Answer(204, b"")
