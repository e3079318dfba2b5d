"""The peer of a connection, and the client for which a request came through a proxy.

The peer of a connection is the address of its socket.  A reverse proxy names
the client in `X-Forwarded-For`, and anybody can send that header: it counts
only on connections from a network in `trusted_proxies`.  Each proxy appends the
address that it saw, so the header is read from the right, and the first address
that is not a trusted proxy's is the client.  If the header cannot be read up to
there, it is ignored, and the peer of the connection counts.

The header is read only on demand: most requests never need it.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from duetime.model.networks import IPAddress, IPNetwork

#: The address and port of a socket's other end, as the server gives them; None for a local or a closed socket.
Client = tuple[str, int] | None

_FORWARDED_FOR = b"x-forwarded-for"
#: A request does not pass more proxies than this; entries further to the left are not read.
_MAX_HOPS = 32
#: The longest text of an address, with its brackets, zone and port.
_MAX_ADDRESS = 100
_IPV6_GROUP_BITS = 64


class Peer(NamedTuple):
    """One end of a connection, or the client that a trusted proxy names."""

    #: IPv4 if the socket says IPv4 mapped into IPv6.  None: no IP address at all, as for a local socket.
    address: IPAddress | None

    @property
    def name(self) -> str:
        """The address as text; `local` for a socket without one."""
        return str(self.address) if self.address is not None else "local"

    @property
    def group(self) -> str:
        """The group that limits count as one peer: an IPv4 address, or a /64 of IPv6, which belongs to one customer."""
        match self.address:
            case ipaddress.IPv6Address() as address:
                host_bits = 128 - _IPV6_GROUP_BITS
                return f"{ipaddress.IPv6Address(int(address) >> host_bits << host_bits)}/{_IPV6_GROUP_BITS}"
            case _:
                return self.name


class Peers:
    """Finds peers, knowing which proxies are trusted."""

    def __init__(self, trusted_proxies: Iterable[str] = ()) -> None:
        self._trusted: Sequence[IPNetwork] = tuple(ipaddress.ip_network(network) for network in trusted_proxies)

    def of_connection(self, client: Client) -> Peer:
        return Peer(None if client is None else read_address(client[0]))

    def of_request(self, client: Client, headers: Iterable[tuple[bytes, bytes]]) -> Peer:
        """`headers` are those of the request, in their order: a repeated header continues the first one."""
        peer = self.of_connection(client)
        if not self.is_trusted(peer):
            return peer
        forwarded = [value for name, value in headers if name == _FORWARDED_FOR]
        return Peer(self._find_client(b",".join(forwarded)) or peer.address) if forwarded else peer

    def is_trusted(self, peer: Peer) -> bool:
        """Whether the peer is a trusted proxy."""
        return self._is_trusted(peer.address) if self._trusted and peer.address is not None else False

    def _is_trusted(self, address: IPAddress) -> bool:
        return any(address in network for network in self._trusted)

    def _find_client(self, forwarded: bytes) -> IPAddress | None:
        """The client of the request; if only trusted proxies are named, the leftmost."""
        address = None
        for part in reversed(forwarded.rsplit(b",", _MAX_HOPS)[-_MAX_HOPS:]):
            address = read_address(part.decode("latin-1"))
            if address is None or not self._is_trusted(address):
                break
        return address


def read_address(text: str) -> IPAddress | None:
    """Parse an address as sockets and proxies write it: with or without port, brackets and zone; None if it is none."""
    text = text.strip()
    if len(text) > _MAX_ADDRESS:
        return None
    if text.startswith("["):
        text, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
