"""A line to PostgreSQL that holds one chosen statement back and delivers it when nobody waits for it any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

_QUERY, _PARSE, _BIND, _SYNC, _READY = b"Q", b"P", b"B", b"S", b"Z"
_END = _SYNC + (4).to_bytes(4, "big")


@dataclass
class Copy:
    """A statement that its node has given up, on its way to the server."""

    statement: str
    data: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def deliver(self) -> None:
        """Let the server carry it out, hear what it says, and close the line as the node did."""
        self.writer.write(self.data)
        try:
            while (await _read_message(self.reader))[0] != _READY:
                pass
        except (OSError, EOFError):
            # The server had closed the line before.
            pass
        self.writer.close()
        # The server closes its end when it has rolled back what was open.
        while True:
            try:
                if not await self.reader.read(65536):
                    return
            except OSError:
                return


class HoldingProxy:
    """Passes everything on; what holds `wanted` is kept back, and the line to the node is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._wanted: list[str] = []
        self.copies: list[Copy] = []
        #: The texts of all changes that went through, in their order.
        self.seen: list[str] = []

    def hold(self, *wanted: str) -> None:
        """Hold back the next statement that has the first text in it, then the next with the second, and so on."""
        self._wanted = list(wanted)

    async def deliver(self) -> None:
        """Let the server carry out all that was held back."""
        copies, self.copies = self.copies, []
        for copy in copies:
            await copy.deliver()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        for copy in self.copies:
            copy.writer.transport.abort()

    def takes(self, statement: str) -> bool:
        if not self._wanted or self._wanted[0] not in statement:
            return False
        del self._wanted[0]
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        back_reader, back_writer = await asyncio.open_connection(*self._target)
        down = asyncio.create_task(_pass_on(back_reader, writer))
        copy = None
        try:
            copy = await self._up(reader, back_writer)
        except (OSError, EOFError, asyncio.CancelledError):
            # Closed, here or there.
            pass
        finally:
            down.cancel()
            await asyncio.gather(down, return_exceptions=True)
            if copy is not None:
                statement, data = copy
                # The driver lets a new statement be read without a Sync: with one the server knows that it is idle.
                back_writer.write(_END)
                while (await _read_message(back_reader))[0] != _READY:
                    pass
                self.copies.append(Copy(statement, data, back_reader, back_writer))
            else:
                back_writer.transport.abort()
            self._lines.discard(line)
            writer.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, bytes]:
        """Pass on until a statement is to be held back: its text, and its bytes up to the end of its messages."""
        # The first message has no letter.
        length = await reader.readexactly(4)
        writer.write(length + await reader.readexactly(int.from_bytes(length, "big") - 4))
        statements: dict[bytes, str] = {}
        while True:
            letter, body, whole = await _read_message(reader)
            running = None
            if letter == _PARSE:
                name, query = body.split(b"\0")[:2]
                statements[name] = query.decode()
            elif letter == _BIND:
                running = statements.get(body.split(b"\0")[1], "")
            elif letter == _QUERY:
                running = body.rstrip(b"\0").decode()
            if running is not None:
                if self.takes(running):
                    while letter not in (_SYNC, _QUERY):
                        letter, _, more = await _read_message(reader)
                        whole += more
                    return running, whole
                self.seen.append(running)
            writer.write(whole)
            await writer.drain()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes, bytes]:
    head = await reader.readexactly(5)
    body = await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
    return head[:1], body, head + body


@asynccontextmanager
async def holding(url: str) -> AsyncIterator[tuple[HoldingProxy, str]]:
    """A holding proxy before the database at `url`, and the address through it."""
    parts = urlsplit(url)
    proxy = HoldingProxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    port = await proxy.start()
    login = parts.netloc.rpartition("@")[0]
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}"))
    finally:
        await proxy.stop()
