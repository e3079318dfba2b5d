"""A database that is away: an honest 503, and the same server goes on when it is back."""

from api.client import serve, until
from duetime.database.pool import Database
from proxy import proxied


async def test_a_database_that_is_away_is_a_503_that_asks_to_try_again(database_url: str) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through)
        async with serve(database) as serving:
            api = await serving.tenant("team")
            await api.submit()

            proxy.is_away = True
            proxy.cut()
            answers = [
                await api.post("/v1/tasks", {"type": "a"}),
                await api.get("/v1/tasks"),
                await api.get("/healthz"),
            ]
            proxy.is_away = False

            assert [answer.status for answer in answers] == [503, 503, 200]
            assert answers[0].headers["Retry-After"] == "1"
            assert {answer.json["code"] for answer in answers[:2]} <= {"unavailable", "unknown"}
            assert b"Traceback" not in answers[0].body

            async def is_back() -> bool:
                return (await api.post("/v1/tasks", {"type": "a"})).status == 202

            await until(is_back)
        await database.close()
