"""The lines between nodes: bytes arrive in order, after a while, or the line breaks.

Above them everything is real: the frames, the greeting, the calls (`cluster`).
"""

import asyncio
import itertools
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast

from simulation.loop import Process, VirtualLoop


class Lines:
    """Who listens where, and the lines that are open."""

    def __init__(self, loop: VirtualLoop, latency: Callable[[], float]) -> None:
        self.loop = loop
        self.latency = latency
        self._ports = itertools.count(1)
        self._listening: dict[int, tuple[Callable[[], asyncio.BaseProtocol], Process]] = {}
        #: One end of each.
        self.open: dict[LineEnd, None] = {}

    async def listen(self, make: Callable[[], asyncio.BaseProtocol], host: str, process: Process) -> Any:
        port = next(self._ports)
        self._listening[port] = (make, process)
        return _Listener(host, port)

    async def connect(
        self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int, process: Process
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        await asyncio.sleep(self.latency())
        accept, other = self._listening[port]
        if other.is_dead or process.is_dead:
            raise ConnectionRefusedError("nobody listens there")
        near, far = LineEnd(self, process), LineEnd(self, other)
        near.other, far.other = far, near
        self.open[near] = None
        protocol = make()
        near.begin(protocol)
        other.call(far.accept, accept)
        return near, protocol

    def died(self, process: Process) -> None:
        """The system closes what a process leaves behind."""
        for end in list(self.open):
            for each in (end, end.other):
                if each is not None and each.process is process:
                    each.abort()

    def break_some(self, chooses: Callable[[list["LineEnd"]], "LineEnd"]) -> None:
        self.open = {each: None for each in self.open if not each.is_closing()}
        if self.open:
            chooses(list(self.open)).abort()


class _Listener:
    """What a server says of itself."""

    def __init__(self, host: str, port: int) -> None:
        self.sockets = [self]
        self._address = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        """A node that stops is not called any more by those that see it as gone."""

    async def wait_closed(self) -> None:
        return


class LineEnd(asyncio.Transport):
    """One end of a line, with its protocol."""

    def __init__(self, lines: Lines, process: Process) -> None:
        super().__init__()
        self._lines = lines
        self.process = process
        self._protocol: asyncio.Protocol | None = None
        self._is_closed = False
        self._arrives_at = 0.0
        self.other: LineEnd | None = None

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)
        protocol.connection_made(self)

    def accept(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        if not self._is_closed:
            self.begin(make())

    def write(self, data: Any) -> None:
        if not self._is_closed and not self.process.is_dead:
            self._send(self._receive_at_other, bytes(data))

    def _send(self, act: Callable[..., None], *arguments: object) -> None:
        loop = self._lines.loop
        self._arrives_at = max(self._arrives_at, loop.now + self._lines.latency())
        loop.call_at(self._arrives_at, act, *arguments, context=Context())

    def _receive_at_other(self, data: bytes) -> None:
        assert self.other is not None
        other = self.other
        if not other._is_closed and not other.process.is_dead:
            other.process.call(other._receive, data)

    def _receive(self, data: bytes) -> None:
        if not self._is_closed and self._protocol is not None:
            self._protocol.data_received(data)

    def abort(self) -> None:
        """The line is closed; the other end hears of it behind what is on its way."""
        if self._is_closed:
            return
        self._send(self._lose_other)
        self._lose()

    close = abort

    def _lose_other(self) -> None:
        if self.other is not None:
            self.other._lose()

    def _lose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._protocol is not None:
                self.process.call(self._protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self._is_closed

    def get_write_buffer_size(self) -> int:
        return 0
