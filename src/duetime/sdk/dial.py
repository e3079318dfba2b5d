"""Where the server is, and new connections to it: names with several addresses, TLS.

A name's addresses are tried one after the other, each a little after the one
before and all of them at once in the end, so that a dead one costs a moment and
not the call (RFC 8305 in small).  Proxies of the environment are not used.
"""

import asyncio
import functools
import itertools
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, urlsplit

from duetime.http1.connection import Connection
from duetime.http1.dial import OpenConnections, connect, tls_context
from duetime.http1.messages import Bounds, ExchangeError, Reason
from duetime.sdk.errors import ConfigurationError

#: What has its own meaning in a path and a query, or is quoted already.
PATH_CHARACTERS = "/?:@!$&'()*+,;=-._~%"

#: Before the next address is tried beside the ones under way.
_STAGGER_SECONDS = 0.25
_TLS_CLOSE_SECONDS = 2.0

_Address = tuple[socket.AddressFamily, Any]


@dataclass(frozen=True)
class Place:
    """A base URL, taken apart."""

    is_tls: bool
    host: str
    port: int
    #: Before every path; "" or "/…".
    prefix: str

    @classmethod
    def read(cls, url: str) -> Self:
        try:
            parts = urlsplit(url)
            port = parts.port
            host = _ascii(parts.hostname or "")
        except ValueError as error:
            raise ConfigurationError(f'"{url}" is not a server address: {error}') from error
        if not host or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(f'"{url}" is not a server address: it has a scheme, a host, a port and a path')
        is_tls = parts.scheme == "https"
        path = quote(parts.path.rstrip("/"), safe=PATH_CHARACTERS)
        return cls(is_tls, host, (443 if is_tls else 80) if port is None else port, path)

    @property
    def authority(self) -> str:
        """For the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.is_tls else 80) else f"{name}:{self.port}"


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode()


class Dialler:
    """Makes connections to one place, and knows all that are open."""

    def __init__(self, place: Place, tls: ssl.SSLContext | None, max_bytes: int) -> None:
        self._place = place
        self._tls = (tls or _default_tls()) if place.is_tls else None
        self._open = OpenConnections(Bounds(kept_bytes=max_bytes, read_bytes=max_bytes))

    async def dial(self, connect_by: float) -> Connection:
        """A new connection until a time of the loop; raises ExchangeError."""
        place = self._place
        try:
            async with asyncio.timeout_at(connect_by):
                sock = await _reach(place.host, place.port)
                return await self._open.start(sock, self._tls, place.host)
        except TimeoutError as error:
            raise ExchangeError(Reason.CONNECT, f"no connection to {place.authority} in time") from error
        except ssl.SSLCertVerificationError as error:
            message = f"the certificate of {place.host} is not valid: {error.verify_message}"
            raise ExchangeError(Reason.TLS, message) from error
        # A name that cannot be one is a ValueError.
        except (OSError, ValueError) as error:
            raise ExchangeError(Reason.CONNECT, f"no connection to {place.authority}: {error}") from error

    async def close(self, some: Iterable[Connection] | None = None) -> None:
        """Close some connections or all, and wait until they are; exchanges under way on them fail."""
        await self._open.close(some)


@functools.cache
def _default_tls() -> ssl.SSLContext:
    return tls_context()


async def _reach(host: str, port: int) -> socket.socket:
    """A connected socket to one of the host's addresses."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    waiting = _interleave([(info[0], info[4]) for info in found])
    trying: set[asyncio.Task[socket.socket]] = set()
    problems: list[BaseException] = []
    reached: socket.socket | None = None
    try:
        while reached is None:
            if waiting:
                trying.add(asyncio.create_task(connect(*waiting.pop(0))))
            elif not trying:
                raise problems[0] if problems else OSError("the name has no address")
            done, trying = await asyncio.wait(
                trying, timeout=_STAGGER_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                if (problem := each.exception()) is not None:
                    problems.append(problem)
                elif reached is None:
                    reached = each.result()
                else:
                    each.result().close()
    except BaseException:
        if reached is not None:
            reached.close()
        raise
    finally:
        for each in trying:
            each.cancel()
            each.add_done_callback(_close_late)
    return reached


def _close_late(connecting: "asyncio.Task[socket.socket]") -> None:
    """Of one that was given up: it may have been connected already."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


def _interleave(addresses: Sequence[_Address]) -> list[_Address]:
    """The families in turn, beginning with the one that the system prefers."""
    first = [each for each in addresses if each[0] == addresses[0][0]]
    rest = [each for each in addresses if each[0] != addresses[0][0]]
    return [each for pair in itertools.zip_longest(first, rest) for each in pair if each is not None]
