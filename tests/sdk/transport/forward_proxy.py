"""A little HTTP proxy: CONNECT and the absolute form, with a user name and a password if it is told so."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class ForwardProxy:
    def __init__(self, credentials: str = "") -> None:
        self._wanted = f"Basic {base64.b64encode(credentials.encode()).decode()}" if credentials else None
        #: Names that only the proxy knows, each with host and port; others are reached as they are.
        self.names: dict[str, tuple[str, int]] = {}
        #: What it answers in place of leading anywhere.
        self.refusal = 0
        #: The first line of every request.
        self.lines: list[str] = []
        self.port = 0
        self._visits: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        self._visits.add(visit)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._visits.discard(visit)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            line, headers = _read(await reader.readuntil(b"\r\n\r\n"))
            self.lines.append(line)
            status = self.refusal
            if self._wanted is not None and headers.pop("proxy-authorization", None) != self._wanted:
                status = 407
            if status:
                writer.write(
                    f"HTTP/1.1 {status} No\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nno".encode()
                )
                return await writer.drain()
            method, target, _ = line.split(" ")
            if method == "CONNECT":
                return await self._tunnel(target, reader, writer)
            parts = urlsplit(target)
            assert headers["host"] == parts.netloc
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            writer.write(await self._ask(parts.netloc, f"{method} {target.partition(parts.netloc)[2]}", headers, body))
            await writer.drain()

    async def _ask(self, authority: str, asked: str, headers: dict[str, str], body: bytes) -> bytes:
        from_server, to_server = await self._reach(authority, 80)
        try:
            fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            to_server.write(f"{asked} HTTP/1.1\r\n{fields}\r\n".encode() + body)
            head = await from_server.readuntil(b"\r\n\r\n")
            return head + await from_server.readexactly(int(_read(head)[1].get("content-length", "0")))
        finally:
            to_server.transport.abort()

    async def _tunnel(self, authority: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await self._reach(authority, 443)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        halves = [
            asyncio.create_task(_pass_on(reader, to_server)),
            asyncio.create_task(_pass_on(from_server, writer)),
        ]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_server.transport.abort()
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)

    async def _reach(self, authority: str, usual_port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name, _, port = authority.partition(":")
        host = self.names.get(name, (name, int(port or usual_port)))
        return await asyncio.open_connection(*host)

    def end(self) -> None:
        for visit in self._visits:
            visit.cancel()


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.read(1 << 16):
            sink.write(piece)
            await sink.drain()


def _read(head: bytes) -> tuple[str, dict[str, str]]:
    line, *fields = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    return line, {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}


@contextlib.asynccontextmanager
async def forward_proxy(credentials: str = "") -> AsyncIterator[ForwardProxy]:
    proxy = ForwardProxy(credentials)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.end()
        await server.wait_closed()
