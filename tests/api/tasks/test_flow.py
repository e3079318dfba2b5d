"""Flow control: keys of tasks, and submissions that are counted, unique or debounced, on any number of nodes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from api.client import Api, Reply, Serving, serve
from duetime.admin.invariants import check_invariants
from duetime.database.pool import Database
from duetime.lifecycle.submission.flow import retire_flow
from duetime.sdk.uuid7 import make_uuid7

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAITING = "SELECT due.task FROM due JOIN lane ON lane.id = due.lane WHERE lane.tenant = $1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second(module_url: str) -> AsyncIterator[Serving]:
    """Another node on the same database."""
    database = await Database.open(module_url)
    async with serve(database) as serving:
        yield serving
    await database.close()


@pytest.fixture
def twin(api: Api, second: Serving) -> Api:
    """The same tenant at the other node."""
    return replace(api, serving=second)


async def register(api: Api, *others: Api, name: str = "flow", **rules: Any) -> None:
    answer = await api.call("PUT", f"/v1/types/{name}", rules)
    assert answer.status in (200, 201), answer.body
    for other in others:
        await other.serving.types.refresh()


async def submit(api: Api, payload: Any = None, **fields: Any) -> Reply:
    return await api.post("/v1/tasks", {"type": "flow", "payload": payload, **fields})


async def waiting(api: Api) -> list[str]:
    return [str(row["task"]) for row in await api.serving.database.fetch(WAITING, api.tenant)]


async def work(api: Api, outcome: str = "succeeded") -> Any:
    (leased,) = await api.lease()
    await api.settle(leased, outcome)
    return leased


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


# Keys of limits


async def test_a_task_shows_the_keys_of_its_limits(api: Api) -> None:
    keys = {"concurrency_key": "customer 42", "rate_key": "shop-7"}
    task = await api.submit(**keys)
    batch = (await api.post("/v1/tasks/batch", [{"type": "a", **keys}])).json["results"]

    for shown in (task, *[(await api.get(f"/v1/tasks/{each['id']}")).json for each in (task, *batch)]):
        assert (shown["concurrency_key"], shown["rate_key"]) == ("customer 42", "shop-7")
    plain = await api.submit()
    assert (plain["concurrency_key"], plain["rate_key"]) == (None, None)


async def test_a_schedule_gives_its_keys_to_its_tasks(api: Api) -> None:
    template = {"type": "a", "concurrency_key": "c", "rate_key": "r"}
    for result in (201, 200):
        put = await api.call("PUT", "/v1/schedules/s", {"spec": {"every": "1d"}, "task": template})
        assert put.status == result

    task = (await api.post("/v1/schedules/s/trigger")).json["task"]

    shown = (await api.get(f"/v1/tasks/{task}")).json
    assert (shown["concurrency_key"], shown["rate_key"]) == ("c", "r")
    stored = (await api.get("/v1/schedules/s")).json
    assert (stored["task"]["concurrency_key"], stored["version"]) == ("c", 1)


@pytest.mark.parametrize(
    ("paths", "fields"),
    [
        (["concurrency_key"], {"concurrency_key": ""}),
        (["concurrency_key"], {"concurrency_key": "a\n"}),
        (["rate_key"], {"rate_key": "a" * 256}),
        (["rate_key"], {"rate_key": 7}),
        (["unique"], {"unique": {}, "debounce": {"key": "k", "period": 1}}),
        (["unique"], {"unique": True}),
        (["unique.key"], {"unique": {"key": ""}}),
        (["unique.states"], {"unique": {"states": []}}),
        (["unique.states[0]"], {"unique": {"states": ["gone"]}}),
        (["unique.period"], {"unique": {"period": "31d"}}),
        (["debounce.key"], {"debounce": {"period": 1}}),
        (["debounce.key"], {"debounce": {"key": "\0", "period": 1}}),
        (["debounce.period"], {"debounce": {"key": "k"}}),
        (["debounce.period"], {"debounce": {"key": "k", "period": 0}}),
        (["debounce.timeout"], {"debounce": {"key": "k", "period": 10, "timeout": 5}}),
        (["debounce.delay"], {"debounce": {"key": "k", "period": 10, "delay": 5}}),
        (["delay"], {"debounce": {"key": "k", "period": 10}, "delay": 5}),
        (["run_at"], {"debounce": {"key": "k", "period": 10}, "run_at": "2030-01-01T00:00:00Z"}),
        (["idempotency_key"], {"debounce": {"key": "k", "period": 10}, "idempotency_key": "i"}),
        (["idempotency_key"], {"unique": {}, "idempotency_key": "i"}),
    ],
)
async def test_what_is_wrong_with_flow_control_is_said(api: Api, paths: list[str], fields: dict[str, Any]) -> None:
    answer = await submit(api, **fields)
    assert (answer.status, answer.paths) == (422, paths), answer.body
    assert await api.stored() == 0


async def test_a_debounced_task_must_not_expire_before_it_is_due(api: Api) -> None:
    soon = (api.serving.database.clock.now() + timedelta(seconds=30)).isoformat()
    answer = await submit(api, debounce={"key": "k", "period": "1m"}, expires_at=soon)
    assert (answer.status, answer.paths) == (422, ["expires_at"])


async def test_an_atomic_batch_takes_no_flow_control(api: Api) -> None:
    answer = await api.post("/v1/tasks/batch?atomic=true", [{"type": "a"}, {"type": "a", "unique": {}}])
    assert answer.status == 422
    assert "atomic" in answer.json["results"][1]["error"]["detail"]
    assert await api.stored() == 0


# Unique


async def test_of_twenty_unique_submissions_at_two_nodes_one_is_stored(api: Api, twin: Api) -> None:
    answers = await asyncio.gather(
        *(submit((api, twin)[number % 2], number, unique={"key": "one"}) for number in range(20))
    )

    assert Counter(answer.status for answer in answers) == {202: 1, 200: 19}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert await api.stored() == 1


async def test_a_unique_task_makes_room_when_it_is_over(api: Api) -> None:
    first = await submit(api, unique={"key": "k"})
    (leased,) = await api.lease()
    assert (await submit(api, unique={"key": "k"})).json["id"] == first.json["id"]
    await api.settle(leased)

    following = await submit(api, unique={"key": "k"})

    assert (following.status, following.json["id"] == first.json["id"]) == (202, False)
    again = await submit(api, unique={"key": "k"})
    assert (again.status, again.json["id"], again.json["state"]) == (200, following.json["id"], "ready")
    assert (await submit(api, unique={"key": "other"})).status == 202


async def test_a_task_is_unique_by_its_payload_and_type(api: Api) -> None:
    first = await submit(api, {"a": 1, "b": [2]}, unique={}, delay="1h")
    assert (await submit(api, {"b": [2], "a": 1}, unique={})).json["id"] == first.json["id"]
    assert (await submit(api, {"a": 2}, unique={}, delay="1h")).status == 202
    assert (await api.post("/v1/tasks", {"type": "b", "payload": {"a": 1, "b": [2]}, "unique": {}})).status == 202
    other = await api.serving.tenant(f"{api.tenant_name}-other")
    assert (await submit(other, {"a": 1, "b": [2]}, unique={})).status == 202


async def test_states_and_period_say_when_a_task_counts(api: Api) -> None:
    first = await submit(api, unique={"key": "k"})
    await work(api)

    assert (await submit(api, unique={"key": "k", "period": "1h"})).json["id"] == first.json["id"]
    assert (await submit(api, unique={"key": "k", "states": ["succeeded"]})).json["id"] == first.json["id"]
    assert (await submit(api, unique={"key": "k", "states": ["running"]})).status == 202


async def test_a_type_says_what_is_unique(api: Api) -> None:
    await register(api, unique={"key": "order.shop"})

    first = await submit(api, {"order": {"shop": 7, "n": 1}})
    again = await submit(api, {"order": {"shop": 7, "n": 2}})
    batch = await api.post(
        "/v1/tasks/batch",
        [{"type": "flow", "payload": {"order": {"shop": shop}}} for shop in (7, 8, 8)] + [{"type": "free"}],
    )

    assert (again.status, again.json["id"]) == (200, first.json["id"])
    results = batch.json["results"]
    assert [each.get("repeated", False) for each in results] == [True, False, True, False]
    assert (results[0]["id"], results[1]["id"]) == (first.json["id"], results[2]["id"])
    assert await api.stored() == 3


async def test_a_repeated_request_gives_its_task_even_when_that_is_over(api: Api) -> None:
    headers = {"Idempotency-Key": str(make_uuid7())}
    body = {"type": "flow", "unique": {"key": "k"}}
    first = await api.post("/v1/tasks", body, headers=headers)
    await work(api)

    again = await api.post("/v1/tasks", body, headers=headers)
    other = await api.post("/v1/tasks", {**body, "payload": 1}, headers=headers)

    assert (again.status, again.json["id"]) == (200, first.json["id"])
    assert (other.status, other.json["code"]) == (409, "idempotency_conflict")
    assert await api.stored() == 1


async def test_a_repeated_batch_gives_its_tasks(api: Api) -> None:
    await register(api, rate_limit={"limit": 2, "period": "1d"})
    headers = {"Idempotency-Key": str(make_uuid7())}
    body = [{"type": "flow"}, {"type": "free"}, {"type": "flow", "unique": {"key": "k"}}]
    first = (await api.post("/v1/tasks/batch", body, headers=headers)).json

    again = (await api.post("/v1/tasks/batch", body, headers=headers)).json

    assert (first["accepted"], again["accepted"]) == (3, 3)
    assert [each["id"] for each in again["results"]] == [each["id"] for each in first["results"]]
    assert await api.stored() == 3


async def test_a_unique_task_is_found_when_its_node_died_before_it_noted_it(api: Api) -> None:
    first = await submit(api, unique={"key": "k"}, delay="1h")
    await api.serving.database.execute("DELETE FROM flow_key WHERE tenant = $1", api.tenant)

    again = await submit(api, unique={"key": "k"}, delay="1h")

    assert (again.status, again.json["id"]) == (200, first.json["id"])
    [row] = await api.serving.database.fetch("SELECT task FROM flow_key WHERE tenant = $1", api.tenant)
    assert str(row["task"]) == first.json["id"]


# Debounce


async def test_a_later_submission_replaces_the_one_that_waits(api: Api) -> None:
    rule = {"key": "k", "period": "1h"}
    first = (await submit(api, 1, debounce=rule)).json
    second = (await submit(api, 2, debounce=rule)).json
    other = (await submit(api, 3, debounce={"key": "other", "period": "1h"})).json

    assert "replaces" not in first
    assert second["replaces"] == first["id"]
    assert (second["state"], second["payload"]) == ("scheduled", 2)
    replaced = (await api.get(f"/v1/tasks/{first['id']}")).json
    assert replaced["state"] == "cancelled"
    assert replaced["end_reason"] == f"replaced by task {second['id']}"
    assert set(await waiting(api)) == {second["id"], other["id"]}
    wait = at(second["run_at"]) - at(second["created_at"])
    assert timedelta(minutes=59) < wait < timedelta(minutes=61)
    assert (await api.get(f"/v1/tasks/{second['id']}")).json["run_at"] == second["run_at"]


async def test_a_debounced_task_runs_at_the_latest_after_its_timeout(api: Api) -> None:
    rule = {"key": "k", "period": "1h", "timeout": "90m"}
    first = (await submit(api, debounce=rule)).json
    await api.serving.database.execute(
        "UPDATE flow_key SET first_at = first_at - interval '1 hour' WHERE tenant = $1", api.tenant
    )

    second = (await submit(api, debounce=rule)).json
    third = (await submit(api, debounce=rule)).json

    due = at(third["run_at"]) - at(third["created_at"])
    assert timedelta(minutes=29) < due < timedelta(minutes=31)
    assert (second["replaces"], third["replaces"]) == (first["id"], second["id"])


async def test_of_twenty_debounced_submissions_at_two_nodes_one_waits(api: Api, twin: Api) -> None:
    rule = {"key": "k", "period": "1h"}
    answers = await asyncio.gather(*(submit((api, twin)[n % 2], n, debounce=rule) for n in range(20)))

    assert [answer.status for answer in answers] == [202] * 20
    made = {answer.json["id"] for answer in answers}
    replaced = {answer.json["replaces"] for answer in answers if "replaces" in answer.json}
    assert (len(made), len(replaced)) == (20, 19)
    assert await waiting(api) == list(made - replaced)


async def test_a_debounced_task_that_runs_is_not_replaced(api: Api) -> None:
    first = (await submit(api, debounce={"key": "k", "period": 0.1})).json
    (leased,) = await api.lease()
    assert leased["id"] == first["id"]

    second = (await submit(api, debounce={"key": "k", "period": "1h"})).json

    assert "replaces" not in second
    assert await api.state(first) == "running"
    assert await waiting(api) == [second["id"]]


async def test_a_type_debounces_by_a_key_of_the_payload_and_a_batch_keeps_its_last(api: Api) -> None:
    await register(api, debounce={"period": "1h", "key": "user"})
    items = [{"type": "flow", "payload": {"user": user, "n": n}} for n, user in enumerate("aba")]

    results = (await api.post("/v1/tasks/batch", items)).json["results"]

    assert results[2]["replaces"] == results[0]["id"]
    assert set(await waiting(api)) == {results[1]["id"], results[2]["id"]}
    assert (await submit(api, {"user": "a"}, delay="1h")).paths == ["delay"]


async def test_a_repeated_request_that_was_second_at_first_gives_its_task(api: Api) -> None:
    rule = {"key": "k", "period": "1h"}
    first = (await submit(api, 1, debounce=rule)).json
    await submit(api, 2, debounce=rule)
    # By the hint the first one is the last: its place is taken, which the submission learns on its way.
    await api.serving.database.execute("UPDATE flow_key SET task = $2 WHERE tenant = $1", api.tenant, first["id"])
    headers = {"Idempotency-Key": str(make_uuid7())}
    body = {"type": "flow", "payload": 3, "debounce": rule}
    third = await api.post("/v1/tasks", body, headers=headers)

    again = await api.post("/v1/tasks", body, headers=headers)

    assert (third.status, again.status, again.json["id"]) == (202, 200, third.json["id"])
    assert await waiting(api) == [third.json["id"]]


#: Keeps a submission from all that follows its task, as the death of its node would.
STOP = """
CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'stop' USING ERRCODE = '40001'; END $$;
CREATE TRIGGER stop BEFORE UPDATE ON flow_key FOR EACH ROW EXECUTE FUNCTION stop();
CREATE TRIGGER stop BEFORE INSERT ON held FOR EACH ROW EXECUTE FUNCTION stop();
"""
GO_ON = "DROP TRIGGER stop ON flow_key; DROP TRIGGER stop ON held; DROP FUNCTION stop();"


async def test_a_debounce_catches_up_on_what_came_to_nothing_behind_a_stored_task(api: Api) -> None:
    rule = {"key": "k", "period": "1h"}
    first = (await submit(api, 1, debounce=rule)).json
    await api.serving.database.execute(STOP)
    second = (await submit(api, 2, debounce=rule)).json
    await api.serving.database.execute(GO_ON)
    assert set(await waiting(api)) == {first["id"], second["id"]}

    third = (await submit(api, 3, debounce=rule)).json

    assert "replaces" not in second
    assert third["replaces"] == second["id"]
    assert await waiting(api) == [third["id"]]
    stored = (await api.get(f"/v1/tasks/{first['id']}")).json
    assert stored["end_reason"] == f"replaced by task {second['id']}"


# Rate limits


async def test_a_rate_limit_is_exact_over_two_nodes(api: Api, twin: Api) -> None:
    await register(api, twin, rate_limit={"limit": 7, "period": "7d", "key": "user"})

    answers = await asyncio.gather(*(submit((api, twin)[n % 2], {"user": "a"}) for n in range(20)))

    assert Counter(answer.status for answer in answers) == {202: 7, 429: 13}
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.json["code"] == "rate_limited"
    # A seventh of the seven days.
    assert 86_300 < int(refused.headers["Retry-After"]) <= 86_400
    assert await api.stored() == 7
    assert (await submit(api, {"user": "b"})).status == 202
    assert (await submit(api, 7)).status == 202


async def test_a_rate_refills_evenly(api: Api) -> None:
    await register(api, rate_limit={"limit": 4, "period": "4h"})
    assert [(await submit(api)).status for _ in range(5)] == [202, 202, 202, 202, 429]
    for hours, statuses in ((1, [202, 429]), (2, [202, 202, 429]), (100, [202, 202, 202, 202, 429])):
        await api.serving.database.execute(
            "UPDATE submit_rate SET even_at = even_at - $2 * interval '1 hour' WHERE tenant = $1", api.tenant, hours
        )
        assert [(await submit(api)).status for _ in statuses] == statuses


async def test_each_refused_item_of_a_batch_has_its_problem_in_its_place(api: Api) -> None:
    await register(api, rate_limit={"limit": 2, "period": "1d", "key": "u"})
    items = [{"type": "flow", "payload": {"u": each}} for each in "abaaab"] + [{"type": "free"}]

    answer = (await api.post("/v1/tasks/batch", items)).json

    codes = [each["error"]["code"] if "error" in each else "" for each in answer["results"]]
    assert codes == ["", "", "", "rate_limited", "rate_limited", "", ""]
    assert (answer["accepted"], answer["rejected"]) == (5, 2)


async def test_what_gives_a_unique_task_back_is_not_counted(api: Api) -> None:
    await register(api, rate_limit={"limit": 2, "period": "1d"}, unique={"key": "u"})

    statuses = [(await submit(api, {"u": each})).status for each in (1, 1, 1, 2, 2, 3)]

    assert statuses == [202, 200, 200, 202, 200, 429]


async def test_a_known_idempotency_key_is_not_counted(api: Api) -> None:
    await register(api, rate_limit={"limit": 1, "period": "1d"})
    first = await submit(api, idempotency_key="k")

    again = await submit(api, idempotency_key="k")

    assert (again.status, again.json["id"]) == (200, first.json["id"])
    assert (await submit(api, 1, idempotency_key="k")).status == 409
    assert (await submit(api, idempotency_key="other")).status == 429


async def test_a_key_is_known_while_its_task_waits_also_after_its_ttl(api: Api) -> None:
    await register(api, rate_limit={"limit": 1, "period": "1d"})
    first = await submit(api, idempotency_key="k")
    await api.serving.database.execute("UPDATE idempotency_key SET expires_at = now() - interval '1 hour'")

    again = await submit(api, idempotency_key="k")
    await work(api)

    assert (again.status, again.json["id"]) == (200, first.json["id"])
    # It is a new submission then, for which the rate has no room.
    assert (await submit(api, idempotency_key="k")).status == 429


# Upkeep


async def test_upkeep_forgets_the_keys_of_tasks_that_are_over_and_rates_at_rest(api: Api) -> None:
    await register(api, rate_limit={"limit": 2, "period": "1d"})
    database = api.serving.database
    over = (await submit(api, unique={"key": "over"})).json
    await work(api)
    held = (await submit(api, unique={"key": "held", "states": ["succeeded"]})).json
    await work(api)
    open_ = (await api.post("/v1/tasks", {"type": "b", "unique": {"key": "open"}, "delay": "10d"})).json
    later = database.clock.now() + timedelta(days=3)

    for _ in range(2):
        await retire_flow(database, later)

        kept = await database.fetch("SELECT task FROM flow_key WHERE tenant = $1", api.tenant)
        assert {str(row["task"]) for row in kept} == {held["id"], open_["id"]}
    assert over["id"] != held["id"]
    assert await database.fetch("SELECT 1 FROM submit_rate WHERE tenant = $1", api.tenant) == []
    again = await api.post("/v1/tasks", {"type": "b", "unique": {"key": "open"}})
    assert again.json["id"] == open_["id"]


async def test_what_flow_control_leaves_behind_is_sound(api: Api, twin: Api) -> None:
    rules = [{"unique": {"key": "u"}}, *({"debounce": {"key": str(p), "period": p}} for p in (0.1, 9))]
    await asyncio.gather(*(submit((api, twin)[n % 2], n, **rules[n % 3]) for n in range(12)))
    done = 0
    while done < 2:
        for leased in await api.lease():
            await api.settle(leased)
            done += 1
    await asyncio.gather(*(submit((api, twin)[n % 2], n, **rules[n % 3]) for n in range(12)))

    assert await check_invariants(api.serving.database, deep=True) == []
