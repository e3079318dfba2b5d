"""A TCP proxy before PostgreSQL that cuts the line when a test says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit


class CuttingProxy:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Refuse new connections: the database is away.
        self.is_away = False
        #: Swallow this many answers: the statement runs, and its caller never hears.
        self.swallow = 0
        #: After letting so many through.
        self.spare = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def turn_to(self, port: int) -> None:
        """New lines go to the server at this port; those that are open stay where they are."""
        self._target = (self._target[0], port)

    def cut(self) -> None:
        """Break every line that is open now."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.is_away:
            writer.transport.abort()
            return
        try:
            back_reader, back_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back_writer}
        try:
            await asyncio.gather(self._up(reader, back_writer), self._down(back_reader, writer, back_writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers -= {writer, back_writer}
            writer.transport.abort()
            back_writer.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, back_writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            back_writer.write(data)
            await back_writer.drain()
        raise ConnectionResetError

    async def _down(
        self, back_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back_writer: asyncio.StreamWriter
    ) -> None:
        while data := await back_reader.read(65536):
            # 'C' is CommandComplete: the statement has been committed, only its answer is missing.
            if self.swallow and _has_completed(data):
                if not self.spare:
                    self.swallow -= 1
                    raise ConnectionResetError
                self.spare -= 1
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


_CHANGES = (b"INSERT", b"SELECT", b"DELETE", b"UPDATE", b"COMMIT")


def _has_completed(data: bytes) -> bool:
    """Whether whole protocol messages in `data` tell of a data-changing command that completed."""
    place = 0
    while place + 5 <= len(data):
        length = int.from_bytes(data[place + 1 : place + 5], "big")
        word = data[place + 5 : place + 1 + length]
        if data[place : place + 1] == b"C" and word.startswith(_CHANGES):
            return True
        place += 1 + length
    return False


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """A proxy before the database at `url`, and the address through it."""
    parts = urlsplit(url)
    proxy = CuttingProxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    port = await proxy.start()
    login = parts.netloc.rpartition("@")[0]
    through = urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}"))
    try:
        yield proxy, through
    finally:
        await proxy.stop()
