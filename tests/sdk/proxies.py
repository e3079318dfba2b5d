"""A TCP proxy between the SDK and a node, which can cut the line at a chosen moment and remembers what passed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Proxy:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        #: Cut the connection when the answer to a request with these bytes arrives; once per entry.
        self.cut_answers_to: list[bytes] = []
        self.is_away = False
        #: Every piece that was sent to the node, in order.
        self.sent: list[bytes] = []
        self.cuts = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def go_away(self) -> None:
        """Cut all connections and refuse new ones."""
        self.is_away = True
        self.cut()

    def come_back(self) -> None:
        self.is_away = False

    def cut(self) -> None:
        for connection in self._connections:
            connection.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self.is_away:
                await self._forward(reader, writer)
        except (asyncio.CancelledError, OSError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_node = await asyncio.open_connection(*self._upstream)
        is_doomed = False

        async def upwards() -> None:
            nonlocal is_doomed
            while piece := await reader.read(1 << 16):
                self.sent.append(piece)
                for mark in [mark for mark in self.cut_answers_to if mark in piece]:
                    self.cut_answers_to.remove(mark)
                    is_doomed = True
                to_node[1].write(piece)
                await to_node[1].drain()

        async def downwards() -> None:
            while piece := await to_node[0].read(1 << 16):
                if is_doomed:
                    self.cuts += 1
                    return
                writer.write(piece)
                await writer.drain()

        halves = [asyncio.create_task(upwards()), asyncio.create_task(downwards())]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_node[1].transport.abort()
            writer.transport.abort()
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)


@contextlib.asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
