"""A database that is away: an honest 503, and the same server goes on when it is back."""

from urllib.parse import urlsplit

import pytest
from psycopg import sql

from api.client import Api, until
from services import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_database_that_is_away_is_a_503_that_asks_to_try_again(
    api: Api, module_url: str, postgres_server: Server
) -> None:
    await api.submit()
    database = urlsplit(module_url).path.lstrip("/")
    name = sql.Identifier(database)
    admin = postgres_server.admin
    admin.execute(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(name))
    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])

    answers = [await api.post("/v1/tasks", {"type": "a"}), await api.get("/v1/tasks"), await api.get("/healthz")]

    admin.execute(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true").format(name))
    assert [answer.status for answer in answers] == [503, 503, 200]
    assert answers[0].headers["Retry-After"] == "1"
    assert {answer.json["code"] for answer in answers[:2]} <= {"unavailable", "unknown"}
    assert b"Traceback" not in answers[0].body

    async def is_back() -> bool:
        return (await api.post("/v1/tasks", {"type": "a"})).status == 202

    await until(is_back)
