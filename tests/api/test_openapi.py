"""The OpenAPI document: the one in the repository is the one that is served, and it is whole."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from api.client import Api
from duetime.api.openapi import OPERATIONS, build_document, encode_document
from duetime.api.server.http import Request

IN_REPOSITORY = Path(__file__).parents[2] / "openapi.json"


@pytest.mark.asyncio(loop_scope="module")
async def test_the_repository_has_what_the_server_serves(api: Api) -> None:
    served = await api.get("/openapi.json", headers={"Authorization": ""})

    assert served.body == IN_REPOSITORY.read_bytes(), "run: python -m duetime.api.openapi openapi.json"


@pytest.mark.asyncio(loop_scope="module")
async def test_of_many_who_ask_for_the_document_one_is_answered_in_a_round(api: Api) -> None:
    route = api.serving.app._router.find({"path": "/openapi.json"})[0]["GET"]
    rounds, answered_in = 0, []

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def ask() -> None:
        # It asks nothing of the request.
        await route.handler(cast(Request, None))
        answered_in.append(rounds)

    counting = asyncio.create_task(count_rounds())
    await asyncio.gather(*(ask() for _ in range(50)))
    counting.cancel()

    assert len(set(answered_in)) == 50


def test_every_reference_leads_somewhere() -> None:
    document = build_document()

    for reference in set(re.findall(r'"\$ref": ?"#/([^"]+)"', encode_document(document).decode())):
        place: Any = document
        for part in reference.split("/"):
            place = place[part]


@pytest.mark.asyncio(loop_scope="module")
async def test_every_operation_has_a_route_and_every_route_an_operation(api: Api) -> None:
    router = api.serving.app._router
    for operation in OPERATIONS:
        path = operation.path.replace("{id}", "x")

        methods, _ = router.find({"path": path, "raw_path": path.encode()})

        assert methods[operation.method].operation is operation


def test_names_of_operations_are_unique() -> None:
    names = [operation.name for operation in OPERATIONS]

    assert len(names) == len(set(names))


def test_every_call_under_v1_needs_a_key() -> None:
    document = json.loads(encode_document(build_document()))

    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert ("security" in operation) == path.startswith("/v1")


def test_what_does_not_exist_yet_is_not_described() -> None:
    text = encode_document(build_document()).decode()

    assert not re.search(r'"(blocked|dependency)"', text)
    assert '"scheduled"' in text
