"""A name server on loopback, by UDP and TCP, that answers, says no, stays silent or keeps one waiting, by name."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from duetime.executor.dns_settings import SystemSettings
from duetime.executor.resolver import Resolver

A, AAAA, CNAME = 1, 28, 5


@dataclass
class NameServer:
    #: Addresses and aliases (`=other.example`) of each name; a name that is not here does not exist.
    zone: dict[str, list[str]] = field(default_factory=dict)
    #: Names that are never answered for, by how they begin.
    silent: str = "silent"
    #: Codes in place of an answer.
    errors: dict[str, int] = field(default_factory=dict)
    #: Only by TCP; the datagram says that it was cut short.
    large: set[str] = field(default_factory=set)
    #: Only this type is answered for.
    only: int | None = None
    #: Makes a reply worse before it goes out.
    spoil: Callable[[bytes], list[bytes]] = lambda reply: [reply]
    #: What was asked, in order.
    asked: list[tuple[str, int]] = field(default_factory=list)
    by_tcp: int = 0
    port: int = 0

    def names(self) -> list[str]:
        return [name for name, type in self.asked if type == A]

    def resolver(self, **fields: float) -> Resolver:
        return Resolver(SystemSettings([("127.0.0.1", self.port)]), **fields)

    def reply(self, query: bytes, *, is_tcp: bool) -> bytes | None:
        at = 12
        labels = []
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += query[at] + 1
        name, [type] = ".".join(labels).lower(), struct.unpack("!H", query[at + 1 : at + 3])
        question = query[12 : at + 5]
        self.asked.append((name, type))
        self.by_tcp += is_tcp
        if name.startswith(self.silent) or self.only not in (None, type):
            return None
        if name in self.large and not is_tcp:
            return query[:2] + struct.pack("!HHHHH", 0x8380, 1, 0, 0, 0) + question
        code = self.errors.get(name, 0 if name in self.zone else 3)
        records = self._records(name, type) if not code else []
        return query[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0) + question + b"".join(records)

    def _records(self, name: str, type: int) -> list[bytes]:
        records = []
        for value in self.zone.get(name, []):
            if value.startswith("="):
                other = encode(value[1:])
                records.append(encode(name) + struct.pack("!HHIH", CNAME, 1, 60, len(other)) + other)
                records += self._records(value[1:], type)
            elif (":" in value) == (type == AAAA):
                packed = socket.inet_pton(socket.AF_INET6 if ":" in value else socket.AF_INET, value)
                records.append(encode(name) + struct.pack("!HHIH", type, 1, 60, len(packed)) + packed)
        return records


def encode(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self.server = server

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self.server.reply(data, is_tcp=False)
        for each in [] if reply is None else self.server.spoil(reply):
            self.transport.sendto(each, addr)


@asynccontextmanager
async def name_server(zone: dict[str, list[str]] | None = None, **fields: Any) -> AsyncIterator[NameServer]:
    server = NameServer(zone or {}, **fields)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        [length] = struct.unpack("!H", await reader.readexactly(2))
        reply = server.reply(await reader.readexactly(length), is_tcp=True)
        if reply is not None:
            writer.write(struct.pack("!H", len(reply)) + reply)
        writer.close()

    loop = asyncio.get_running_loop()
    tcp = await asyncio.start_server(talk, "127.0.0.1", 0)
    server.port = tcp.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(server), ("127.0.0.1", server.port))
    try:
        yield server
    finally:
        transport.close()
        tcp.close()
        await tcp.wait_closed()
