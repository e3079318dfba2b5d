"""Calls of the tests of schedules, each checked for its status."""

from datetime import UTC, datetime, timedelta
from typing import Any

from api.client import Api, Reply

TASK = {"type": "test.task"}
DAILY = {"spec": {"cron": "0 2 * * *"}, "task": TASK}
HOURLY = {"cron": "0 * * * *"}
DAY = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}


async def put_schedule(api: Api, name: str, **fields: Any) -> Reply:
    return await api.call("PUT", f"/v1/schedules/{name}", {**DAILY, **fields})


async def make_schedule(api: Api, name: str, **fields: Any) -> Any:
    answer = await put_schedule(api, name, **fields)
    assert answer.status == 201, answer.body
    return answer.json


async def read(api: Api, path: str) -> Any:
    answer = await api.get(f"/v1/schedules{path}")
    assert answer.status == 200, answer.body
    return answer.json


async def act(api: Api, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await api.post(f"/v1/schedules{path}", body)
    assert answer.status == status, answer.body
    return answer.json


async def read_runs(api: Api, name: str) -> list[Any]:
    items: list[Any] = (await read(api, f"/{name}/runs?limit=200"))["items"]
    return items


async def put_calendar(api: Api, name: str, *dates: Any) -> Any:
    answer = await api.call("PUT", f"/v1/calendars/{name}", {"dates": dates})
    assert answer.status == 200, answer.body
    return answer.json


def in_seconds(seconds: int) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


def text_of(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"


def fire_times_of(lines: list[Any]) -> list[str]:
    return [line["at"] for line in lines if not line["excluded"]]
