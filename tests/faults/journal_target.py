"""An HTTP target for the fault tests: it checks each signature, notes each call, makes its effect once.

Run as a script with the addresses in the environment; it listens on PORT.
"""

import asyncio
import json
import os
from pathlib import Path

import asyncpg
from aiohttp import web
from journal import Journal
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from duetime import once

journal = Journal(Path(os.environ["JOURNAL"]))
effects_url = os.environ.get("EFFECTS_URL", "")
hook = Webhook(os.environ["SECRET"])
pool: asyncpg.Pool | None = None


async def call(request: web.Request) -> web.Response:
    body = await request.read()
    task, number = request.headers["webhook-id"], int(request.headers["Duetime-Attempt"])
    try:
        payload = hook.verify(body, dict(request.headers))
    except WebhookVerificationError as error:
        return web.Response(status=400, text=f"the signature does not fit: {error}")
    assert request.headers["Idempotency-Key"] == request.headers["Duetime-Task-Id"] == task
    journal.note(task, number, "target")
    if payload.get("fails") == "early" and number == 1:
        return web.Response(status=503, headers={"Retry-After": "0"})
    if pool is not None:
        async with pool.acquire() as connection, connection.transaction():
            if await once(connection, task):
                await connection.execute("INSERT INTO effect (task, worker) VALUES ($1, 'target')", task)
    await asyncio.sleep(payload.get("seconds", 0))
    while "until" in payload and not Path(payload["until"]).exists():
        await asyncio.sleep(0.02)
    if payload.get("fails") == "late" and number == 1:
        # Cut off without an answer: a network error for the caller.
        assert request.transport is not None
        request.transport.abort()
    return web.json_response({"attempt": number})


async def main() -> None:
    global pool
    if effects_url:
        pool = await asyncpg.create_pool(effects_url, min_size=1, max_size=4)
    app = web.Application()
    app.router.add_post("/call", call)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(os.environ["PORT"])).start()
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
