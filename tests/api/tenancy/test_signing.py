"""The secret that signs calls, read and rotated over HTTP."""

import base64
from datetime import UTC, datetime, timedelta

import pytest

from api.client import Api
from duetime.admin.signing import read_signing, show_secret
from duetime.sdk.uuid7 import make_uuid7

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/signing-secret"


async def test_a_rotation_makes_a_new_secret_and_the_former_one_signs_for_the_overlap(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")
    theirs = (await other.get(PATH)).json
    before = (await api.get(PATH)).json

    answer = await api.post(f"{PATH}/rotate", {"overlap": "2h"})
    after = (await api.get(PATH)).json

    assert (answer.status, answer.headers["Cache-Control"], answer.json["notes"]) == (200, "no-store", [])
    assert (before["former_until"], after["secret"]) == (None, answer.json["secret"])
    assert after["secret"] != before["secret"]
    assert len(base64.b64decode(after["secret"].removeprefix("whsec_"), validate=True)) == 32
    ends_in = datetime.fromisoformat(after["former_until"]) - datetime.now(UTC)
    assert timedelta(hours=1) < ends_in < timedelta(hours=3)
    stored = await read_signing(api.serving.database, api.tenant)
    assert stored.former is not None
    assert show_secret(stored.former) == before["secret"]
    assert (await other.get(PATH)).json == theirs


async def test_the_overlap_is_a_day_and_can_be_none(api: Api) -> None:
    usual = (await api.post(f"{PATH}/rotate")).json
    none = (await api.post(f"{PATH}/rotate", {"overlap": 0})).json
    again = (await api.post(f"{PATH}/rotate", {"overlap": "30d"})).json

    assert timedelta(hours=23) < datetime.fromisoformat(usual["former_until"]) - datetime.now(UTC) < timedelta(hours=25)
    assert none["former_until"] is None
    assert again["notes"] == []


async def test_a_rotation_within_an_overlap_drops_the_oldest_and_says_so(api: Api) -> None:
    await api.post(f"{PATH}/rotate", {"overlap": "1h"})
    second = (await api.get(PATH)).json["secret"]

    third = (await api.post(f"{PATH}/rotate", {"overlap": "1h"})).json

    assert "does not sign any more" in third["notes"][0]
    stored = await read_signing(api.serving.database, api.tenant)
    assert stored.former is not None
    assert [show_secret(stored.secret), show_secret(stored.former)] == [third["secret"], second]


async def test_a_request_that_is_repeated_rotates_once(api: Api) -> None:
    headers = {"Idempotency-Key": str(make_uuid7())}
    first = await api.post(f"{PATH}/rotate", {"overlap": "1h"}, headers=headers)

    repeated = await api.post(f"{PATH}/rotate", {"overlap": "1h"}, headers=headers)
    other = await api.post(f"{PATH}/rotate", headers={"Idempotency-Key": str(make_uuid7())})

    assert (repeated.status, repeated.json) == (200, first.json)
    assert other.json["secret"] != first.json["secret"]
    assert (await api.post(f"{PATH}/rotate", headers={"Idempotency-Key": "x"})).paths == ["Idempotency-Key"]


@pytest.mark.parametrize("overlap", [-1, "31d", "soon", None, 1e300])
async def test_a_wrong_overlap_is_a_422_and_nothing_is_done(api: Api, overlap: object) -> None:
    before = (await api.get(PATH)).json

    answer = await api.post(f"{PATH}/rotate", {"overlap": overlap})

    assert (answer.status, answer.paths) == (422, ["overlap"])
    assert (await api.get(PATH)).json == before


async def test_the_audit_has_the_rotation_without_the_secret(api: Api) -> None:
    made = (await api.post(f"{PATH}/rotate", {"overlap": "1h"})).json

    answer = await api.get(f"/v1/audit?tenant={api.tenant_name}&limit=1")

    [act] = answer.json["items"]
    assert (act["action"], act["subject"]) == ("signing_secret.rotate", api.tenant_name)
    assert act["before"] == {"version": 0, "former_until": None}
    assert act["after"]["version"] == 1
    assert datetime.fromisoformat(act["after"]["former_until"]) == datetime.fromisoformat(made["former_until"])
    assert made["secret"].removeprefix("whsec_").encode() not in answer.body


async def test_every_node_hears_of_a_rotation(api: Api) -> None:
    await api.serving.obey()
    assert api.tenant not in api.serving.rules.current.signing

    await api.post(f"{PATH}/rotate")
    await api.serving.obey()

    assert api.serving.rules.current.signing[api.tenant] == 1
