"""What a tenant may have: schedules, types, keys, calendars; exact, also when several add to it at once."""

import asyncio
from typing import Any

import pytest

from api.client import Api, Reply
from duetime.admin.keys import create_key
from duetime.errors import InvalidInput

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEDULE = {"spec": {"every": "1d"}, "task": {"type": "a"}}


async def allow(api: Api, **quotas: Any) -> None:
    answer = await api.call("PUT", f"/v1/tenants/{api.tenant_name}", {"quotas": quotas})
    assert answer.status == 200, answer.body


async def put_schedule(api: Api, name: str) -> Reply:
    return await api.call("PUT", f"/v1/schedules/{name}", SCHEDULE)


async def put_batch(api: Api, *names: str, query: str = "") -> list[str | None]:
    """What became of each: the code of its error, or what was done."""
    items = [{"name": name, **SCHEDULE} for name in names]
    results = (await api.post(f"/v1/schedules/batch{query}", {"items": items})).json["results"]
    return [each.get("result") or each["error"]["code"] for each in results]


async def counted(api: Api) -> tuple[int, int]:
    """Schedules as they are counted, and as they are."""
    [row] = await api.serving.database.fetch(
        "SELECT schedules, (SELECT count(*) FROM schedule WHERE tenant = tenant.id) AS there FROM tenant WHERE id = $1",
        api.tenant,
    )
    return row["schedules"], row["there"]


async def test_a_tenant_has_no_more_schedules_than_it_may(api: Api) -> None:
    await allow(api, max_schedules=2)

    made = [await put_schedule(api, name) for name in ("a", "b", "c")]
    changed = await api.call("PUT", "/v1/schedules/a", {**SCHEDULE, "spec": {"every": "2d"}})
    await api.call("DELETE", "/v1/schedules/a")
    after = await put_schedule(api, "c")

    assert [each.status for each in made] == [201, 201, 422]
    assert made[2].paths == ["name"]
    assert made[2].json["detail"] == (
        "name: a tenant has at most 2 schedules (max_schedules); delete some, or raise the quota"
    )
    assert (changed.status, after.status) == (200, 201)
    assert await counted(api) == (2, 2)


async def test_of_a_batch_the_first_are_made_and_a_trial_says_the_same(api: Api) -> None:
    await allow(api, max_schedules=3)
    await put_schedule(api, "b")
    names = ("a", "b", "c", "d", "e")

    trial = await put_batch(api, *names, query="?dry_run=true")
    done = await put_batch(api, *names)

    assert trial == done == ["created", "unchanged", "created", "invalid", "invalid"]
    assert await counted(api) == (3, 3)


async def test_those_who_make_schedules_at_once_do_not_exceed_the_quota_together(api: Api) -> None:
    await allow(api, max_schedules=5)

    answers = await asyncio.gather(*(put_schedule(api, f"s{number}") for number in range(12)))
    await asyncio.gather(
        *(api.call("DELETE", f"/v1/schedules/s{number}") for number in range(12)),
        *(put_schedule(api, f"t{number}") for number in range(12)),
    )

    assert sorted(each.status for each in answers) == [201] * 5 + [422] * 7
    held, there = await counted(api)
    assert held == there <= 5


async def test_a_count_that_is_wrong_is_mended_before_anything_is_refused(api: Api) -> None:
    """A node of before the count was there makes and deletes schedules without it."""
    await allow(api, max_schedules=2)
    await api.serving.database.execute("UPDATE tenant SET schedules = 2 WHERE id = $1", api.tenant)

    made = await put_schedule(api, "a")

    assert made.status == 201
    assert await counted(api) == (1, 1)


async def test_a_tenant_registers_no_more_types_than_it_may(api: Api) -> None:
    await allow(api, max_types=2)

    answers = await asyncio.gather(*(api.call("PUT", f"/v1/types/t{number}", {}) for number in range(6)))
    [known] = [number for number, each in enumerate(answers) if each.status == 201][:1]
    again = await api.call("PUT", f"/v1/types/t{known}", {"schema": {"type": "object"}})

    refused = [each for each in answers if each.status == 422]
    assert (len(refused), refused[0].paths) == (4, ["name"])
    assert "at most 2 registered types (max_types)" in refused[0].json["detail"]
    assert again.status == 200


async def test_a_tenant_has_no_more_valid_keys_than_it_may(api: Api) -> None:
    await allow(api, max_keys=3)
    database = api.serving.database

    made = await asyncio.gather(*(create_key(database, api.tenant, "viewer") for _ in range(6)), return_exceptions=True)
    refused = await api.post("/v1/keys", {"role": "viewer"})
    keys = [each[0].id for each in made if not isinstance(each, BaseException)]
    first = await api.post(f"/v1/keys/{keys[0]}/rotate", {"overlap": "1h"})
    second = await api.post(f"/v1/keys/{keys[0]}/rotate", {"overlap": "1h"})
    for key in (keys[0], keys[1]):
        await api.call("DELETE", f"/v1/keys/{key}")
    after = await api.post("/v1/keys", {"role": "viewer"})

    # The one that this test calls with is the third.
    assert len(keys) == 2
    assert all(isinstance(each, InvalidInput) for each in made if isinstance(each, BaseException))
    assert refused.status == 422
    assert "at most 3 valid keys (max_keys)" in refused.json["detail"]
    assert (first.status, second.status, after.status) == (201, 422, 201)


async def test_a_tenants_calendars_are_bounded_in_number_and_in_bytes(api: Api) -> None:
    await allow(api, max_calendars=2, max_calendar_bytes=400)
    few, many = ["2027-12-24"], [f"2027-12-{day}" for day in range(10, 30)]

    async def put(name: str, dates: list[str]) -> Reply:
        return await api.call("PUT", f"/v1/calendars/{name}", {"dates": dates})

    large = await put("b", many * 2)
    made = await asyncio.gather(*(put(name, few) for name in ("a", "b", "c", "d")))
    names = [name for name, each in zip("abcd", made, strict=True) if each.status == 200]
    grown = await put(names[0], many)
    too_large = await put(names[1], many)
    await allow(api, max_calendar_bytes=1)
    shrunk = await put(names[0], few)

    assert (large.status, large.paths) == (422, ["dates"])
    assert sorted(each.status for each in made) == [200, 200, 422, 422]
    [refused, _] = [each for each in made if each.status == 422]
    assert (refused.paths, "max_calendars" in refused.json["detail"]) == (["name"], True)
    assert (grown.status, too_large.status, shrunk.status) == (200, 422, 200)
    assert "(max_calendar_bytes)" in too_large.json["detail"]
