"""Quotas and tiers over HTTP: what is stored, what holds, and what is refused."""

import json
from typing import Any

import msgspec
import pytest

from api.client import Api, until
from duetime.admin.rules import Rules, TenantRules, read_rules
from duetime.lifecycle.admission.waiting import count_waiting
from duetime.metrics import render
from duetime.model.limits import Limits
from duetime.model.quotas import DEFAULTS
from duetime.scheduler.relay import Relay
from duetime.sdk.uuid7 import make_uuid7

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def put(api: Api, path: str, **fields: Any) -> Any:
    answer = await api.call("PUT", path, fields)
    assert answer.status in (200, 201), answer.body
    return answer.json


async def test_quotas_are_set_one_by_one_and_taken_away(api: Api) -> None:
    path = f"/v1/tenants/{api.tenant_name}"
    await put(api, path, quotas={"submit_rate": 10, "submit_burst": 20, "max_waiting": 1_000_000})
    await put(api, path, spread=4, quotas={"max_running": 3})
    both = (await api.get(path)).json

    less = await put(api, path, quotas={"max_waiting": None})
    none = await put(api, path, quotas=None)

    assert both["quotas"] == {"submit_rate": 10, "submit_burst": 20, "max_waiting": 1_000_000, "max_running": 3}
    assert (both["spread"], both["weight"], both["effective"]["weight"]) == (4, None, 1)
    assert less["quotas"] == {"submit_rate": 10, "submit_burst": 20, "max_running": 3}
    assert (none["quotas"], none["spread"]) == ({}, 4)
    first = (await api.get(f"/v1/audit?tenant={api.tenant_name}&limit=1")).json["items"][0]
    assert (first["action"], first["before"]["quotas"], first["after"]["quotas"]) == (
        "tenant.change",
        less["quotas"],
        {},
    )


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"quotas": {"submit_rate": 0}}, "quotas.submit_rate"),
        ({"quotas": {"submit_rate": 1_000_001}}, "quotas.submit_rate"),
        ({"quotas": {"submit_rate": 1, "submit_burst": 0}}, "quotas.submit_burst"),
        ({"quotas": {"submit_burst": 5}}, "quotas.submit_burst"),
        ({"quotas": {"burst": 5}}, "quotas.burst"),
        ({"quotas": {"max_waiting": -1}}, "quotas.max_waiting"),
        ({"quotas": {"max_waiting": 10**12 + 1}}, "quotas.max_waiting"),
        ({"quotas": {"max_running": 1_000_001}}, "quotas.max_running"),
        ({"quotas": {"speed": 1}}, "quotas.speed"),
        ({"spread": 65}, "spread"),
        ({"spread": 0}, "spread"),
        ({"tier": "nowhere"}, "tier"),
        ({"tier": "a\0"}, "tier"),
    ],
)
async def test_a_wrong_quota_is_a_422_that_names_it(api: Api, fields: Any, path: str) -> None:
    for tenant in (api.tenant_name, f"{api.tenant_name}-new"):
        answer = await api.call("PUT", f"/v1/tenants/{tenant}", fields)
        assert (answer.status, answer.paths) == (422, [path])


def said(tenant: Any) -> dict[str, tuple[float, str]]:
    """What holds and who says it, without the defaults."""
    effective = tenant["effective"]
    values = {"weight": effective["weight"], **effective["quotas"]}
    assert values.keys() == effective["sources"].keys()
    return {
        name: (value, source) for name, value in values.items() if (source := effective["sources"][name]) != "default"
    }


def waiting(most: int) -> dict[str, tuple[float, str]]:
    return {"max_waiting": (most, "tier")}


