"""The HTTP target: answers 200 to everything, after a delay if one is given, and notes each call.

It answers requests to its path `/slow` after half a minute.

Run as `python -m bench.fairness.target FILE DELAY_SECONDS PORT…`: one process on
several ports, so that each tenant has a host of its own.  It notes the payload's
`who` and `at`.
"""

import asyncio
import signal
import sys
from typing import cast

import msgspec
import uvloop

from bench.fairness.records import Notes

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_WRITE_SECONDS = 0.02
SLOW_SECONDS = 30.0


class Sent(msgspec.Struct):
    who: int
    at: float = 0.0


_decode = msgspec.json.Decoder(Sent).decode


class Target(asyncio.Protocol):
    """One connection; the executor sends one request at a time on it, with its length."""

    def __init__(self, notes: Notes, delay: float) -> None:
        self._notes = notes
        self._delay = delay
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self._data = body[length:]
        sent = _decode(body[:length])
        self._notes.note(sent.who, sent.at)
        delay = SLOW_SECONDS if b" /slow " in head[:32] else self._delay
        if delay:
            asyncio.get_running_loop().call_later(delay, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(_ANSWER)


async def main(file: str, delay: float, ports: list[int]) -> None:
    notes, loop, is_over = Notes(file), asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_over.set)
    servers = [await loop.create_server(lambda: Target(notes, delay), "127.0.0.1", port) for port in ports]
    print("ready", flush=True)
    while not is_over.is_set():
        await asyncio.sleep(_WRITE_SECONDS)
        notes.write()
    for server in servers:
        server.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], float(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
