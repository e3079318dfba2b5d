"""The egress guard: which addresses a tenant's URL may make us call.

Every address that a host resolves to is vetted, and one refused address refuses the
host.  Only vetted addresses leave this module, and the client dials them as
they are, so no second look-up can answer differently.  Written addresses, in
every form that the resolver accepts, are vetted in the same way as names.
"""

import asyncio
import ipaddress
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from duetime.clock import Monotonic
from duetime.executor.lookups import Lookups
from duetime.executor.resolver import Address, NoAnswer, Resolver

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_TTL_SECONDS = 5.0
_FAILURE_TTL_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
#: For each tenant: the most look-ups at once, and the most answers that are remembered.
_MAX_LOOKUPS = 16
_MAX_REMEMBERED = 1024

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
# Checked in order; an address outside all of these and outside 2000::/3 counts as reserved.
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
# These lead to an IPv4 address, so that address is vetted (RFC 4291, RFC 6052).
_EMBEDDING_V6 = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))


Resolve = Callable[[str], Awaitable[Sequence[Address]]]


class EgressError(Exception):
    """The host cannot be called; the message is for the tenant."""


class RefusedError(EgressError):
    """The host has an address that may not be called."""


class UnresolvableError(EgressError):
    """The host has no address, or no name server answered in time."""


_Answer = tuple[Address, ...] | EgressError
_Remembered = tuple[float, _Answer]


def read_networks(texts: Iterable[str]) -> tuple[IPNetwork, ...]:
    """Parse networks from a configuration; raises ValueError naming the one that is invalid."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def why_refused(address: IPAddress, allow: Sequence[IPNetwork] = ()) -> str | None:
    """The kind of a forbidden address; None if the address may be called."""
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
    """Resolves hosts, vets every address, and remembers the answers for a few seconds, separately for each tenant."""

    def __init__(
        self,
        allow: Sequence[IPNetwork] = (),
        *,
        resolve: Resolve | None = None,
        ttl_seconds: float = _TTL_SECONDS,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        max_lookups: int = _MAX_LOOKUPS,
        max_remembered: int = _MAX_REMEMBERED,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._allow = tuple(allow)
        self._resolve = resolve or Resolver(timeout_seconds=timeout_seconds).resolve
        self._ttl_seconds = ttl_seconds
        self._timeout_seconds = timeout_seconds
        self._max_remembered = max_remembered
        self._monotonic = monotonic
        self._lookups = Lookups(self._look_up, max_lookups)
        #: By tenant and host, the oldest first, with the time until which each is valid.
        self._answers: dict[int, dict[str, _Remembered]] = {}
        #: All of them in the order in which they were learned, to find those that are over.
        self._learned: deque[tuple[float, int, str]] = deque()

    def known(self, tenant: int, host: str) -> tuple[Address, ...] | None:
        """Vetted addresses without a look-up, or None; raises a remembered refusal."""
        answers = self._answers.get(tenant)
        remembered = None if answers is None else answers.get(host)
        if remembered is None or remembered[0] <= self._monotonic():
            written = _written_address(host)
            if written is None:
                return None
            # Nothing is looked up, so there is nothing to wait for.
            remembered = self._remember(tenant, host, self._ttl_seconds, self._judged(host, [written]))
        if isinstance(remembered[1], EgressError):
            # A new instance: raising the same object again would grow its traceback.
            raise type(remembered[1])(str(remembered[1]))
        return remembered[1]

    def look_up(self, tenant: int, host: str) -> bool:
        """Begin to look up an unknown host; False if the tenant has reached its limit of look-ups."""
        return self._lookups.begin(tenant, host) is not None

    async def turn(self, tenant: int, host: str) -> None:
        """Wait until the look-up has begun; cancelling this leaves the tenant's line."""
        await self._lookups.turn(tenant, host)

    async def vet(self, tenant: int, host: str) -> tuple[Address, ...]:
        """The addresses that may be dialled for a host; raises RefusedError or UnresolvableError."""
        known = self.known(tenant, host)
        if known is not None:
            return known
        lookup = self._lookups.begin(tenant, host) or await self._lookups.turn(tenant, host)
        # Shielded: callers share one look-up, and a caller that goes away must not end it.
        return await asyncio.shield(lookup)

    def close(self) -> None:
        self._lookups.close()

    async def _look_up(self, tenant: int, host: str) -> tuple[Address, ...]:
        seconds = self._ttl_seconds
        try:
            answer = self._judged(host, await self._addresses(host))
        except UnresolvableError as error:
            # The failure may be over in a moment, and each task that meets it loses an attempt.
            answer, seconds = error, min(seconds, _FAILURE_TTL_SECONDS)
        self._remember(tenant, host, seconds, answer)
        if isinstance(answer, EgressError):
            raise answer
        return answer

    def _remember(self, tenant: int, host: str, seconds: float, answer: _Answer) -> _Remembered:
        now = self._monotonic()
        while self._learned and self._learned[0][0] <= now:
            self._forget(*self._learned.popleft())
        answers = self._answers.setdefault(tenant, {})
        answers.pop(host, None)
        if len(answers) >= self._max_remembered:
            # A tenant that calls very many hosts forgets its own answers, and no other tenant's.
            del answers[next(iter(answers))]
        remembered = answers[host] = (now + seconds, answer)
        self._learned.append((now + seconds, tenant, host))
        return remembered

    def _forget(self, until: float, tenant: int, host: str) -> None:
        answers = self._answers.get(tenant, {})
        remembered = answers.get(host)
        if remembered is not None and remembered[0] == until:
            del answers[host]
            if not answers:
                del self._answers[tenant]

    async def _addresses(self, host: str) -> Sequence[Address]:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                found = await self._resolve(host)
        except TimeoutError:
            raise UnresolvableError(f"the name {host} was not resolved within {self._timeout_seconds:g} s") from None
        except (NoAnswer, OSError, UnicodeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UnresolvableError(f"the name {host} cannot be resolved: {reason}") from error
        if not found:
            raise UnresolvableError(f"the name {host} has no address")
        return found

    def _judged(self, host: str, addresses: Sequence[Address]) -> _Answer:
        for address in addresses:
            reason = why_refused(ipaddress.ip_address(address.ip), self._allow)
            if reason is not None:
                # The message leaves out the address: it would reveal a map of our networks.
                return RefusedError(f"{host} has an address that may not be called ({reason})")
        return tuple(dict.fromkeys(addresses))


def _written_address(host: str) -> Address | None:
    """The address that a host writes out in the usual form; the resolver reads unusual forms."""
    if "%" in host:
        return None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return Address(socket.AF_INET if address.version == 4 else socket.AF_INET6, str(address))
