"""The egress guard: which addresses a tenant's URL may make us call.

Every address a host resolves to is vetted, and one that is refused refuses the
host.  Only vetted addresses leave this module, and the client dials them as
they are, so no second look-up can answer differently.  Written addresses, in
whatever form the resolver accepts, take the same way as names.
"""

import asyncio
import functools
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from duetime.clock import Monotonic

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_TTL_SECONDS = 5.0
_TIMEOUT_SECONDS = 5.0
# A look-up blocks its thread, and the system's resolver may take half a minute for a dead name server.
_LOOKUP_THREADS = 32
_MAX_REMEMBERED = 4096

_REFUSED_V4 = {
    ipaddress.IPv4Network(network): reason
    for network, reason in {
        "0.0.0.0/8": "unspecified",
        "10.0.0.0/8": "private",
        "100.64.0.0/10": "shared by carriers",
        "127.0.0.0/8": "loopback",
        "168.63.129.16/32": "a cloud provider's own service",
        "169.254.0.0/16": "link-local",
        "172.16.0.0/12": "private",
        "192.0.0.0/24": "reserved",
        "192.0.2.0/24": "for documentation",
        "192.88.99.0/24": "reserved",
        "192.168.0.0/16": "private",
        "198.18.0.0/15": "for benchmarks",
        "198.51.100.0/24": "for documentation",
        "203.0.113.0/24": "for documentation",
        "224.0.0.0/4": "multicast",
        "240.0.0.0/4": "reserved",
    }.items()
}
# Looked at in order; what none of these and not 2000::/3 contains is reserved.
_REFUSED_V6 = {
    ipaddress.IPv6Network(network): reason
    for network, reason in {
        "::/128": "unspecified",
        "::1/128": "loopback",
        "::/96": "reserved",
        "fc00::/7": "private",
        "fe80::/10": "link-local",
        "fec0::/10": "private",
        "ff00::/8": "multicast",
        "2001::/23": "reserved",
        "2001:db8::/32": "for documentation",
        "2002::/16": "reserved",
        "3fff::/20": "for documentation",
    }.items()
}
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
# Behind these an IPv4 address is what is reached, so that one is vetted (RFC 4291, RFC 6052).
_EMBEDDING_V6 = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))


class Address(NamedTuple):
    """What may be dialled: a family and its numeric address."""

    family: int
    ip: str
    scope: int = 0

    def at(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        return (self.ip, port) if self.family == socket.AF_INET else (self.ip, port, 0, self.scope)


Resolve = Callable[[str], Awaitable[Sequence[Address]]]


class EgressError(Exception):
    """The host cannot be called; the message is for the tenant."""


class RefusedError(EgressError):
    """The host has an address that may not be called."""


class UnresolvableError(EgressError):
    """The host has no address, or nobody answered in time."""


def read_networks(texts: Iterable[str]) -> tuple[IPNetwork, ...]:
    """Networks from a configuration; raises ValueError naming the one that is none."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def why_refused(address: IPAddress, allow: Sequence[IPNetwork] = ()) -> str | None:
    """What kind of address this is that may not be called; None if it may."""
    seen = _reached(address)
    if any(candidate in network for network in allow for candidate in (address, seen)):
        return None
    if isinstance(seen, ipaddress.IPv4Address):
        return next((reason for network, reason in _REFUSED_V4.items() if seen in network), None)
    reason = next((reason for network, reason in _REFUSED_V6.items() if seen in network), None)
    if reason is None and seen not in _GLOBAL_V6:
        return "reserved"
    return reason


def _reached(address: IPAddress) -> IPAddress:
    if isinstance(address, ipaddress.IPv6Address) and any(address in network for network in _EMBEDDING_V6):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


class Guard:
    """Resolves hosts, vets every address, and remembers the answers for a few seconds."""

    def __init__(
        self,
        allow: Sequence[IPNetwork] = (),
        *,
        resolve: Resolve | None = None,
        ttl_seconds: float = _TTL_SECONDS,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._allow = tuple(allow)
        self._resolve = resolve or self._ask_system
        self._ttl_seconds = ttl_seconds
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        self._answers: dict[str, tuple[float, tuple[Address, ...] | EgressError]] = {}
        self._lookups: dict[str, asyncio.Task[tuple[Address, ...]]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def known(self, host: str) -> tuple[Address, ...] | None:
        """Vetted addresses without a look-up, or None; raises a remembered refusal."""
        remembered = self._answers.get(host)
        if remembered is None or remembered[0] <= self._monotonic():
            return None
        if isinstance(remembered[1], EgressError):
            # A fresh one: raising the same object again would grow its traceback.
            raise type(remembered[1])(str(remembered[1]))
        return remembered[1]

    async def vet(self, host: str) -> tuple[Address, ...]:
        """The addresses that may be dialled for a host; raises RefusedError or UnresolvableError."""
        known = self.known(host)
        if known is not None:
            return known
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(self._look_up(host))
            self._lookups[host] = lookup
            lookup.add_done_callback(functools.partial(self._looked_up, host))
        # Shielded: callers share one look-up, and one of them going away must not end it.
        return await asyncio.shield(lookup)

    def close(self) -> None:
        for lookup in list(self._lookups.values()):
            lookup.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _look_up(self, host: str) -> tuple[Address, ...]:
        try:
            answer: tuple[Address, ...] | EgressError = self._checked(host, await self._addresses(host))
        except EgressError as error:
            answer = error
        if len(self._answers) >= _MAX_REMEMBERED:
            self._answers.clear()
        self._answers[host] = (self._monotonic() + self._ttl_seconds, answer)
        if isinstance(answer, EgressError):
            raise answer
        return answer

    def _looked_up(self, host: str, lookup: asyncio.Task[tuple[Address, ...]]) -> None:
        del self._lookups[host]
        if not lookup.cancelled():
            # Marks it as seen: every caller may have gone away by now.
            lookup.exception()

    async def _addresses(self, host: str) -> Sequence[Address]:
        written = _written_address(host)
        if written is not None:
            return [written]
        try:
            async with asyncio.timeout(self._timeout_seconds):
                found = await self._resolve(host)
        except TimeoutError:
            raise UnresolvableError(f"the name {host} was not resolved within {self._timeout_seconds:g} s") from None
        except (OSError, UnicodeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UnresolvableError(f"the name {host} cannot be resolved: {reason}") from error
        if not found:
            raise UnresolvableError(f"the name {host} has no address")
        return found

    def _checked(self, host: str, addresses: Sequence[Address]) -> tuple[Address, ...]:
        for address in addresses:
            reason = why_refused(ipaddress.ip_address(address.ip), self._allow)
            if reason is not None:
                # The address itself stays out of the message: it would draw a map of our networks.
                raise RefusedError(f"{host} has an address that may not be called ({reason})")
        return tuple(dict.fromkeys(addresses))

    async def _ask_system(self, host: str) -> Sequence[Address]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_LOOKUP_THREADS, "duetime-resolve")
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, functools.partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        )
        addresses = []
        for family, _, _, _, sockaddr in found:
            if family in (socket.AF_INET, socket.AF_INET6):
                scope = int(sockaddr[3]) if len(sockaddr) == 4 else 0
                # A scoped address is told as fe80::1%eth0; the scope travels apart.
                addresses.append(Address(family, str(sockaddr[0]).partition("%")[0], scope))
        return addresses


def _written_address(host: str) -> Address | None:
    """The address that a host writes out in its usual form; odd forms are the resolver's to read."""
    if "%" in host:
        return None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return Address(socket.AF_INET if address.version == 4 else socket.AF_INET6, str(address))
