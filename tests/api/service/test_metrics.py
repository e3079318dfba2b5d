"""/metrics: what it counts, and what it tells to whom."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.client import Api
from api.tenancy.test_tenancy import make_key
from duetime import metrics
from duetime.api.service.metrics import WRITTEN_PER_SECOND

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def read(api: Api) -> dict[str, float]:
    """Each line without its node, by name and labels."""
    answer = await api.get("/metrics")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            assert sample.labels.pop("node") == "here"
            found[" ".join([sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))])] = (
                sample.value
            )
    return found


async def test_each_task_is_counted_once_from_submission_to_its_end(api: Api) -> None:
    before = await read(api)

    for _ in range(4):
        await api.submit()
    for _ in range(2):
        await api.post("/v1/tasks", {"type": "later", "idempotency_key": "same", "delay": "1h"})
    first, second, third, fourth = await api.lease(max=4)
    for _ in range(2):
        await api.settle(first)
    await api.settle(second, "failed", error={"message": "no", "kind": "permanent"})
    await api.settle(third, "snoozed", retry_after=60)
    await api.settle(fourth)
    await api.settle({**fourth, "attempt": 9})

    after = await read(api)
    grown = {name: value - before.get(name, 0) for name, value in after.items() if name.startswith("duetime_")}
    assert {name: value for name, value in grown.items() if value} == {
        "duetime_tasks_submitted_total by=call": 5,
        "duetime_attempts_claimed_total way=claim": 4,
        "duetime_attempts_settled_total outcome=succeeded": 2,
        "duetime_attempts_settled_total outcome=failed": 1,
        "duetime_attempts_settled_total outcome=snoozed": 1,
    }
    assert after["process_resident_memory_bytes"] > 0
    assert not [name for name in after if "_created" in name]


async def test_what_names_tenants_is_only_for_admins(api: Api) -> None:
    metrics.WAITING_WITHOUT_WORKER.labels("team-secret", "gpu").set(3)

    open_to_all = await api.get("/metrics", headers={"Authorization": ""})
    viewer = await api.get("/metrics", key=await make_key(api, "viewer"))
    wrong = await api.get("/metrics", key="dt_wrong")

    assert open_to_all.status == 200
    assert b"duetime_tasks_submitted_total" in open_to_all.body
    assert b"tenant=" not in open_to_all.body
    assert b"team-secret" not in open_to_all.body
    assert (viewer.status, wrong.status) == (403, 401)
    assert (await read(api))["duetime_waiting_without_worker requires=gpu tenant=team-secret"] == 3


async def test_without_a_key_the_text_is_written_a_few_times_a_second(api: Api) -> None:
    began, texts = time.monotonic(), set()
    for _ in range(100):
        metrics.ACCEPT_ERRORS.inc()
        texts.add((await api.get("/metrics", headers={"Authorization": ""})).body)
    seconds = time.monotonic() - began

    assert len(texts) <= WRITTEN_PER_SECOND * (seconds + 2)
    before = await read(api)
    metrics.ACCEPT_ERRORS.inc()
    assert await read(api) != before, "a key reads what is counted now"
