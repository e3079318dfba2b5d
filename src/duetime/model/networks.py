"""Lists of IP addresses and networks, and whether an address is in one.

A list is built once and searched by bisection, so that a long list costs a request
no more than a short one.
"""

import ipaddress
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

#: IPv4 mapped into IPv6: peers are given in IPv4.
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


class Networks:
    """A set of addresses of both kinds."""

    def __init__(self, networks: Iterable[IPNetwork]) -> None:
        four: list[ipaddress.IPv4Network] = []
        six: list[ipaddress.IPv6Network] = []
        for network in networks:
            if isinstance(network, ipaddress.IPv4Network):
                four.append(network)
            else:
                six.append(network)
        self._four = _spans(ipaddress.collapse_addresses(four))
        self._six = _spans(ipaddress.collapse_addresses(six))

    def __contains__(self, address: IPAddress) -> bool:
        firsts, lasts = self._four if address.version == 4 else self._six
        number = int(address)
        place = bisect_right(firsts, number)
        return place > 0 and number <= lasts[place - 1]


def _spans(networks: Iterable[IPNetwork]) -> tuple[list[int], list[int]]:
    """Where each begins and ends, in order; they do not overlap."""
    sorted_networks = list(networks)
    firsts = [int(network.network_address) for network in sorted_networks]
    return firsts, [int(network.broadcast_address) for network in sorted_networks]


def read_network(text: str) -> IPNetwork:
    """Read an address or a network as people write it. ValueError says what is wrong with it."""
    if "%" in text:
        # Peers are given without the zone of their interface.
        raise ValueError("an address with a zone")
    network = ipaddress.ip_network(text)
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        return ipaddress.IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def write_network(network: IPNetwork) -> str:
    """Its one canonical form: a single address has no prefix."""
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)


@lru_cache(maxsize=10_000)
def networks_of(texts: tuple[str, ...]) -> Networks:
    """Read a list that was checked before it was stored."""
    return Networks(map(read_network, texts))
