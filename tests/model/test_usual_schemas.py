"""Schemas as people write them are taken, and judge payloads of the usual sizes at once."""

import json
from typing import Any

import pytest

from duetime.model.payload_schema import PayloadSchema

COUNTRIES = [f"{first}{second}" for first in "ABCDEFGHIJKLMNOPQR" for second in "ABCDEFGHIJKLMNOPQ"][:300]
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
E_MAIL = (
    r"^[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$"
)
SEMVER = (
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$"
)
DATE = r"^\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])$"
TEXTS = {"uuid": UUID, "mail": E_MAIL, "version": SEMVER, "date": DATE, "short": "^.{1,255}$", "long": "^.{1,2000}$"}

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/order.json",
    "type": "object",
    "required": ["id", "customer", "items"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "pattern": UUID},
        "placed": {"type": "string", "format": "date-time"},
        "customer": {"$ref": "/customer"},
        "billing": {"$ref": "#/$defs/address"},
        "shipping": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/address"}]},
        "items": {"type": "array", "minItems": 1, "maxItems": 500, "uniqueItems": True, "items": {"$ref": "#item"}},
        "total": {"type": "number", "minimum": 0, "multipleOf": 0.01},
        "tags": {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
    },
    "$defs": {
        "customer": {
            "$id": "/customer",
            "type": "object",
            "properties": {"mail": {"type": "string", "pattern": E_MAIL}, "name": {"maxLength": 255}},
        },
        "address": {
            "type": "object",
            "required": ["street", "country"],
            "properties": {"street": {"pattern": "^.{1,255}$"}, "country": {"enum": COUNTRIES}},
            "if": {"properties": {"country": {"const": "AA"}}},
            "then": {"required": ["state"]},
        },
        "item": {
            "$anchor": "item",
            "type": "object",
            "properties": {"sku": {"pattern": "^[A-Z]{3}-[0-9]{6}$"}, "count": {"type": "integer", "minimum": 1}},
        },
    },
}
MESSAGE = {
    "$schema": DRAFT_7,
    "oneOf": [
        {
            "properties": {"kind": {"const": f"kind{number}"}, "body": {"$ref": "#/definitions/body"}},
            "required": ["kind"],
        }
        for number in range(40)
    ],
    "definitions": {"body": {"type": "object", "properties": {"to": {"format": "email"}, "at": {"format": "date"}}}},
}
TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "unevaluatedProperties": False,
}
ADDRESS = {"street": "High Street 7", "country": "AB"}
ITEMS = [{"sku": f"ABC-{number:06}", "count": number + 1} for number in range(200)]
RIGHT: dict[str, tuple[Any, Any]] = {
    "an order": (
        ORDER,
        {
            "id": "0f8fad5b-d9cb-469f-a165-70867728950e",
            "placed": "2026-01-01T00:00:00Z",
            "customer": {"mail": "ada@example.com", "name": "Ada"},
            "billing": ADDRESS,
            "shipping": None,
            "items": ITEMS,
            "total": 12.5,
            "tags": {"x-a": "b"},
        },
    ),
    "one of many kinds": (MESSAGE, {"kind": "kind7", "body": {"to": "ada@example.com", "at": "2026-01-01"}}),
    "a tree": (TREE, {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}] * 30}] * 30}),
    "countries": ({"items": {"enum": COUNTRIES}}, COUNTRIES * 20),
    "texts": (
        {"properties": {name: {"type": "string", "pattern": pattern} for name, pattern in TEXTS.items()}},
        {"uuid": "0f8fad5b-d9cb-469f-a165-70867728950e", "mail": "ada@example.com", "version": "1.2.3-rc.1+build.5"}
        | {"date": "2026-01-31", "short": "é" * 255, "long": "a" * 2000},
    ),
    "mails": ({"items": {"pattern": E_MAIL}}, [f"somebody{number}@example.com" for number in range(500)]),
    "numbers": ({"items": {"type": "integer", "minimum": 0, "maximum": 10**12}}, list(range(10_000))),
    "nothing": (True, [1, {"a": None}]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_usual_schema_is_taken_and_judges(name: str) -> None:
    stored, payload = RIGHT[name]
    schema, size = PayloadSchema(json.dumps(stored).encode()), len(json.dumps(payload))

    assert schema.is_valid(payload, size)
    assert schema.held_bytes < 8 * 1024 * 1024


@pytest.mark.parametrize("schema", [ORDER, TREE, {"items": {"enum": COUNTRIES}}])
def test_a_small_payload_is_judged_at_once(schema: Any) -> None:
    assert PayloadSchema(json.dumps(schema).encode()).is_light(128)


def test_what_is_wrong_with_a_usual_payload_is_told_where() -> None:
    order, payload = RIGHT["an order"]
    schema = PayloadSchema(json.dumps(order).encode())
    wrong = payload | {"items": [{"sku": "abc", "count": 0}], "billing": {"street": ""}}

    paths = {path for path, _ in schema.judge(wrong, len(json.dumps(wrong)))}

    assert paths == {".items[0].sku", ".items[0].count", ".billing", ".billing.street"}
    kinds = PayloadSchema(json.dumps(MESSAGE).encode())
    assert kinds.judge({"kind": "no"}, 13)[0][1].startswith('{"kind":"no"} is not valid under any')