async def test_a_tenants_own_values_win_over_its_tiers(api: Api) -> None:
    tier, path = f"{api.tenant_name}-gold", f"/v1/tenants/{api.tenant_name}"
    await put(api, f"/v1/tiers/{tier}", weight=4, quotas={"rate": 100, "burst": 500, "max_waiting": 1000})

    given = await put(api, path, tier=tier)
    own = await put(api, path, weight=2, quotas={"rate": 7})
    await put(api, f"/v1/tiers/{tier}", quotas={"max_waiting": 2000})

    assert (given["weight"], given["quotas"]) == (None, {})
    assert said(given) == {"weight": (4, "tier"), "rate": (100, "tier"), "burst": (500, "tier")} | waiting(1000)
    assert said(own) == {"weight": (2, "own"), "rate": (7, "own")} | waiting(1000)
    assert said((await api.get(path)).json) == {"weight": (2, "own"), "rate": (7, "own")} | waiting(2000)


async def test_a_tier_is_listed_and_deleted_when_no_tenant_has_it(api: Api) -> None:
    tier, path = f"{api.tenant_name}-tier", f"/v1/tenants/{api.tenant_name}"
    made = await api.call("PUT", f"/v1/tiers/{tier}", {"quotas": {"max_running": 5}})
    await put(api, path, tier=tier)
    listed = [each for each in (await api.get("/v1/tiers?limit=200")).json["items"] if each["name"] == tier]

    in_use = await api.call("DELETE", f"/v1/tiers/{tier}")
    await put(api, path, tier=None)
    deleted = await api.call("DELETE", f"/v1/tiers/{tier}")

    assert (made.status, listed[0]["tenants"], listed[0]["quotas"]) == (201, 1, {"max_running": 5})
    assert (in_use.status, in_use.json["code"]) == (409, "conflict")
    assert (deleted.status, (await api.get(f"/v1/tiers/{tier}")).status) == (204, 404)
    assert (await api.call("DELETE", f"/v1/tiers/{tier}")).status == 404
    acts = (await api.get("/v1/audit?limit=200")).json["items"]
    assert [act["action"] for act in acts if act["subject"] == tier] == ["tier.delete", "tier.create"]
    wrong = await api.call("PUT", "/v1/tiers/-", {})
    assert (wrong.status, wrong.paths) == (422, ["name"])


async def test_a_quota_that_strands_tasks_is_accepted_and_says_so(api: Api) -> None:
    for _ in range(3):
        await api.submit(delay="1h")

    answer = await put(api, f"/v1/tenants/{api.tenant_name}", quotas={"max_waiting": 2, "max_running": 0})
    enough = await put(api, f"/v1/tenants/{api.tenant_name}", quotas={"max_waiting": 4, "max_running": 1})

    assert answer["notes"] == [
        "max_running is 0: nothing of the tenant starts until it is raised",
        "3 tasks wait; max_waiting is 2: submissions are refused until fewer than 2 wait",
    ]
    assert enough["notes"] == []


async def test_a_node_learns_what_changed_and_nothing_else(api: Api) -> None:
    database, tenant, path = api.serving.database, api.tenant, f"/v1/tenants/{api.tenant_name}"
    tier = f"{api.tenant_name}-rules"
    rules = TenantRules(database)
    before = await rules.refresh()
    assert tenant not in before.limits
    await put(api, f"/v1/tiers/{tier}", weight=3, quotas={"max_running": 5})
    await put(api, path, tier=tier, spread=2, quotas={"submit_rate": 9, "rate": 1, "burst": 2})

    changed = await rules.refresh()
    assert changed.weights[tenant] == 3
    assert changed.limits[tenant] == Limits(5, 1.0, 2)
    assert changed.spread[tenant] == 2
    assert changed.quotas[tenant] == msgspec.structs.replace(DEFAULTS.of_submissions, submit_rate=9.0)
    assert await rules.refresh() is changed
    assert await read_rules(database) == changed

    await put(api, f"/v1/tiers/{tier}", quotas={"max_running": 6})
    assert (await rules.refresh()).limits[tenant] == Limits(6, 1.0, 2)

    await put(api, path, tier=None, spread=1, quotas=None)
    back = await rules.refresh()
    assert all(tenant not in getattr(back, name) for name in Rules.__struct_fields__ if not name.startswith("default"))
    assert back.default == DEFAULTS.of_submissions


# Submissions


