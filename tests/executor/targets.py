"""Local HTTP servers that behave as told, well or badly."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from duetime.executor.http import HttpClient
from duetime.executor.messages import NoResponse, Request, Response

Handler = Callable[["Visitor"], Awaitable[None]]


@dataclass(frozen=True)
class Received:
    """A request as it came over the wire."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Visitor:
    """One connection, seen from the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    target: "LocalTarget"

    async def read_request(self) -> Received | None:
        """The next request; None when the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        line, *rest = head.decode().removesuffix("\r\n\r\n").split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in rest)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        received = Received(line, headers, body)
        self.target.received.append(received)
        return received

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def answer(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode() + body)

    async def wait_for_close(self) -> None:
        while await self.reader.read(65536):
            pass


@dataclass
class LocalTarget:
    port: int = 0
    connections: int = 0
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def serving(handle: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[LocalTarget]:
    """Every connection is one call of `handle`; what it leaves open is closed after it."""
    target = LocalTarget()
    visits: set[asyncio.Task[None]] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        visits.add(task)
        target.connections += 1
        try:
            await handle(Visitor(reader, writer, target))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            visits.discard(task)
            writer.transport.abort() if tls else writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0, ssl=tls)
    target.port = server.sockets[0].getsockname()[1]
    try:
        yield target
    finally:
        server.close()
        for task in list(visits):
            task.cancel()
        if visits:
            await asyncio.wait(visits)
        await server.wait_closed()


async def answer_everything(visitor: Visitor) -> None:
    """200 to every request, on one connection."""
    while await visitor.read_request() is not None:
        await visitor.answer(200, b'{"ok":true}', Content_Type="application/json")


async def send(client: HttpClient, request: Request, timeout_seconds: float) -> Response | NoResponse:
    """One call, to be awaited; whoever stops waiting breaks it off."""
    answer: asyncio.Future[Response | NoResponse] = asyncio.get_running_loop().create_future()
    call = client.begin(request, timeout_seconds, answer.set_result)
    try:
        return await answer
    finally:
        call.cancel()
