"""Look up the addresses of a host as the system does, without a thread: hosts file, then DNS.

Each query leaves from a separate socket, connected to the name server, with a random
id: an attacker who wants to forge an answer has to guess the id and the port.
Nothing here judges the addresses; the guard does.
"""

import asyncio
import contextlib
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from duetime.executor.dns_messages import TYPE_A, TYPE_AAAA, MessageError, Question, Reply, ask, read_reply
from duetime.executor.dns_settings import Server, Settings, SystemSettings

_MAX_DATAGRAM = 4096
# How long to wait for the other family when a server has answered for one and is silent about the other.
_OTHER_FAMILY_SECONDS = 0.5
_LOOPBACK = ("127.0.0.1", "::1")
_ERRORS = {
    1: "it did not understand the question",
    2: "it failed",
    4: "it has no such answers",
    5: "it refused",
}


class Address(NamedTuple):
    """An address that may be dialled: its family and its numeric form."""

    family: int
    ip: str
    scope: int = 0

    def at(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        return (self.ip, port) if self.family == socket.AF_INET else (self.ip, port, 0, self.scope)


class NoAnswer(Exception):
    """No name server has answered; the message is for the tenant."""


class Resolver:
    """Looks names up; the queries for one name share `timeout_seconds`."""

    def __init__(self, settings: SystemSettings | None = None, *, timeout_seconds: float = 5.0) -> None:
        self._settings = settings or SystemSettings()
        self._timeout_seconds = timeout_seconds
        #: The name server that answered last is queried first.
        self._first = 0

    async def resolve(self, host: str) -> Sequence[Address]:
        """The addresses of a host, empty if it has none; raises NoAnswer."""
        written = read_written(host)
        if written:
            return written
        settings = await self._settings.current()
        name = host.lower().rstrip(".")
        listed = settings.hosts.get(name)
        if listed is None and (name == "localhost" or name.endswith(".localhost")):
            listed = _LOOPBACK
        return _sorted(listed if listed is not None else await self._search(host, settings))

    async def _search(self, host: str, settings: Settings) -> tuple[str, ...]:
        problem: NoAnswer | None = None
        is_unknown = True
        for name in settings.candidates(host):
            try:
                found, is_nowhere = await self._both_families(name, settings)
            except NoAnswer as error:
                problem = error
                continue
            if found:
                return found
            is_unknown = is_unknown and is_nowhere
        if problem is not None:
            raise problem
        if is_unknown:
            raise NoAnswer("it does not exist")
        return ()

    async def _both_families(self, name: str, settings: Settings) -> tuple[tuple[str, ...], bool]:
        """The addresses of one full name, and whether the name does not exist."""
        asking = [asyncio.create_task(self._ask(name, type, settings)) for type in (TYPE_AAAA, TYPE_A)]
        try:
            done, rest = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            if rest:
                has_some = any(task.exception() is None and task.result().addresses for task in done)
                await asyncio.wait(rest, timeout=_OTHER_FAMILY_SECONDS if has_some else None)
        finally:
            for task in asking:
                task.cancel()
            # Their errors were handled, or do not matter any more.
            await asyncio.gather(*asking, return_exceptions=True)
        replies = [task.result() for task in asking if not task.cancelled() and task.exception() is None]
        found = tuple(address for reply in replies for address in reply.addresses)
        if not found:
            for task in asking:
                # Raise the error of one of them: the name may have addresses all the same.
                task.result()
        return found, any(reply.is_unknown for reply in replies)

    async def _ask(self, name: str, type: int, settings: Settings) -> Reply:
        """Send one query to each name server in turn; raises NoAnswer."""
        servers, problem = settings.servers, "no name server answered"
        tries = settings.attempts * len(servers)
        patience = min(settings.timeout_seconds, self._timeout_seconds / tries)
        first = self._first
        for place in range(tries):
            at = (first + place) % len(servers)
            try:
                question = ask(secrets.randbits(16), name, type)
            except ValueError as error:
                raise NoAnswer(str(error)) from error
            try:
                async with asyncio.timeout(patience):
                    reply = await _exchange(question, servers[at])
            except TimeoutError:
                problem = "no name server answered in time"
                continue
            except (OSError, MessageError) as error:
                problem = f"no name server answered: {error}"
                continue
            if reply.error:
                problem = f"the name server said no: {_ERRORS.get(reply.error, f'code {reply.error}')}"
                continue
            self._first = at
            return reply
        raise NoAnswer(problem)


async def _exchange(question: Question, server: Server) -> Reply:
    loop = asyncio.get_running_loop()
    with contextlib.closing(_socket(server, socket.SOCK_DGRAM)) as sock:
        # Connected: the system drops packets from other addresses, and reports when no server listens.
        sock.connect(server)
        await loop.sock_sendall(sock, question.content)
        while True:
            content = await loop.sock_recv(sock, _MAX_DATAGRAM)
            try:
                reply = read_reply(question, content)
            except MessageError:
                # It may be forged: the right answer may still come.
                continue
            break
    return await _exchange_by_tcp(question, server) if reply.is_truncated else reply


async def _exchange_by_tcp(question: Question, server: Server) -> Reply:
    loop = asyncio.get_running_loop()
    with contextlib.closing(_socket(server, socket.SOCK_STREAM)) as sock:
        await loop.sock_connect(sock, server)
        await loop.sock_sendall(sock, struct.pack("!H", len(question.content)) + question.content)
        [length] = struct.unpack("!H", await _receive(loop, sock, 2))
        reply = read_reply(question, await _receive(loop, sock, length))
    if reply.is_truncated:
        raise MessageError("the answer was cut short")
    return reply


async def _receive(loop: asyncio.AbstractEventLoop, sock: socket.socket, length: int) -> bytes:
    content = bytearray()
    while len(content) < length:
        part = await loop.sock_recv(sock, length - len(content))
        if not part:
            raise MessageError("the connection was closed")
        content += part
    return bytes(content)


def _socket(server: Server, kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in server[0] else socket.AF_INET, kind)
    sock.setblocking(False)
    return sock


def read_written(host: str) -> list[Address]:
    """The address that a host writes out, in any form that the system reads; nothing is looked up."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError, ValueError):
        return []
    addresses = []
    for family, _, _, _, sockaddr in found:
        if family in (socket.AF_INET, socket.AF_INET6):
            scope = int(sockaddr[3]) if len(sockaddr) == 4 else 0
            # A scoped address is written as fe80::1%eth0; the scope is passed separately.
            addresses.append(Address(family, str(sockaddr[0]).partition("%")[0], scope))
    return addresses


def _sorted(found: Sequence[str]) -> list[Address]:
    """Put IPv6 addresses first, if this machine can reach them at all."""
    numeric = [address for text in found for address in read_written(text)]
    of_six = [address for address in numeric if address.family == socket.AF_INET6]
    others = [address for address in numeric if address.family != socket.AF_INET6]
    return [*of_six, *others] if not others or (of_six and _has_route(of_six[0])) else [*others, *of_six]


def _has_route(address: Address) -> bool:
    """Whether the system has a route to it; nothing is sent."""
    try:
        with contextlib.closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as sock:
            sock.connect(address.at(9))
    except OSError:
        return False
    return True