async def have_quotas(api: Api, **quotas: Any) -> None:
    """Quotas that hold, after a rest long enough to fill every bucket."""
    await put(api, f"/v1/tenants/{api.tenant_name}", quotas=quotas)
    await api.serving.obey()
    await api.post("/v1/tasks", {"type": "a", "delay": "1h"})
    api.serving.passed[0] += 1e9


LATER = {"type": "a", "delay": "1h"}
#: A URL that only the long way knows.
LONG = "/v1/task%73"


@pytest.mark.parametrize("path", ["/v1/tasks", LONG])
async def test_a_submission_beyond_the_rate_is_a_429_that_says_when(api: Api, path: str) -> None:
    await have_quotas(api, submit_rate=0.1, submit_burst=3)

    answers = [await api.post(path, LATER) for _ in range(4)]
    api.serving.passed[0] += 10
    after = await api.post(path, LATER)

    assert [each.status for each in answers] == [202, 202, 202, 429]
    refused = answers[-1]
    assert refused.json["code"] == "quota_exceeded"
    assert "0.1 tasks a second (submit_rate), 3 at once (submit_burst)" in refused.json["detail"]
    assert refused.headers["Retry-After"] == "10"
    assert after.status == 202
    assert await api.stored() == 5


async def test_a_batch_is_accepted_as_far_as_the_bucket_goes(api: Api) -> None:
    await have_quotas(api, submit_rate=0.1, submit_burst=3)
    items = [LATER, {"type": "not a name!"}, LATER, LATER, LATER, LATER]

    answer = await api.post("/v1/tasks/batch", items)
    empty = await api.post("/v1/tasks/batch", items)

    assert (answer.status, answer.json["accepted"], answer.json["rejected"]) == (200, 3, 3)
    codes = [each.get("error", {}).get("code") for each in answer.json["results"]]
    assert codes == [None, "invalid", None, None, "quota_exceeded", "quota_exceeded"]
    assert 10 < answer.json["results"][-1]["error"]["retry_after"] <= 20
    assert (empty.status, empty.json["code"]) == (429, "quota_exceeded")
    assert await api.stored() == 4


async def test_an_atomic_batch_is_accepted_whole_or_not_at_all(api: Api) -> None:
    await have_quotas(api, submit_rate=0.1, submit_burst=3)

    never = await api.post("/v1/tasks/batch?atomic=true", [LATER] * 4)
    await api.post("/v1/tasks", LATER)
    not_now = await api.post("/v1/tasks/batch?atomic=true", [LATER] * 3)
    whole = await api.post("/v1/tasks/batch?atomic=true", [LATER] * 2)

    assert (never.status, never.json["code"]) == (413, "too_large")
    assert (not_now.status, not_now.json["code"], not_now.headers["Retry-After"]) == (429, "quota_exceeded", "10")
    assert (whole.status, whole.json["accepted"]) == (200, 2)


async def test_a_request_that_was_done_is_never_refused_and_its_rest_stays_refused(api: Api) -> None:
    await have_quotas(api, submit_rate=0.1, submit_burst=3)
    batch, one = ({"Idempotency-Key": str(make_uuid7())} for _ in range(2))
    first = await api.post("/v1/tasks", LATER, headers=one)
    part = await api.post("/v1/tasks/batch", [LATER] * 4, headers=batch)

    refused = await api.post("/v1/tasks", LATER)
    one_again = await api.post("/v1/tasks", LATER, headers=one)
    empty_again = await api.post("/v1/tasks/batch", [LATER] * 4, headers=batch)
    api.serving.passed[0] += 1e9
    full_again = await api.post("/v1/tasks/batch", [LATER] * 4, headers=batch)

    assert refused.status == 429
    assert (one_again.status, one_again.json["id"]) == (200, first.json["id"])
    ids = [each.get("id") for each in part.json["results"]]
    assert [each is None for each in ids] == [False, False, True, True]
    for again in (empty_again, full_again):
        assert [each.get("id") for each in again.json["results"]] == ids
        assert again.json["results"][-1]["error"]["code"] == "quota_exceeded"
    assert await api.stored() == 4


