"""A gateway between a worker and a node, which can change and hold up what passes: whole requests and answers."""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import ClientSession, web

Change = Callable[[Any], Awaitable[None]]


async def _pass(body: Any) -> None: ...


class Gateway:
    """By the last part of the path (`lease`, `beat`, `settle`): what to do with bodies before they are passed on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.requests: dict[str, Change] = {}
        self.answers: dict[str, Change] = {}
        #: Requests to these are answered as a proxy does whose server is away.
        self.away: set[str] = set()
        #: How many requests to each were passed on.
        self.passed: Counter[str] = Counter()
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        body = await request.json()
        await self.requests.get(name, _pass)(body)
        if name in self.away:
            return web.Response(status=503, text="away")
        self.passed[name] += 1
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
        async with (
            ClientSession() as session,
            session.post(self._url + request.path_qs, data=json.dumps(body), headers=headers) as answer,
        ):
            said = await answer.json()
            if answer.status == 200:
                await self.answers.get(name, _pass)(said)
            return web.json_response(said, status=answer.status, content_type=answer.content_type)


@contextlib.asynccontextmanager
async def gateway_to(url: str) -> AsyncIterator[Gateway]:
    gateway = Gateway(url)
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", gateway.answer)
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    gateway.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield gateway
    finally:
        await runner.cleanup()
