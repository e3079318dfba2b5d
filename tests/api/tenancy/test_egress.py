"""Where the HTTP targets of a tenant may be: who sets it, who sees it, and what it refuses."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from api.client import Api
from api.schedule_calls import put_schedule
from api.service.test_outbox import enqueue
from duetime.admin.keys import create_key
from duetime.model.egress_rules import MAX_HOSTS, MAX_PORTS

pytestmark = pytest.mark.asyncio(loop_scope="module")
RULES = {"hosts": ["api.example.com", "*.team.example"], "ports": [443, 8443], "https_only": True}
ALLOWED, REFUSED = "https://a.team.example/x", "https://evil.example/x"


async def put(api: Api, path: str, **fields: Any) -> Any:
    answer = await api.call("PUT", path, fields)
    assert answer.status in (200, 201), answer.body
    return answer.json


async def confine(api: Api, egress: Any = RULES) -> Any:
    stored = await put(api, f"/v1/tenants/{api.tenant_name}", egress=egress)
    await api.serving.obey()
    return stored


async def test_rules_are_set_one_by_one_and_taken_away(api: Api) -> None:
    path = f"/v1/tenants/{api.tenant_name}"
    first = await put(api, path, egress={"hosts": ["API.Example.com.", "*.team.example", "api.example.com"]})
    more = await put(api, path, egress={"ports": [8443, 443, 443], "https_only": True})
    less = await put(api, path, weight=2, egress={"ports": None})
    none = await put(api, path, egress=None)

    assert first["egress"] == {"hosts": RULES["hosts"]}
    assert more["egress"] == more["effective"]["egress"] == RULES
    assert "dead letter" in more["notes"][0]
    assert less["egress"] == {"hosts": RULES["hosts"], "https_only": True}
    assert (none["egress"], none["effective"]["egress"], none["notes"]) == ({}, {}, [])
    act = (await api.get(f"/v1/audit?tenant={api.tenant_name}&limit=1")).json["items"][0]
    assert (act["action"], act["before"]["egress"], act["after"]["egress"]) == ("tenant.change", less["egress"], {})


@pytest.mark.parametrize(
    ("egress", "path"),
    [
        ({"hosts": ["a.example", "https://b.example"]}, "egress.hosts[1]"),
        ({"hosts": ["a.*.example"]}, "egress.hosts[0]"),
        ({"hosts": ["a.example:443"]}, "egress.hosts[0]"),
        ({"hosts": [""]}, "egress.hosts[0]"),
        ({"hosts": ["a.example"] * (MAX_HOSTS + 1)}, "egress.hosts"),
        ({"hosts": "a.example"}, "egress.hosts"),
        ({"ports": []}, "egress.ports"),
        ({"ports": [0]}, "egress.ports[0]"),
        ({"ports": [65536]}, "egress.ports[0]"),
        ({"ports": [443] * (MAX_PORTS + 1)}, "egress.ports"),
        ({"https_only": "yes"}, "egress.https_only"),
        ({"host": ["a.example"]}, "egress.host"),
        ([], "egress"),
    ],
)
async def test_a_wrong_rule_is_a_422_that_names_it(api: Api, egress: Any, path: str) -> None:
    tier = f"{api.tenant_name}-tier"
    for where in (f"tenants/{api.tenant_name}", f"tenants/{api.tenant_name}-new", f"tiers/{tier}"):
        answer = await api.call("PUT", f"/v1/{where}", {"egress": egress})
        assert (answer.status, answer.paths) == (422, [path]), answer.body


async def test_a_tier_says_what_its_tenants_do_not(api: Api) -> None:
    tier = f"{api.tenant_name}-gold"
    made = await put(api, f"/v1/tiers/{tier}", egress=RULES)
    await put(api, f"/v1/tiers/{tier}", weight=2, egress={"ports": [443]})
    own = await put(api, f"/v1/tenants/{api.tenant_name}", tier=tier, egress={"https_only": False})
    await api.serving.obey()

    assert made["egress"] == RULES
    assert own["effective"]["egress"] == {**RULES, "ports": [443], "https_only": False}
    assert (await api.post("/v1/tasks", {"type": "a", "target": {"url": REFUSED}})).json["code"] == "egress_refused"
    # A change of the tier reaches those who have it.
    await put(api, f"/v1/tiers/{tier}", egress=None)
    await api.serving.obey()
    assert (await api.post("/v1/tasks", {"type": "a", "target": {"url": REFUSED}})).status == 202


@pytest_asyncio.fixture(loop_scope="module")
async def usual(api: Api) -> AsyncIterator[Any]:
    """Confines every tenant that has defaults."""

    async def confine_all(egress: Any) -> None:
        await put(api, "/v1/tiers/default", egress=egress)
        await api.serving.obey()

    yield confine_all
    await confine_all(None)


async def test_the_tier_default_says_what_nobody_else_does(api: Api, usual: Any) -> None:
    task = {"type": "a", "target": {"url": REFUSED}}
    # Nothing but defaults: no node knows it by name.
    new = await api.serving.tenant(f"{api.tenant_name}-new")
    tier = f"{api.tenant_name}-gold"
    await put(api, f"/v1/tiers/{tier}", egress={"https_only": False})
    await put(api, f"/v1/tenants/{api.tenant_name}", tier=tier, egress={"ports": [8443]})
    await usual(RULES)

    seen = (await api.get(f"/v1/tenants/{api.tenant_name}")).json["effective"]
    sources = {name: source for name, source in seen["sources"].items() if name.startswith("egress.")}
    assert seen["egress"] == {"hosts": RULES["hosts"], "ports": [8443], "https_only": False}
    assert sources == {"egress.hosts": "default", "egress.ports": "own", "egress.https_only": "tier"}
    assert [(await each.post("/v1/tasks", task)).json["code"] for each in (api, new)] == ["egress_refused"] * 2
    allowed = {"type": "a", "target": {"url": "http://a.team.example:8443/"}}
    assert [(await each.post("/v1/tasks", allowed)).status for each in (api, new)] == [202, 422]

    # Who has no defaults is free, and so is who sets every host.
    await put(api, f"/v1/tenants/{api.tenant_name}", tier=None, egress=None, defaults=False)
    await put(api, f"/v1/tenants/{new.tenant_name}", egress={"hosts": ["*"], "ports": [443, 80], "https_only": False})
    await api.serving.obey()
    assert [(await each.post("/v1/tasks", task)).status for each in (api, new)] == [202, 202]
    # A change reaches those who are confined by it again, and those who are not stay free.
    await put(api, f"/v1/tenants/{new.tenant_name}", egress=None)
    await usual({"ports": [8443]})
    assert [(await each.post("/v1/tasks", task)).status for each in (api, new)] == [202, 422]
    await usual(None)
    assert (await new.post("/v1/tasks", task)).status == 202


async def test_only_an_admin_sets_it_and_the_owner_sees_it(api: Api) -> None:
    _, owner = await create_key(api.serving.database, api.tenant, "owner")
    await confine(api)
    path = f"/v1/tenants/{api.tenant_name}"

    assert (await api.call("PUT", path, {"egress": None}, key=owner)).status == 403
    assert (await api.get(path, key=owner)).json["effective"]["egress"] == RULES


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        (REFUSED, "egress.hosts"),
        ("https://team.example/", "egress.hosts"),
        ("http://a.team.example:8443/", "egress.https_only"),
        ("https://a.team.example:8080/", "egress.ports"),
    ],
)
async def test_a_submission_is_refused_with_the_rule(api: Api, url: str, rule: str) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-free")
    await confine(api)
    task = {"type": "a", "target": {"url": url}}

    answer = await api.post("/v1/tasks", task)
    batch = await api.post("/v1/tasks/batch", [task, {"type": "a", "target": {"url": ALLOWED}}, {"type": "a"}])

    assert (answer.status, answer.json["code"], answer.paths) == (422, "egress_refused", ["target.url"])
    assert answer.json["errors"][0]["message"].startswith(f"{rule}: ")
    assert batch.json["accepted"] == 2
    assert batch.json["results"][0]["error"]["code"] == "egress_refused"
    assert (await other.post("/v1/tasks", task)).status == 202


async def test_what_is_wrong_otherwise_is_said_first(api: Api) -> None:
    await confine(api)

    answer = await api.post("/v1/tasks", {"type": "a", "target": {"url": REFUSED}, "labels": {"": "x"}})

    assert (answer.status, answer.json["code"]) == (422, "invalid")
    assert (await api.post("/v1/tasks", {"type": "a", "target": {"url": "ftp://x"}})).json["code"] == "invalid"


async def test_a_schedules_template_and_the_outbox_are_judged_too(api: Api) -> None:
    await confine(api)
    template = {"type": "a", "target": {"url": REFUSED}}

    schedule = await put_schedule(api, "nightly", task=template)
    preview = await api.post("/v1/schedules/preview", {"spec": {"every": 60}, "task": template})
    number = await enqueue(api, target={"url": REFUSED})

    assert (schedule.status, schedule.json["code"], schedule.paths) == (422, "egress_refused", ["task.target.url"])
    assert preview.json["code"] == "egress_refused"
    [refused] = (await api.get("/v1/outbox")).json["items"]
    assert (refused["id"], refused["error"]["code"]) == (number, "egress_refused")
    assert (await put_schedule(api, "nightly", task={"type": "a", "target": {"url": ALLOWED}})).status == 201
    await confine(api, None)
    assert (await api.post(f"/v1/outbox/{number}/retry")).status == 202