@pytest.mark.parametrize("path", ["/v1/tasks", LONG])
async def test_no_more_tasks_wait_than_may(api: Api, path: str) -> None:
    await have_quotas(api, max_waiting=3)

    answers = [await api.post(path, LATER) for _ in range(3)]
    batch = await api.post("/v1/tasks/batch", [LATER] * 2)
    await api.post("/v1/tasks/bulk/cancel", {"filter": {}, "limit": 1})
    api.serving.passed[0] += 2
    part = await api.post("/v1/tasks/batch", [LATER] * 2)

    assert [each.status for each in answers] == [202, 202, 429]
    assert answers[-1].json["code"] == batch.json["code"] == "too_many_waiting"
    assert "max_waiting 3" in answers[-1].json["detail"]
    assert answers[-1].headers["Retry-After"] == "5"
    assert (part.json["accepted"], part.json["results"][1]["error"]["code"]) == (1, "too_many_waiting")


async def test_tasks_that_are_paused_wait_too(api: Api) -> None:
    await have_quotas(api, max_waiting=1)
    await api.post("/v1/tasks/bulk/pause", {"filter": {}})

    assert (await api.post("/v1/tasks", LATER)).status == 429


async def test_what_a_quota_refuses_costs_nothing_of_another(api: Api) -> None:
    await have_quotas(api, submit_rate=0.001, submit_burst=2, max_waiting=10)
    first = await api.post("/v1/tasks/batch", [LATER] * 9)
    await put(api, f"/v1/tenants/{api.tenant_name}", quotas={"submit_rate": None, "submit_burst": None})
    await api.serving.obey()

    second = await api.post("/v1/tasks/batch", [LATER] * 9)

    assert (first.json["accepted"], second.json["accepted"]) == (2, 7)


# What the service makes itself

SCHEDULE = {"spec": {"every": "1d"}, "task": {"type": "a"}}
#: Times that a backfill can fill, ten of them.
RANGE = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-11T00:00:00Z", "rate": 1000}


async def have_schedule(api: Api, **fields: Any) -> None:
    made = await api.call("PUT", "/v1/schedules/s", {**SCHEDULE, **fields})
    assert made.status == 201, made.body


async def count_waiting_of(api: Api) -> int:
    return await count_waiting(api.serving.database, api.tenant, 1_000)


async def test_a_trigger_beyond_the_quota_is_a_429(api: Api) -> None:
    await have_schedule(api)
    await have_quotas(api, max_waiting=3)
    key = {"Idempotency-Key": str(make_uuid7())}

    first = await api.post("/v1/schedules/s/trigger", headers=key)
    others = [await api.post("/v1/schedules/s/trigger") for _ in range(3)]
    again = await api.post("/v1/schedules/s/trigger", headers=key)

    assert [first.status, *(each.status for each in others)] == [202, 202, 429, 429]
    assert others[-1].json["code"] == "too_many_waiting"
    assert (again.status, again.json["task"]) == (202, first.json["task"])
    assert await count_waiting_of(api) == 3


async def test_a_backfill_goes_as_far_as_there_is_room_and_says_that_it_waits(api: Api) -> None:
    await have_schedule(api)
    await have_quotas(api, max_waiting=5)
    started = (await api.post("/v1/schedules/s/backfill", RANGE)).json
    path = f"/v1/schedules/s/backfills/{started['id']}"

    async def waits() -> bool:
        return (await api.get(path)).json["waits_for"] is not None

    await until(waits)
    stuck = (await api.get(path)).json
    waiting = await count_waiting_of(api)
    await put(api, f"/v1/tenants/{api.tenant_name}", quotas={"max_waiting": 100})
    await api.serving.obey()
    api.serving.passed[0] += 10

    async def is_done() -> bool:
        return (await api.get(path)).json["state"] == "done"

    await until(is_done)
    done = (await api.get(path)).json

    assert (stuck["state"], stuck["created_count"]) == ("running", 4)
    assert stuck["waits_for"] == "as many tasks of the tenant wait as may (max_waiting 5)"
    assert waiting == 5
    assert (done["created_count"], done["waits_for"]) == (10, None)
    assert await count_waiting_of(api) == 11


