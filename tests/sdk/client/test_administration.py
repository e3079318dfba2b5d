"""Types, queues, limits, keys, tenants, breakers, the outbox and nodes through both clients, against a real node."""

import asyncio
import json
import uuid
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from duetime import Egress, Limits, RateLimit, RetryPolicy, Throttle, TypeDebounce, TypeDefaults, TypeLimits, Unique
from duetime.sdk.errors import Conflict, InvalidRequest, NotFound
from duetime.sdk.shapes.operation import Refused
from faults.processes import embedded_url
from nodes import NodeProcess


@pytest.fixture
def name() -> str:
    return f"admin.{uuid.uuid4().hex[:12]}"


async def test_a_type_is_registered_read_changed_and_forgotten(each_client: Any, name: str) -> None:
    made = await each_client.put_type(
        name,
        schema={"type": "object"},
        defaults=TypeDefaults(queue="mail", timeout=timedelta(seconds=30), retry=RetryPolicy(max_attempts=3)),
        limits=TypeLimits(max_running=5, concurrency_key="customer"),
        throttle=Throttle(100, "1m", "customer", burst=20),
        rate_limit=RateLimit(10, timedelta(hours=1)),
        unique=Unique(key="order", period="10m"),
    )
    read = await each_client.get_type(name)
    changed = await each_client.put_type(name, **{**read.options(), "unique": None, "debounce": TypeDebounce("30s")})
    again = await each_client.get_type(name)

    assert (made.name, made.version, changed.version) == (name, 1, 2)
    assert (read.version, read.schema) == (1, {"type": "object"})
    assert (read.defaults["queue"], read.defaults["timeout"], read.defaults["retry"]["max_attempts"]) == ("mail", 30, 3)
    assert read.limits == {"max_running": 5, "concurrency_key": "customer"}
    assert read.throttle == {"limit": 100, "period": 60, "burst": 20, "key": "customer"}
    assert (read.rate_limit, read.debounce) == ({"limit": 10, "period": 3600}, None)
    assert (read.unique["key"], read.unique["period"]) == ("order", 600)
    assert (again.unique, again.debounce, again.throttle) == (None, {"period": 30}, read.throttle)
    await each_client.delete_type(name)
    with pytest.raises(NotFound):
        await each_client.get_type(name)


async def test_types_are_listed_over_all_pages(each_client: Any, name: str) -> None:
    names = [f"{name}.{number}" for number in range(3)]
    for each in names:
        await each_client.put_type(each, throttle={"limit": 1, "period": "1s"})

    listed = [each.name async for each in each_client.list_types(page_size=2)]

    assert [each for each in listed if each in names] == names


async def test_a_schema_is_tried_on_waiting_tasks_before_it_is_stored(each_client: Any, name: str) -> None:
    wrong = await each_client.submit(name, {"to": 7}, delay="1h")
    await each_client.submit(name, {"to": "ada"}, delay="1h")
    schema = {"properties": {"to": {"type": "string"}}}

    would = await each_client.preview_type(name, schema=schema)

    assert (would.is_new, would.waiting_sampled, would.waiting_invalid) == (True, 2, 1)
    [example] = would.examples
    assert (example.task, example.errors[0].path) == (wrong.id, "payload.to")
    with pytest.raises(NotFound):
        await each_client.get_type(name)
    assert (await each_client.put_type(name, schema=schema)).waiting_invalid == 1
    with pytest.raises(InvalidRequest, match=r"payload\.to"):
        await each_client.submit(name, {"to": 7})
    with pytest.raises(InvalidRequest, match="throttle: says the same as"):
        await each_client.preview_type(name, limits={"rate": 1}, throttle=Throttle(1, "1s"))


async def test_a_queue_is_paused_resumed_limited_and_forgotten(each_client: Any, queue: str) -> None:
    await each_client.submit("a", queue=queue)

    paused = await each_client.pause_queue(queue)
    limited = await each_client.limit_queue(queue, Limits(max_running=2, rate=5, burst=10))
    resumed = await each_client.resume_queue(queue)
    lifted = await each_client.limit_queue(queue, None)

    patient = await each_client.allow_silence(queue, "2m")
    usual = await each_client.allow_silence(queue, None)

    assert (patient.max_silence, usual.max_silence) == (120.0, None)
    assert paused.state == "paused"
    assert paused.notes == ["the queue is paused: nothing of it starts; 1 task is due now"]
    assert (limited.state, limited.limits) == ("paused", Limits(max_running=2, rate=5.0, burst=10))
    assert (resumed.state, resumed.limits, lifted.limits) == ("active", limited.limits, Limits())
    assert queue in [each.name async for each in each_client.list_queues()]
    await each_client.delete_queue(queue)
    assert (await each_client.get_queue(queue)).version is None


async def test_the_limit_of_a_key_is_set_read_and_lifted(each_client: Any, name: str) -> None:
    pattern = f"{name}-*"

    put = await each_client.put_limit(pattern, Limits(max_running=0, strict=True))
    read = await each_client.get_limit(pattern)

    assert (put.max_running, put.strict, put.version) == (0, True, 1)
    assert put.notes == ["max_running is 0: no task with such a concurrency_key starts"]
    assert (read.name, read.max_running, read.rate) == (pattern, 0, None)
    assert pattern in [each.name async for each in each_client.list_limits(page_size=1)]
    await each_client.delete_limit(pattern)
    with pytest.raises(NotFound):
        await each_client.get_limit(pattern)
    with pytest.raises(InvalidRequest, match="give max_running, rate, or both"):
        await each_client.put_limit(pattern, Limits())


