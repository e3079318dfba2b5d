"""Where a page is shorter than its limit because it is full, clients and the command line go on to the last one."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from api.client import Api, serve
from duetime import AsyncClient, Client
from duetime.cli.main import main
from duetime.database.pool import Database

ATTEMPTS = 120
CALENDARS = 60


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with serve(database) as serving:
        yield await serving.tenant("acme")


async def test_clients_find_all_attempts_of_a_task(api: Api) -> None:
    task = await api.attempted(ATTEMPTS, 60_000)

    def look() -> tuple[int, list[int]]:
        with Client(api.serving.url, api.key) as client:
            shown = client.get(task)
            return shown.attempts_omitted + len(shown.attempts), [each.number for each in client.attempts(task)]

    assert await asyncio.to_thread(look) == (ATTEMPTS, list(range(1, ATTEMPTS + 1)))
    async with AsyncClient(api.serving.url, api.key) as client:
        numbers = [each.number async for each in client.attempts(task, page_size=200)]
        assert numbers == list(range(1, ATTEMPTS + 1))


async def test_clients_find_all_items_of_full_pages(api: Api) -> None:
    answer = await api.post("/v1/tasks/batch", [{"type": "a", "payload": "x" * 60_000, "delay": "1h"}] * 100)
    assert answer.json["accepted"] == 100
    for number in range(CALENDARS):
        assert (await api.call("PUT", f"/v1/calendars/c{number}", {"dates": []})).status == 200
        assert (await api.post("/v1/keys", {"role": "viewer"})).status == 201

    def look() -> tuple[int, int, int]:
        with Client(api.serving.url, api.key) as client:
            assert len(client.list_page(limit=200).items) < 100
            return len(list(client.list(page_size=200))), len(client.list_calendars()), len(client.list_keys())

    assert await asyncio.to_thread(look) == (100, CALENDARS, 1 + CALENDARS)
    async with AsyncClient(api.serving.url, api.key) as client:
        assert len([task async for task in client.list(page_size=200)]) == 100
        assert len(await client.list_calendars()) == CALENDARS
        assert len(await client.list_keys()) == 1 + CALENDARS


async def test_the_command_line_lists_all(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUETIME_URL", api.serving.url)
    monkeypatch.setenv("DUETIME_KEY", api.key)
    task = await api.attempted(ATTEMPTS, 60_000)
    for number in range(CALENDARS):
        await api.call("PUT", f"/v1/calendars/c{number:02}", {"dates": []})
        await api.post("/v1/keys", {"role": "viewer", "name": f"k{number}"})

    async def said(*words: str) -> str:
        assert await asyncio.to_thread(main, list(words)) == 0
        return capsys.readouterr().out

    assert f"left out here: duetime tasks attempts {task} --all" in await said("tasks", "get", task)
    lines = (await said("tasks", "attempts", task, "--all", "--json")).splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(1, ATTEMPTS + 1))
    table = (await said("tasks", "attempts", task, "--limit", "100")).splitlines()
    assert len(table) == 1 + 100
    assert f" {ATTEMPTS} " in await said("tasks", "list")
    assert len(json.loads(await said("calendars", "list", "--json"))["items"]) == CALENDARS
    assert len((await said("calendars", "list")).splitlines()) == 1 + CALENDARS
    assert len(json.loads(await said("keys", "list", "--json"))["items"]) == 1 + CALENDARS