async def test_a_time_of_a_schedule_beyond_the_quota_is_skipped_and_says_so(api: Api) -> None:
    await have_quotas(api, max_waiting=1)
    await have_schedule(api, spec={"every": "1s"}, overlap="allow")

    async def has_skipped() -> bool:
        return (await api.get("/v1/schedules/s")).json["counters"]["skipped"] >= 2

    before = refused_fires()
    await until(has_skipped)
    schedule = (await api.get("/v1/schedules/s")).json
    runs = (await api.get("/v1/schedules/s/runs")).json["items"]

    reason = "as many tasks of the tenant wait as may (max_waiting 1)"
    assert schedule["last_skip"]["reason"] == reason
    assert (schedule["state"], schedule["counters"]["fired"]) == ("active", 0)
    assert {(run["outcome"], run["reason"], run["task"]) for run in runs} == {("skipped", reason, None)}
    assert await count_waiting_of(api) == 1
    assert refused_fires() >= before + 2


def refused_fires() -> float:
    [line] = [line for line in render("n", shows_tenants=False).decode().splitlines() if line.startswith(FIRES_REFUSED)]
    return float(line.rsplit(" ", 1)[1])


FIRES_REFUSED = "duetime_fires_refused_total{"


async def test_dead_letters_are_redriven_as_far_as_there_is_room(api: Api) -> None:
    dead = [await api.bury() for _ in range(3)]
    await have_quotas(api, max_waiting=3)

    named = await api.post("/v1/dead/redrive", {"ids": [each["id"] for each in dead]})
    some = await api.post("/v1/dead/redrive", {"all": True, "limit": 10})
    none = await api.post("/v1/dead/redrive", {"all": True})
    [left] = [each for each in dead if await api.state(each) == "dead"]
    one = await api.post(f"/v1/tasks/{left['id']}/retry")
    bulk = await api.post("/v1/tasks/bulk/retry", {"filter": {"state": "dead"}})

    assert (named.status, named.json["code"]) == (429, "too_many_waiting")
    assert (some.status, some.json["matched"], some.json["redriven"]) == (200, 2, 2)
    assert some.json["next"] is not None
    for refused in (none, one, bulk):
        assert (refused.status, refused.json["code"]) == (429, "too_many_waiting")
    assert await api.state(left) == "dead"
    assert await count_waiting_of(api) == 3


async def test_the_outbox_waits_for_room_and_is_in_nobodys_way(api: Api) -> None:
    serving = api.serving
    other = await serving.tenant(f"{api.tenant_name}-other")
    await have_quotas(api, max_waiting=2)
    body = json.dumps(LATER)
    numbers = [await enqueue(api, body) for _ in range(3)]
    relay = Relay(serving.outbox, batch=2)

    await relay_all(relay)
    theirs = await enqueue(other, body)
    late = await enqueue(api, body)
    await relay_all(relay)
    states = [(await api.get(f"/v1/outbox/{number}")).json["state"] for number in (*numbers, late)]
    waiting = await count_waiting_of(api)
    await put(api, f"/v1/tenants/{api.tenant_name}", quotas={"max_waiting": 10})
    await serving.obey()
    serving.passed[0] += 10
    await relay.step_aside()

    assert states == ["accepted", "waiting", "waiting", "waiting"]
    assert waiting == 2
    assert (await other.get(f"/v1/outbox/{theirs}")).json["state"] == "accepted"
    for number in (*numbers, late):
        assert (await api.get(f"/v1/outbox/{number}")).json["state"] == "accepted"
    assert await count_waiting_of(api) == 5


async def enqueue(api: Api, body: str) -> int:
    rows = await api.serving.database.fetch("SELECT duetime.enqueue($1, $2::text::json) AS id", api.tenant_name, body)
    number: int = rows[0]["id"]
    return number


async def relay_all(relay: Relay) -> None:
    while not await relay.step():
        pass
