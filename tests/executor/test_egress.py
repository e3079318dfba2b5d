"""Which addresses a tenant's URL may reach."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.executor.egress import Guard, RefusedError, UnresolvableError, read_networks, why_refused
from duetime.executor.resolver import Address

REFUSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::10.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd12:3456:789a::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
ACCEPTED = [
    "1.1.1.1",
    "8.8.8.8",
    "11.0.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "169.253.255.255",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "198.17.255.255",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
]


def resolver(answers: dict[str, list[str]], asked: list[str] | None = None):
    async def resolve(host: str) -> Sequence[Address]:
        if asked is not None:
            asked.append(host)
        if host not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [Address(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip) for ip in answers[host]]

    return resolve


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert why_refused(ipaddress.ip_address(address)) is not None


@pytest.mark.parametrize("address", ACCEPTED)
def test_a_public_address_is_accepted(address: str) -> None:
    assert why_refused(ipaddress.ip_address(address)) is None


@given(st.ip_addresses())
def test_nothing_is_accepted_that_the_standard_library_calls_private(address) -> None:
    reached = address
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        reached = address.ipv4_mapped
    if why_refused(address) is None:
        assert not reached.is_private
        assert not reached.is_multicast
        assert not reached.is_link_local
        assert not reached.is_reserved or reached in ipaddress.ip_network("64:ff9b::/96")


@given(st.ip_addresses(v=4))
def test_an_embedded_address_is_judged_like_the_address_itself(address: ipaddress.IPv4Address) -> None:
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        embedding = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(address))
        assert why_refused(embedding) == why_refused(address)


def test_an_allowed_network_is_accepted_in_every_form_and_nothing_beside_it() -> None:
    allow = read_networks(["127.0.0.0/8", "fd00:1::/32"])

    assert why_refused(ipaddress.ip_address("127.0.0.1"), allow) is None
    assert why_refused(ipaddress.ip_address("::ffff:127.0.0.1"), allow) is None
    assert why_refused(ipaddress.ip_address("fd00:1::5"), allow) is None
    assert why_refused(ipaddress.ip_address("::1"), allow) is not None
    assert why_refused(ipaddress.ip_address("10.0.0.1"), allow) is not None


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/33"):
        read_networks(["10.0.0.0/33"])


async def test_one_private_address_among_public_ones_refuses_the_host() -> None:
    guard = Guard(resolve=resolver({"mixed.example": ["8.8.8.8", "10.0.0.5", "1.1.1.1"]}))

    with pytest.raises(RefusedError, match=r"mixed\.example") as refused:
        await guard.vet(1, "mixed.example")

    assert "10.0.0.5" not in str(refused.value)


async def test_every_vetted_address_is_given_to_be_dialled() -> None:
    guard = Guard(resolve=resolver({"both.example": ["8.8.8.8", "2606:4700::1"]}))

    assert await guard.vet(1, "both.example") == (
        Address(socket.AF_INET, "8.8.8.8"),
        Address(socket.AF_INET6, "2606:4700::1"),
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "::1", "localhost", "0"]
)
async def test_loopback_is_refused_however_it_is_written(host: str) -> None:
    guard = Guard()
    try:
        with pytest.raises(RefusedError):
            await guard.vet(1, host)
    finally:
        guard.close()


async def test_a_name_without_an_address_is_unresolvable() -> None:
    guard = Guard(resolve=resolver({"empty.example": []}))

    with pytest.raises(UnresolvableError, match="has no address"):
        await guard.vet(1, "empty.example")
    with pytest.raises(UnresolvableError, match="Name or service not known"):
        await guard.vet(1, "unknown.example")


async def test_a_resolver_that_hangs_is_given_up() -> None:
    async def resolve(host: str) -> Sequence[Address]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    with pytest.raises(UnresolvableError, match="not resolved within"):
        await Guard(resolve=resolve, timeout_seconds=0.01).vet(1, "slow.example")


async def test_an_answer_is_remembered_for_its_time_and_then_asked_for_and_vetted_again() -> None:
    now = 100.0
    answers = {"turning.example": ["8.8.8.8"]}
    asked: list[str] = []
    guard = Guard(resolve=resolver(answers, asked), ttl_seconds=5.0, monotonic=lambda: now)

    await guard.vet(1, "turning.example")
    answers["turning.example"] = ["127.0.0.1"]
    now = 104.9
    assert await guard.vet(1, "turning.example") == (Address(socket.AF_INET, "8.8.8.8"),)
    now = 105.0
    with pytest.raises(RefusedError):
        await guard.vet(1, "turning.example")

    assert len(asked) == 2


async def test_callers_at_the_same_time_share_one_look_up_and_one_may_leave() -> None:
    answered = asyncio.Event()
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[Address]:
        asked.append(host)
        await answered.wait()
        return [Address(socket.AF_INET, "8.8.8.8")]

    guard = Guard(resolve=resolve)
    callers = [asyncio.create_task(guard.vet(1, "shared.example")) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    answered.set()

    results = await asyncio.gather(*callers, return_exceptions=True)

    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1] == results[2] == (Address(socket.AF_INET, "8.8.8.8"),)
    assert asked == ["shared.example"]
