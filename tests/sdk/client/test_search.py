"""Lists and verbs by filter go on where the server's time for one request is up."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from api.client import Api, serve
from duetime import AsyncClient, Client
from duetime.cli.main import main
from duetime.database.pool import Database
from duetime.sdk.errors import SearchIncomplete

OTHERS = 1_000


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    """One task of a type among others, on a server that looks at little in one request."""
    async with serve(database) as serving:
        serving.app.patience.empty_seconds = 0.0
        api = await serving.tenant("acme")
        await api.submit(type="needle", delay=90)
        await api.post("/v1/tasks/batch", [{"type": "hay", "delay": 60}] * OTHERS)
        yield api


async def test_iterators_go_on_and_a_single_page_says_where(api: Api) -> None:
    def look() -> tuple[list[str], list[str]]:
        with Client(api.serving.url, api.key) as client:
            with pytest.raises(SearchIncomplete) as raised:
                client.list_page(type="needle")
            found = [task.type for task in client.list(type="needle")]
            assert raised.value.next
            return found, [letter.type for letter in client.list_dead(type="needle")]

    found, dead = await asyncio.to_thread(look)
    async with AsyncClient(api.serving.url, api.key) as client:
        assert [task.type async for task in client.list(type="needle")] == found == ["needle"]
        assert [letter.type async for letter in client.list_dead(type="needle")] == dead == []
        with pytest.raises(SearchIncomplete) as raised:
            await client.list_page(type="needle")

    assert raised.value.next


async def test_the_command_line_goes_on(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUETIME_URL", api.serving.url)
    monkeypatch.setenv("DUETIME_KEY", api.key)

    async def said(*words: str) -> str:
        assert await asyncio.to_thread(main, list(words)) == 0
        return capsys.readouterr().out

    assert "needle" in await said("tasks", "list", "--type", "needle")
    page = json.loads(await said("tasks", "list", "--type", "needle", "--json"))
    assert [item["type"] for item in page["items"]] == ["needle"]
    assert "Cancelled 1 of the 1 task" in await said("tasks", "cancel", "--type", "needle", "--yes")