async def test_keys_are_made_listed_rotated_and_revoked(each_client: Any, name: str) -> None:
    made = await each_client.create_key("producer", name=name, types=["a.*"], queues=["q"], allowed_ips=["10.0.0.1/32"])
    rotated = await each_client.rotate_key(made.id, overlap=timedelta(hours=2))
    await each_client.revoke_key(made.id)
    old, new = [key for key in await each_client.list_keys() if key.name == name]

    assert (made.key.startswith("dt_"), made.role, made.key in repr(made)) == (True, "producer", False)
    assert made.notes == rotated.notes == ["this request came from 127.0.0.1, from which the new key is not allowed"]
    assert (old.id, new.id, old.revoked_at is None, new.revoked_at) == (made.id, rotated.id, False, None)
    assert (new.types, new.queues, new.allowed_ips, new.last_used_at) == (["a.*"], ["q"], ["10.0.0.1"], None)
    assert await each_client.list_keys(unused_for="90d") == []
    with pytest.raises(NotFound):
        await each_client.revoke_key(1 << 30)


async def test_a_tenant_is_made_confined_and_freed(each_client: Any) -> None:
    name = f"team-{uuid.uuid4().hex[:12]}"

    made = await each_client.put_tenant(name, weight=2, egress=Egress(hosts=["*.example.com"], https_only=True))
    more = await each_client.put_tenant(name, quotas={"max_waiting": 5}, egress={"ports": [443], "https_only": None})
    freed = await each_client.put_tenant(name, weight=None, egress=None)

    assert (made.name, made.weight, made.egress) == (name, 2, Egress(hosts=["*.example.com"], https_only=True))
    assert more.effective.egress == Egress(hosts=["*.example.com"], ports=[443])
    assert (more.effective.sources["egress.ports"], more.effective.sources["max_keys"]) == ("own", "default")
    assert "dead letter" in more.notes[0]
    assert (freed.weight, freed.egress, freed.quotas) == (None, Egress(), {"max_waiting": 5})
    assert await each_client.get_tenant(name) == freed


async def test_tiers_and_tenants_are_listed_and_what_was_done_to_them(each_client: Any) -> None:
    tier, tenant = f"tier-{uuid.uuid4().hex[:12]}", f"team-{uuid.uuid4().hex[:12]}"

    made = await each_client.put_tier(tier, weight=3, quotas={"max_running": 7})
    await each_client.put_tenant(tenant, tier=tier)
    read = await each_client.get_tier(tier)
    [listed] = [each async for each in each_client.list_tenants(page_size=1) if each.name == tenant]
    [act] = [each async for each in each_client.list_audit(tenant)]

    assert (made.weight, made.tenants, read.quotas, read.tenants) == (3, 0, {"max_running": 7}, 1)
    assert (listed.tier, listed.effective.weight) == (tier, 3)
    assert (act.action, act.subject, act.before, act.after["tier"]) == ("tenant.create", tenant, None, tier)
    with pytest.raises(Conflict):
        await each_client.delete_tier(tier)
    await each_client.put_tenant(tenant, tier=None)
    await each_client.delete_tier(tier)
    assert tier not in [each.name async for each in each_client.list_tiers()]


async def test_a_breaker_is_set_and_left_to_itself(each_client: Any) -> None:
    host = f"{uuid.uuid4().hex[:12]}.example:443"

    held = await each_client.set_breaker(host, "open", note="maintenance")
    listed = {each.host: each async for each in each_client.list_breakers()}
    free = await each_client.set_breaker(host, "auto")

    assert (held.forced, held.note, listed[host].forced) == ("open", "maintenance", "open")
    assert (free.host, free.forced) == (host, None)


async def test_what_the_outbox_refused_is_read_judged_again_and_thrown_away(
    each_client: Any, node: NodeProcess, name: str
) -> None:
    with psycopg.connect(embedded_url(node)) as connection:
        body = json.dumps({"type": name, "priority": "urgent"})
        row = connection.execute("SELECT duetime.enqueue('default', %s)", (body,)).fetchone()
    assert row is not None
    number = row[0]

    read = await refused(each_client, number)
    listed = [each.id async for each in each_client.list_refused(page_size=1)]
    await each_client.retry_refused(number)
    again = await refused(each_client, number)
    await each_client.delete_refused(number)

    assert (read.body["type"], read.error.errors[0].path, number in listed) == (name, "priority", True)
    assert again.refused_at >= read.refused_at
    with pytest.raises(NotFound):
        await each_client.get_outbox(number)


async def refused(client: Any, number: int) -> Refused:
    """Waits until the number is refused."""
    async with asyncio.timeout(30):
        while (found := await client.get_outbox(number)).refused is None:
            await asyncio.sleep(0.05)
    assert isinstance(found.refused, Refused)
    return found.refused


async def test_the_nodes_are_listed(each_client: Any) -> None:
    [found] = await each_client.list_nodes()

    assert (found.shards, found.answers) == (256, True)
