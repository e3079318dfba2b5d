"""Keys that may be used from some addresses only."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from api.client import Api, Reply, Serving, serve
from duetime import metrics
from duetime.api.server.express import Express
from duetime.database.pool import Database
from duetime.model.networks import networks_of, read_network, write_network

pytestmark = pytest.mark.asyncio(loop_scope="module")
HERE = {"X-Forwarded-For": "198.51.100.7"}
ELSEWHERE = {"X-Forwarded-For": "203.0.113.9"}
OFFICE = ["198.51.100.0/24", "2001:db8::/32"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxied(module_url: str) -> AsyncIterator[Serving]:
    """A server that believes whom the proxy names."""
    database = await Database.open(module_url)
    async with serve(database, trusted_proxies=["127.0.0.1/32"]) as serving:
        yield serving
    await database.close()


@pytest_asyncio.fixture(loop_scope="module")
async def team(proxied: Serving, request: pytest.FixtureRequest) -> Api:
    return await proxied.tenant(request.node.name.replace("_", "-").lower()[:60].strip("-"))


async def make_key(api: Api, role: str = "operator", ips: list[str] = OFFICE, **fields: Any) -> Any:
    answer = await api.post("/v1/keys", {"role": role, "allowed_ips": ips, **fields}, headers=ELSEWHERE)
    assert answer.status == 201, answer.body
    return answer.json


def is_refused(answer: Reply, address: str) -> bool:
    problem = answer.json
    return (answer.status, problem["code"]) == (403, "key_not_allowed_here") and address in problem["detail"]


async def test_a_key_is_refused_from_elsewhere_and_does_nothing(team: Api) -> None:
    key = (await make_key(team))["key"]
    before = metrics.KEYS_OUT_OF_PLACE._value.get()

    with capture_logs() as lines:
        refused = [
            await team.post("/v1/tasks", {"type": "a"}, key=key, headers=ELSEWHERE),
            await team.post("/v1/tasks/batch", [{"type": "a"}], key=key, headers=ELSEWHERE),
            await team.get("/v1/tasks", key=key, headers=ELSEWHERE),
            await team.get("/v1/tasks", key=key, headers={"X-Forwarded-For": "2001:db9::1"}),
            await team.get("/v1/tasks", key=key),
            await team.get("/metrics", key=key, headers=ELSEWHERE),
            await team.post("/v1/workers/lease", {"worker": "w", "wait": 60}, key=key, headers=ELSEWHERE),
        ]

    addresses = ["203.0.113.9"] * 3 + ["2001:db9::1", "127.0.0.1"] + ["203.0.113.9"] * 2
    assert all(is_refused(answer, address) for answer, address in zip(refused, addresses, strict=True))
    assert await team.stored() == 0
    assert metrics.KEYS_OUT_OF_PLACE._value.get() - before == 7
    told = [line for line in lines if line["event"] == "an API key was used from where it is not allowed"]
    assert len(told) == 5
    assert told[0]["peer"] == "203.0.113.9"
    assert key not in str(told)


async def test_a_key_is_taken_from_where_it_is_allowed(team: Api) -> None:
    key = (await make_key(team))["key"]

    for address in ("198.51.100.7", "198.51.100.255", "2001:db8::1", "[2001:db8:ffff::1]:443", "::ffff:198.51.100.1"):
        answer = await team.post("/v1/tasks", {"type": "a"}, key=key, headers={"X-Forwarded-For": address})
        assert answer.status == 202, address
    # The client is who it says only as far as the trusted proxy says.
    named = {"X-Forwarded-For": "198.51.100.7, 203.0.113.9"}
    assert is_refused(await team.get("/v1/tasks", key=key, headers=named), "203.0.113.9")


async def test_a_header_of_a_stranger_says_nothing(api: Api) -> None:
    key = (await make_key(api))["key"]

    assert is_refused(await api.get("/v1/tasks", key=key, headers=HERE), "127.0.0.1")


async def test_the_short_way_and_its_repeats_look_where_a_request_comes_from(
    team: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (await make_key(team))["key"]
    taken: list[bool] = []
    take = Express.take

    def note(self: Express, *arguments: Any) -> bool:
        taken.append(take(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(Express, "take", note)

    async def talk(*addresses: str) -> list[int]:
        """One connection; a request for each address."""
        reader, writer = await asyncio.open_connection("127.0.0.1", team.serving.port)
        statuses = []
        for address in addresses:
            body = json.dumps({"type": "a"}).encode()
            head = (
                f"POST /v1/tasks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nx-forwarded-for: {address}\r\n"
            )
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            statuses.append(int(answer.split()[1]))
        writer.close()
        return statuses

    # The first one lets the node know of the key and of the lane.
    assert await talk("198.51.100.7") == [202]
    taken.clear()
    assert await talk(*["198.51.100.7"] * 3, *["203.0.113.9"] * 3, "198.51.100.7") == [202] * 3 + [403] * 3 + [202]
    assert taken.count(True) == 4
    assert await talk(*["203.0.113.9"] * 2) == [403] * 2
    assert await team.stored() == 5


async def test_a_key_is_shown_with_its_addresses_and_rotated_with_them(team: Api) -> None:
    made = await make_key(team, ips=["198.51.100.7/32", "10.0.0.0/8", "2001:DB8:0::/32", "10.0.0.0/255.0.0.0", "::1"])
    written = ["198.51.100.7", "10.0.0.0/8", "2001:db8::/32", "::1"]

    rotated = (await team.post(f"/v1/keys/{made['id']}/rotate", {"overlap": "1h"}, headers=HERE)).json

    shown = {each["id"]: each["allowed_ips"] for each in (await team.get("/v1/keys")).json["items"]}
    assert shown[made["id"]] == shown[rotated["id"]] == written
    assert [each for number, each in shown.items() if number not in (made["id"], rotated["id"])] == [[]]
    assert is_refused(await team.get("/v1/tasks", key=rotated["key"], headers=ELSEWHERE), "203.0.113.9")
    assert (await team.get("/v1/tasks", key=rotated["key"], headers=HERE)).status == 200
    acts = (await team.get(f"/v1/audit?tenant={team.tenant_name}")).json["items"]
    assert [act["after"]["allowed_ips"] for act in acts if act["action"] == "key.create"] == [written, written, []]


async def test_who_makes_a_key_that_locks_it_out_is_told(team: Api) -> None:
    out, within = await make_key(team, ips=["10.0.0.0/8"]), await make_key(team, ips=["203.0.113.9"])
    rotated = (await team.post(f"/v1/keys/{within['id']}/rotate", headers=HERE)).json

    assert out["notes"] == ["this request came from 203.0.113.9, from which the new key is not allowed"]
    assert within["notes"] == []
    assert rotated["notes"] == ["this request came from 198.51.100.7, from which the new key is not allowed"]
    assert (await team.post("/v1/keys", {"role": "viewer"})).json["notes"] == []


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "10.0.0.0/33", "office", "", "10.0.0", "1", "fe80::1%eth0", "10.0.0.0-10.0.0.9", " 10.0.0.1"]
)
async def test_what_is_no_network_is_refused(api: Api, text: str) -> None:
    answer = await api.post("/v1/keys", {"role": "viewer", "allowed_ips": ["10.0.0.1", text]})

    assert (answer.status, answer.paths) == (422, ["allowed_ips[1]"])


async def test_a_list_has_an_end(api: Api) -> None:
    ips = [f"10.0.{number}.0/24" for number in range(101)]

    assert (await api.post("/v1/keys", {"role": "viewer", "allowed_ips": ips})).status == 422
    assert (await api.post("/v1/keys", {"role": "viewer", "allowed_ips": ips[:100]})).status == 201


async def test_an_address_is_found_among_many_networks() -> None:
    texts = [
        "10.0.0.0/8",
        "10.1.0.0/16",
        "192.0.2.4",
        "192.0.2.5",
        "0.0.0.0/32",
        "2001:db8::/32",
        "::ffff:198.51.100.0/120",
    ]
    listed = networks_of(tuple(texts))

    for text in ("10.0.0.0", "10.255.255.255", "192.0.2.4", "192.0.2.5", "0.0.0.0", "2001:db8::", "198.51.100.255"):
        assert read_network(text).network_address in listed, text
    for text in (
        "9.255.255.255",
        "11.0.0.0",
        "192.0.2.3",
        "192.0.2.6",
        "0.0.0.1",
        "2001:db9::",
        "::",
        "255.255.255.255",
    ):
        assert read_network(text).network_address not in listed, text
    assert write_network(read_network("::ffff:198.51.100.0/120")) == "198.51.100.0/24"
    assert read_network("::1").network_address not in networks_of(("0.0.0.0/0",))
