"""Lists of large things: neither an answer nor what is read for it passes its bound, and nothing is left out."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
import pytest_asyncio

from api.client import Api, Serving, serve
from duetime.database.pages import PAGE_BYTES
from duetime.database.pool import Database
from duetime.model.task import MAX_BATCH
from duetime.views.tasks import ATTEMPT_BYTES, MAX_ATTEMPTS_IN_LIST

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEGABYTE = 1024 * 1024
LARGE = 60_000
#: A page is cut behind the row with which it is full; a calendar may have a megabyte.
MOST_BYTES = PAGE_BYTES + 2 * MEGABYTE


class WeighingDatabase(Database):
    """Knows how much was read at once."""

    largest = 0

    async def fetch(self, sql: str, *arguments: object, timeout: float = 10.0) -> list[asyncpg.Record]:
        rows = await super().fetch(sql, *arguments, timeout=timeout)
        self.largest = max(self.largest, sum(_weight(value) for row in rows for value in row.values()))
        return rows


def _weight(value: object) -> int:
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, (list, tuple, asyncpg.Record)):
        return sum(_weight(each) for each in value)
    return 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(module_url: str) -> AsyncIterator[Serving]:
    database = await WeighingDatabase.open(module_url)
    async with serve(database) as serving:
        yield serving
    await database.close()


async def pages(api: Api, path: str, limit: int = 200, *, key: str | None = None) -> list[list[Any]]:
    """All pages of a list, each within its bound."""
    database = api.serving.database
    assert isinstance(database, WeighingDatabase)
    found: list[list[Any]] = []
    cursor = ""
    while True:
        database.largest = 0
        answer = await api.get(f"{path}{'&' if '?' in path else '?'}limit={limit}{cursor}", key=key)
        assert answer.status == 200, answer.body[:300]
        assert len(answer.body) <= MOST_BYTES, path
        assert database.largest <= MOST_BYTES, path
        found.append(answer.json["items"])
        assert found[-1] or answer.json["next"] is None
        if answer.json["next"] is None:
            return found
        cursor = f"&cursor={quote(answer.json['next'], safe='')}"


async def dead_letters(api: Api) -> list[Any]:
    tasks = [await api.submit() for _ in range(150)]
    leased = []
    while len(leased) < len(tasks):
        leased += await api.lease()
    error = {"message": "no", "kind": "permanent", "detail": "x" * LARGE}
    for some in (leased[at : at + 50] for at in range(0, len(leased), 50)):
        reports = [{"id": each["id"], "attempt": each["attempt"], "outcome": "failed", "error": error} for each in some]
        answer = await api.post("/v1/workers/settle", {"worker": "w", "settlements": reports})
        assert answer.json["settled"] == len(some)
    return [task["id"] for task in tasks]


async def tasks(api: Api) -> list[Any]:
    labels = {f"name-{number}": "x" * 200 for number in range(10)}
    task = {"type": "large", "payload": "x" * LARGE, "labels": labels, "delay": "1h"}
    answer = await api.post("/v1/tasks/batch", [task] * 200)
    return [each["id"] for each in answer.json["results"]]


async def schedules(api: Api) -> list[Any]:
    names = [f"schedule-{number:03}" for number in range(100)]
    body = {"spec": {"every": 3600}, "task": {"type": "a", "payload": "x" * LARGE}}
    for name in names:
        assert (await api.call("PUT", f"/v1/schedules/{name}", body)).status == 201
    return names


async def calendars(api: Api) -> list[Any]:
    names = [f"calendar-{number}" for number in range(8)]
    for name in names:
        entries = json.dumps({"exclude": [{"cron": f"{n % 60} {n % 24} 1 1 *" + " " * 500} for n in range(1_500)]})
        await api.serving.database.execute(
            "INSERT INTO calendar (tenant, name, entries) VALUES ($1, $2, $3)", api.tenant, name, entries.encode()
        )
    return names


async def types(api: Api) -> list[Any]:
    names = [f"type-{number:03}" for number in range(100)]
    for name in names:
        schema = {"type": "object", "description": "x" * LARGE}
        assert (await api.call("PUT", f"/v1/types/{name}", {"schema": schema})).status == 201
    return names


async def outbox(api: Api) -> list[Any]:
    await api.serving.database.execute(
        """
        INSERT INTO outbox_refused (tenant, id, body, written_at, code, detail, errors)
        SELECT $1, number, convert_to('{"type": "' || repeat('x', 200000) || '"}', 'UTF8'), now(), 'invalid', 'no', '[]'
          FROM generate_series(1, 50) AS number
        """,
        api.tenant,
    )
    return list(range(1, 51))


async def audit(api: Api) -> list[Any]:
    await api.serving.database.execute(
        """
        INSERT INTO audit (tenant, action, subject, before, after)
        SELECT $1, 'type.put', 'large', to_jsonb(repeat('x', 60000)), to_jsonb(repeat('y', 60000))
          FROM generate_series(1, 100)
        """,
        api.tenant,
    )
    # An admin's key shows what was done to anybody.
    rows = await api.serving.database.fetch("SELECT id FROM audit ORDER BY id DESC")
    return [row["id"] for row in rows]


async def keys(api: Api) -> list[Any]:
    for _ in range(205):
        assert (await api.post("/v1/keys", {"role": "viewer"})).status == 201
    rows = await api.serving.database.fetch("SELECT id FROM api_key WHERE tenant = $1 ORDER BY id", api.tenant)
    return [row["id"] for row in rows]


Fill = Callable[[Api], Awaitable[Sequence[Any]]]


@pytest.mark.parametrize(
    ("path", "fill", "name"),
    [
        ("/v1/tasks", tasks, "id"),
        ("/v1/dead", dead_letters, "id"),
        ("/v1/schedules", schedules, "name"),
        ("/v1/calendars", calendars, "name"),
        ("/v1/types", types, "name"),
        ("/v1/outbox", outbox, "id"),
        ("/v1/audit", audit, "id"),
        ("/v1/keys", keys, "id"),
    ],
)
async def test_a_page_ends_where_it_is_full_and_nothing_is_left_out(api: Api, path: str, fill: Fill, name: str) -> None:
    there = await fill(api)

    found = await pages(api, path)

    assert len(found) > 1
    items = [item[name] for page in found for item in page]
    assert sorted(items) == sorted(there)
    assert len(found) <= 5


async def test_a_page_of_small_items_is_as_long_as_its_limit(api: Api) -> None:
    for number in range(5):
        assert (await api.call("PUT", f"/v1/types/small-{number}", {"schema": {}})).status == 201
        assert (await api.call("PUT", f"/v1/calendars/small-{number}", {"dates": []})).status == 200

    for path in ("/v1/types", "/v1/calendars"):
        assert [len(page) for page in await pages(api, path, 2)] == [2, 2, 1]
        assert [len(page) for page in await pages(api, path, 5)] == [5]


async def test_pages_of_a_confined_key_end_where_its_own_items_fill_them(api: Api) -> None:
    database, tenant = api.serving.database, api.tenant
    made = await api.post("/v1/keys", {"role": "viewer", "types": ["mine.*"]})
    types = ["mine.task" if number % 4 == 3 else "other.task" for number in range(120)]
    template = {"queue": "q", "payload": "x" * LARGE}
    for number, type in enumerate(types):
        task = {**template, "type": type}
        body = {"spec": {"every": 3600}, "task": task, "paused": True}
        assert (await api.call("PUT", f"/v1/schedules/s{number:03}", body)).status == 201
        schema = {"type": "object", "description": "x" * LARGE}
        assert (await api.call("PUT", f"/v1/types/{type}{number:03}", {"schema": schema})).status == 201
        # Three times as large, so that what is its own fills a page as well.
        stored = json.dumps({**task, "payload": "x" * 3 * LARGE}).encode()
        await database.execute(
            "INSERT INTO outbox_refused (tenant, id, body, written_at, code, detail, errors)"
            " VALUES ($1, $2, $3, now(), 'invalid', 'no', '[]')",
            tenant,
            number + 1,
            stored,
        )
    mine = [number for number, type in enumerate(types) if type == "mine.task"]

    for path, name, there, count in (
        ("/v1/schedules", "name", [f"s{number:03}" for number in mine], 1),
        ("/v1/types", "name", [f"mine.task{number:03}" for number in mine], 1),
        ("/v1/outbox", "id", [number + 1 for number in mine], 2),
    ):
        found = await pages(api, path, key=made.json["key"])
        assert [item[name] for page in found for item in page] == there, path
        assert len(found) == count, path


async def test_a_confined_key_does_not_reach_what_is_larger_than_any_task_may_be(api: Api) -> None:
    made = await api.post("/v1/keys", {"role": "viewer", "types": ["mine.*"]})
    for number, size in ((1, 20_000_000), (2, 10)):
        body = json.dumps({"type": "mine.task", "payload": "x" * size}).encode()
        await api.serving.database.execute(
            "INSERT INTO outbox_refused (tenant, id, body, written_at, code, detail, errors)"
            " VALUES ($1, $2, $3, now(), 'invalid', 'no', '[]')",
            api.tenant,
            number,
            body,
        )

    [[refused]] = await pages(api, "/v1/outbox", key=made.json["key"])
    assert refused["id"] == 2
    assert (await api.get("/v1/outbox/1", key=made.json["key"])).status == 404


async def test_pages_of_unused_keys_are_full_and_complete(api: Api) -> None:
    for _ in range(12):
        assert (await api.post("/v1/keys", {"role": "viewer"})).status == 201
    rows = await api.serving.database.fetch(
        "UPDATE api_key SET watched_since = now() - interval '100 days'"
        " WHERE tenant = $1 AND role = 'viewer' AND id % 2 = 0 RETURNING id",
        api.tenant,
    )

    found = await pages(api, "/v1/keys?unused_for=90d", 4)

    assert [item["id"] for page in found for item in page] == sorted(row["id"] for row in rows)
    assert [len(page) for page in found] == [4, 2]


async def test_a_task_shows_its_latest_attempts_and_says_how_many_it_leaves_out(api: Api) -> None:
    task = await api.attempted(400, LARGE)

    database = api.serving.database
    assert isinstance(database, WeighingDatabase)
    database.largest = 0
    answer = await api.get(f"/v1/tasks/{task}")
    shown = [each["number"] for each in answer.json["attempts"]]

    assert len(answer.body) <= ATTEMPT_BYTES + MEGABYTE
    assert database.largest <= ATTEMPT_BYTES + MEGABYTE
    assert shown == list(range(shown[0], 401))
    assert answer.json["attempts_omitted"] == shown[0] - 1 > 0
    steered = await api.post(f"/v1/tasks/{task}/pause")
    assert (steered.status, len(steered.json["attempts"])) == (200, len(shown))
    found = await pages(api, f"/v1/tasks/{task}/attempts")
    assert [each["number"] for page in found for each in page] == list(range(1, 401))
    assert all(each["error"]["message"] for page in found for each in page)


async def test_a_task_with_small_attempts_leaves_none_out(api: Api) -> None:
    task = await api.attempted(30, 10)

    shown = (await api.get(f"/v1/tasks/{task}")).json
    [listed] = (await api.get("/v1/tasks")).json["items"]

    assert len(shown["attempts"]) == 30
    assert "attempts_omitted" not in shown
    assert len(listed["attempts"]) == MAX_ATTEMPTS_IN_LIST
    assert listed["attempts_omitted"] == 10


async def test_the_running_attempt_is_the_last_of_the_list(api: Api) -> None:
    await api.submit()
    [leased] = await api.lease()
    path = f"/v1/tasks/{leased['id']}"

    running = (await api.get(f"{path}/attempts")).json
    assert running["items"] == (await api.get(path)).json["attempts"]
    assert [(each["number"], each["outcome"], each["worker"]) for each in running["items"]] == [(1, None, "w")]
    await api.settle(leased, "failed", error={"message": "no"}, retry_after=0)
    [again] = await api.lease()
    assert again["attempt"] == 2
    both = (await api.get(f"{path}/attempts?limit=1")).json
    assert [each["outcome"] for each in both["items"]] == ["failed"]
    rest = (await api.get(f"{path}/attempts?limit=1&cursor={both['next']}")).json
    assert ([each["number"] for each in rest["items"]], rest["next"]) == ([2], None)
    await api.settle(again)
    assert (await api.get(f"{path}/attempts")).json["items"] == (await api.get(path)).json["attempts"]


async def test_attempts_of_no_task_and_wrong_cursors_are_refused(api: Api) -> None:
    task = await api.submit(delay="1h")
    stranger = await api.serving.tenant(f"stranger-to-{api.tenant_name}")

    assert (await api.get(f"/v1/tasks/{task['id']}/attempts")).json == {"items": [], "next": None}
    assert (await stranger.get(f"/v1/tasks/{task['id']}/attempts")).status == 404
    assert (await api.get("/v1/tasks/01890000-0000-7000-8000-000000000000/attempts")).status == 404
    for wrong in ("x", "-1", "9" * 30):
        assert (await api.get(f"/v1/tasks/{task['id']}/attempts?cursor={wrong}")).paths == ["cursor"]


async def test_what_is_larger_than_any_task_may_be_is_not_shown(api: Api) -> None:
    await api.serving.database.execute(
        """
        INSERT INTO outbox_refused (tenant, id, body, written_at, code, detail, errors)
        VALUES ($1, 1, convert_to(repeat('x', 20000000), 'UTF8'), now(), 'invalid', 'no', '[]')
        """,
        api.tenant,
    )

    [[refused]] = await pages(api, "/v1/outbox")
    assert refused["body"] is None
    assert (await api.get("/v1/outbox/1")).json["refused"]["body"] is None


async def test_many_large_lists_at_once_are_read_a_few_at_a_time(api: Api) -> None:
    task = await api.attempted(400, LARGE)
    other = await api.serving.tenant(f"beside-{api.tenant_name}")

    answers = asyncio.gather(*[api.get(f"/v1/tasks/{task}") for _ in range(100)])
    assert (await other.get("/v1/tasks")).status == 200
    assert {answer.status for answer in await answers} == {200}


@pytest.mark.parametrize("atomic", ["false", "true"])
async def test_a_batch_with_very_many_errors_names_some_of_each_item(api: Api, atomic: str) -> None:
    labels = {f"!{number}": "x" for number in range(32)}

    answer = await api.post(f"/v1/tasks/batch?atomic={atomic}", [{"type": "t", "labels": labels}] * MAX_BATCH)

    problems = [each["error"] for each in answer.json["results"]]
    assert len(answer.body) < 2 * PAGE_BYTES
    assert len(problems) == MAX_BATCH
    assert len(problems[0]["errors"]) > 10
    assert {len(each["errors"]) for each in problems[-100:]} == {1}
    assert all("labels.!4" in each["detail"] for each in problems)


async def test_a_batch_of_schedules_with_very_many_errors_names_some_of_each(api: Api) -> None:
    spec = {"cron": ["x"] * 60}
    items = [{"name": f"s{number}", "spec": spec, "task": {"type": "a"}} for number in range(1_000)]

    answer = await api.post("/v1/schedules/batch", {"items": items})

    problems = [each["error"] for each in answer.json["results"]]
    assert len(answer.body) < 2 * PAGE_BYTES
    assert (len(problems[0]["errors"]) > 10, len(problems[-1]["errors"])) == (True, 1)
