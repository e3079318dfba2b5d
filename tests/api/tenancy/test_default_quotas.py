"""What every tenant has without anybody saying so, and how an installation or a tenant has something else."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from api.client import Api
from duetime.admin.rules import TenantRules, read_rules
from duetime.lifecycle.admission.waiting import bound_waiting, count_waiting
from duetime.model.limits import Limits
from duetime.model.quotas import DEFAULTS, UNLIMITED

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATER = {"type": "a", "delay": "1h"}
KIB = {"type": "a", "delay": "1h", "payload": "x" * 1022}
#: A URL that only the long way knows.
LONG = "/v1/task%73"
USUAL = "/v1/tiers/default"


async def put(api: Api, path: str, **fields: Any) -> Any:
    answer = await api.call("PUT", path, fields)
    assert answer.status in (200, 201), answer.body
    return answer.json


@pytest_asyncio.fixture(loop_scope="module")
async def default(api: Api) -> AsyncIterator[Api]:
    """An installation whose defaults a test changes."""
    yield api
    await put(api, USUAL, weight=None, quotas=None)
    await api.serving.obey()


async def own(api: Api, **fields: Any) -> Any:
    answer = await put(api, f"/v1/tenants/{api.tenant_name}", **fields)
    await api.serving.obey()
    return answer


# What holds


async def test_a_new_tenant_has_the_defaults_and_sees_them(api: Api) -> None:
    answer = (await api.get(f"/v1/tenants/{api.tenant_name}")).json

    assert (answer["quotas"], answer["defaults"]) == ({}, True)
    assert answer["effective"]["quotas"] == {
        "submit_bytes_rate": 64 << 20,
        "submit_bytes_burst": 256 << 20,
        "max_waiting": 10_000_000,
        "max_schedules": 100_000,
        "max_types": 1_000,
        "max_keys": 1_000,
        "max_calendars": 1_000,
        "max_calendar_bytes": 64 << 20,
    }
    assert set(answer["effective"]["sources"].values()) == {"default"}


async def test_the_default_tier_is_there_changes_for_all_and_stays(default: Api) -> None:
    api = default
    first = (await api.get(USUAL)).json
    listed = [tier["name"] for tier in (await api.get("/v1/tiers?limit=200")).json["items"]]

    changed = await put(api, USUAL, weight=3, quotas={"max_keys": 7})
    seen = (await api.get(f"/v1/tenants/{api.tenant_name}")).json["effective"]
    refused = await api.call("DELETE", USUAL)
    back = await put(api, USUAL, weight=None, quotas={"max_keys": None})

    assert "default" in listed
    assert first["quotas"]["max_keys"] == 1_000
    assert first["tenants"] > 0
    assert changed["quotas"] == first["quotas"] | {"max_keys": 7}
    assert (seen["quotas"]["max_keys"], seen["sources"]["max_keys"]) == (7, "default")
    assert (seen["weight"], seen["sources"]["weight"]) == (3, "default")
    assert (refused.status, refused.json["code"]) == (409, "conflict")
    assert back["quotas"] == first["quotas"]


async def test_the_defaults_are_enforced(default: Api) -> None:
    api = default
    await put(api, USUAL, quotas={"max_types": 0, "max_keys": 1, "max_schedules": 0, "max_calendars": 0})
    schedule = {"spec": {"cron": ["0 0 * * *"]}, "task": {"type": "a"}}

    answers = {
        "max_types": await api.call("PUT", "/v1/types/a", {}),
        "max_keys": await api.post("/v1/keys", {"role": "worker"}),
        "max_schedules": await api.call("PUT", "/v1/schedules/a", schedule),
        "max_calendars": await api.call("PUT", "/v1/calendars/a", {"dates": ["2030-01-01"]}),
    }

    for name, answer in answers.items():
        assert answer.status == 422, (name, answer.body)
        assert name in answer.body.decode()


async def test_the_largest_value_lifts_one_default_and_a_switch_all(default: Api) -> None:
    api = default
    await put(api, USUAL, quotas={"max_waiting": 1})
    await api.serving.obey()
    path = f"/v1/tenants/{api.tenant_name}"

    bound = [(await api.post("/v1/tasks", LATER)).status for _ in range(2)]
    lifted = await own(api, quotas={"max_waiting": UNLIMITED["max_waiting"]})
    free = [(await api.post("/v1/tasks", LATER)).status for _ in range(2)]
    none = await own(api, quotas=None, defaults=False)
    still_free = [(await api.post("/v1/tasks", LATER)).status for _ in range(2)]
    bound_again = await own(api, defaults=True)

    assert (bound, free, still_free) == ([202, 429], [202, 202], [202, 202])
    assert lifted["effective"]["sources"]["max_waiting"] == "own"
    assert none["effective"]["quotas"] == {"max_types": 1_000, "max_calendars": 1_000}
    assert bound_again["effective"]["quotas"]["max_waiting"] == 1
    assert (await api.post("/v1/tasks", LATER)).status == 429
    act = (await api.get(f"/v1/audit?tenant={api.tenant_name}&limit=1")).json["items"][0]
    assert (act["before"]["defaults"], act["after"]["defaults"]) == (False, True)
    assert (await api.get(path)).json["defaults"] is True


async def test_a_default_about_running_holds_for_tenants_old_and_new(default: Api) -> None:
    api, database = default, default.serving.database
    rules = TenantRules(database)
    assert api.tenant not in (await rules.refresh()).limits

    await put(api, USUAL, weight=5, quotas={"max_running": 9})
    changed = await rules.refresh()
    other = await api.serving.tenant(f"{api.tenant_name}-new")
    later = await rules.refresh()
    fresh = await read_rules(database)
    await put(api, USUAL, weight=None, quotas=None)
    back = await rules.refresh()

    for seen, tenant in ((changed, api.tenant), (later, other.tenant), (fresh, api.tenant), (fresh, other.tenant)):
        assert seen.limits[tenant] == Limits(9)
        assert seen.weights[tenant] == 5
    assert not {api.tenant, other.tenant} & {*back.limits, *back.weights}


# Bytes


@pytest.mark.parametrize("path", ["/v1/tasks", LONG])
async def test_payloads_beyond_the_rate_of_bytes_are_a_429_that_names_it(api: Api, path: str) -> None:
    await own(api, quotas={"submit_bytes_rate": 1024, "submit_bytes_burst": 65_536})
    assert (await api.post(path, KIB)).status == 202
    api.serving.passed[0] += 1e6

    answers = [await api.post(path, KIB) for _ in range(65)]
    api.serving.passed[0] += 2
    after = [(await api.post(path, KIB)).status for _ in range(3)]

    assert [each.status for each in answers] == [202] * 64 + [429]
    refused = answers[-1]
    assert refused.json["code"] == "quota_exceeded"
    assert "1,024 bytes of payloads a second (submit_bytes_rate), 65,536 at once" in refused.json["detail"]
    assert refused.headers["Retry-After"] == "1"
    assert after == [202, 202, 429]


async def test_a_batch_is_accepted_as_far_as_its_bytes_go(api: Api) -> None:
    await own(api, quotas={"submit_bytes_rate": 1024, "submit_bytes_burst": 65_536, "submit_rate": 100})
    await api.post("/v1/tasks", KIB)
    api.serving.passed[0] += 1e6

    never = await api.post("/v1/tasks/batch?atomic=true", [KIB] * 65)
    part = await api.post("/v1/tasks/batch", [KIB] * 65)
    api.serving.passed[0] += 10
    not_whole = await api.post("/v1/tasks/batch?atomic=true", [KIB] * 11)
    whole = await api.post("/v1/tasks/batch?atomic=true", [KIB] * 10)

    assert (never.status, never.json["code"]) == (413, "too_large")
    assert "submit_bytes_burst 65,536" in never.json["detail"]
    assert (part.json["accepted"], part.json["results"][-1]["error"]["code"]) == (64, "quota_exceeded")
    assert (not_whole.status, whole.status) == (429, 200)


async def test_what_more_tasks_refuse_costs_no_bytes(api: Api) -> None:
    await own(api, quotas={"submit_bytes_rate": 1024, "submit_bytes_burst": 65_536, "submit_rate": 0.001})
    await api.post("/v1/tasks", LATER)
    api.serving.passed[0] += 100

    refused = [(await api.post(path, KIB)).status for path in ("/v1/tasks", LONG) * 50]
    await own(api, quotas={"submit_rate": None})
    free = (await api.post("/v1/tasks/batch", [KIB] * 64)).json

    assert refused == [429] * 100
    assert free["accepted"] == 64


# Counting


async def test_no_more_tasks_wait_than_the_size_of_the_tables_says(api: Api) -> None:
    database = api.serving.database
    before = await bound_waiting(database)
    await own(api, defaults=False)
    for _ in range(4):
        answer = await api.post("/v1/tasks/batch", [LATER] * 1000)
        assert answer.json["accepted"] == 1000
    held = await api.post("/v1/tasks/bulk/pause", {"filter": {}, "limit": 1000})

    after = await bound_waiting(database)
    waiting = await count_waiting(database, api.tenant, 10_000)

    assert held.status == 200, held.body
    assert waiting == 4000
    assert after.tasks >= waiting
    assert after.tasks > before.tasks


async def test_a_default_of_the_builtin_table_is_within_every_range(api: Api) -> None:
    """Every default could be typed."""
    stored = json.loads((await api.call("PUT", USUAL, {"quotas": {}})).body)["quotas"]

    answer = await api.call("PUT", f"/v1/tiers/{api.tenant_name}-same", {"quotas": stored})

    assert answer.status == 201
    assert answer.json["quotas"] == stored
    assert set(stored) <= set(DEFAULTS.__struct_fields__)
