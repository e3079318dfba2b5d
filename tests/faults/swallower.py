"""A line to PostgreSQL that loses the answer of one chosen statement: it was committed, and nobody hears."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

_QUERY, _PARSE, _BIND, _COMPLETED = b"Q", b"P", b"B", b"C"


class Swallower:
    """Passes everything on, until the answer to a statement that holds `wanted`: then it cuts that line."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        #: A part of the statement's text, as long as its answers are to be lost.
        self.wanted: str | None = None
        self._left = 0
        self.swallowed = 0
        #: Cut and refuse all lines once an answer was lost: the node cannot find out.
        self.goes_away = False
        self.is_away = False

    def swallow(self, wanted: str, times: int = 1, *, goes_away: bool = False) -> None:
        self.wanted, self._left, self.goes_away = wanted, times, goes_away

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._lines, return_exceptions=True)

    def cut(self) -> None:
        for line in list(self._lines):
            line.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        back_writer = None
        try:
            if not self.is_away:
                back_reader, back_writer = await asyncio.open_connection(*self._target)
                await _Line(self).run(reader, writer, back_reader, back_writer)
        except (OSError, EOFError, asyncio.CancelledError):
            # Cut, here or there.
            pass
        finally:
            self._lines.discard(line)
            writer.transport.abort()
            if back_writer is not None:
                back_writer.transport.abort()

    def takes(self, statement: str) -> bool:
        """Whether the answer of this statement is to be lost now."""
        if self.wanted is None or self.wanted not in statement or self._left == 0:
            return False
        self._left -= 1
        self.swallowed += 1
        if self.goes_away:
            self.is_away = True
            asyncio.get_running_loop().call_soon(self.cut)
        return True


class _Line:
    """One connection: knows which prepared statement runs."""

    def __init__(self, swallower: Swallower) -> None:
        self._swallower = swallower
        self._statements: dict[bytes, str] = {}
        self._running = ""

    async def run(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back_reader: asyncio.StreamReader,
        back_writer: asyncio.StreamWriter,
    ) -> None:
        ways = {
            asyncio.create_task(self._up(reader, back_writer)),
            asyncio.create_task(self._down(back_reader, writer)),
        }
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The first message has no letter.
        length = await reader.readexactly(4)
        writer.write(length + await reader.readexactly(int.from_bytes(length, "big") - 4))
        while True:
            letter, body, whole = await _read_message(reader)
            if letter == _PARSE:
                name, query = body.split(b"\0")[:2]
                self._statements[name] = query.decode()
            elif letter == _BIND:
                name = body.split(b"\0")[1]
                # A node runs its statements once on each new connection, with nothing to do.
                self._running = "" if _is_without_work(body) else self._statements.get(name, "")
            elif letter == _QUERY:
                self._running = body.decode()
            writer.write(whole)
            await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            letter, _, whole = await _read_message(reader)
            if letter == _COMPLETED and self._swallower.takes(self._running):
                # What follows says that it is committed: autocommit ends with the statement.
                await _read_message(reader)
                raise ConnectionResetError
            writer.write(whole)
            await writer.drain()


def _is_without_work(bind: bytes) -> bool:
    """Whether every parameter of a Bind message is NULL."""
    place = bind.index(b"\0", bind.index(b"\0") + 1) + 1
    place += 2 + 2 * int.from_bytes(bind[place : place + 2], "big")
    count = int.from_bytes(bind[place : place + 2], "big")
    return count > 0 and bind[place + 2 : place + 2 + 4 * count] == b"\xff\xff\xff\xff" * count


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes, bytes]:
    head = await reader.readexactly(5)
    body = await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
    return head[:1], body, head + body


@asynccontextmanager
async def swallowing(url: str) -> AsyncIterator[tuple[Swallower, str]]:
    """A swallower before the database at `url`, and the address through it."""
    parts = urlsplit(url)
    swallower = Swallower(parts.hostname or "127.0.0.1", parts.port or 5432)
    port = await swallower.start()
    login = parts.netloc.rpartition("@")[0]
    try:
        yield swallower, urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}"))
    finally:
        await swallower.stop()
