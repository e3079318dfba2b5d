"""The cost of a schema bounds the work of a judgement: more checks than it says are never made."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import far
from duetime.model.payload_schema import MAX_COST, PayloadSchema, SchemaError
from duetime.model.schema_weight import EndlessError, weigh

EXAMPLES = far(300, 20_000)
NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=20,
)


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "object", "array"]),
            "properties": by_name,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "[ac]"]), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "items": inner,
            "prefixItems": some,
            "contains": inner,
            "allOf": some,
            "anyOf": some,
            "oneOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": by_name,
            "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=json.dumps),
        },
    )


# What refers to the whole does so for values below, as everything else would be endless.
SCHEMAS = st.recursive(
    st.sampled_from([True, {}, {"items": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}, {"minLength": 1}]),
    schemas_of,
    max_leaves=12,
)


def meetings(root: Any, schema: Any, value: Any) -> Iterator[None]:
    """Every meeting of a subschema and a value, if nothing is left out because the result is known before."""
    yield None
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield from meetings(root, root, value)
    for name in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(name, []):
            yield from meetings(root, part, value)
    for name in ("not", "if", "then", "else"):
        if name in schema:
            yield from meetings(root, schema[name], value)
    for part in schema.get("dependentSchemas", {}).values():
        yield from meetings(root, part, value)
    if isinstance(value, dict):
        for name, inner in value.items():
            if "propertyNames" in schema:
                yield from meetings(root, schema["propertyNames"], name)
            for part in find_parts(schema, name):
                yield from meetings(root, part, inner)
    elif isinstance(value, list):
        prefix = schema.get("prefixItems", [])
        for place, inner in enumerate(value):
            if place < len(prefix):
                yield from meetings(root, prefix[place], inner)
            elif "items" in schema:
                yield from meetings(root, schema["items"], inner)
            if "contains" in schema:
                yield from meetings(root, schema["contains"], inner)


def find_parts(schema: Any, name: str) -> Iterator[Any]:
    """The subschemas for a property."""
    found = [part for pattern, part in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
    if name in schema.get("properties", {}):
        found.append(schema["properties"][name])
    if not found and "additionalProperties" in schema:
        found.append(schema["additionalProperties"])
    yield from found


@settings(max_examples=EXAMPLES, deadline=None)
@given(SCHEMAS, VALUES)
def test_no_judgement_makes_more_checks_than_the_cost_says(schema: Any, value: Any) -> None:
    weight = weigh(schema)
    ns, checks, _ = weight.cost_of(value)

    count = sum(1 for _ in meetings(schema, schema, value))

    assert count <= checks
    # Each takes 5 ns and more, as it was measured.
    assert 20 * count <= ns


@settings(max_examples=EXAMPLES, deadline=None)
@given(SCHEMAS, VALUES)
def test_the_bound_for_all_payloads_of_a_size_holds_for_each(schema: Any, value: Any) -> None:
    weight = weigh(schema)

    assert weight.cost_of(value)[0] <= weight.bound_of(len(json.dumps(value, separators=(",", ":"))))


@settings(max_examples=EXAMPLES, deadline=None)
@given(SCHEMAS, VALUES)
def test_what_is_taken_judges_and_tells_as_the_library_does(schema: Any, value: Any) -> None:
    try:
        taken = PayloadSchema(json.dumps(schema).encode())
    except SchemaError:
        assert weigh(schema).small_ns > MAX_COST
        return
    size = len(json.dumps(value))

    assert taken.is_valid(value, size) == (taken.judge(value, size) == [])


LISTS = [[number] for number in range(3_000)]


@pytest.mark.parametrize(
    ("light", "dear"),
    [
        ({"enum": list(range(3_000))}, {"enum": [number + 0.5 for number in range(3_000)]}),
        ({"enum": [f"v{number}" for number in range(3_000)]}, {"enum": LISTS}),
        ({"enum": [[1]]}, {"const": LISTS}),
        ({"pattern": "^[a-z]{1,50}$"}, {"pattern": "[a-z]*[a-z]{50}[xy]"}),
        ({"items": {"type": "integer"}}, {"items": {"type": "integer"}, "uniqueItems": True}),
        ({"properties": {"a": {}}}, {"patternProperties": {"a": {}}}),
        ({"required": ["a"]}, {"required": [f"a{number}" for number in range(500)]}),
        ({"type": "object"}, {"propertyNames": {"pattern": "^[a-z]+$"}}),
        ({"type": "string"}, {"type": "string", "format": "uri"}),
        ({"minimum": 1}, {"multipleOf": 0.01}),
    ],
)
def test_each_keyword_counts_by_what_it_does(light: Any, dear: Any) -> None:
    payload = ["text" * 20, {"a" * 50: [1, 2, 3]}, 7, 8, 9]
    all_light, all_dear = (weigh({"items": each, **each}).cost_of(payload)[0] for each in (light, dear))

    assert all_dear > 1.5 * all_light


def test_numbers_of_many_digits_count_by_their_digits_and_in_pairs_where_all_must_differ() -> None:
    numbers = [10**40 + number for number in range(500)]
    unique = weigh({"uniqueItems": True})

    assert unique.cost_of(numbers)[0] > 500 * 500 * 400
    assert unique.cost_of(list(range(500)))[0] < 500 * 1_000
    step = weigh({"multipleOf": 0.01})
    assert step.cost_of(10**4_000)[0] > 1_000 * step.cost_of(1)[0]
    assert step.cost_of(1e300)[0] > 5 * step.cost_of(1.5)[0]
    assert unique.cost_of([10**40] * 1_500)[0] > MAX_COST


def test_a_schema_that_is_unevaluated_in_several_layers_multiplies() -> None:
    def layers(count: int) -> Any:
        schema: Any = {"properties": {"a": True}}
        for _ in range(count):
            schema = {"anyOf": [schema, {"type": "array"}], "unevaluatedProperties": {"type": "integer"}}
        return schema

    assert weigh(layers(6)).levels[0].ns > 3 * weigh(layers(5)).levels[0].ns * 0.9


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    ],
)
def test_what_refers_to_itself_for_the_same_value_is_refused(schema: Any) -> None:
    with pytest.raises(EndlessError):
        weigh(schema)


def test_a_reference_by_an_address_means_what_has_it() -> None:
    parts = {"$id": "/part", "type": "object", "properties": {"x": {"enum": [[number] for number in range(100)]}}}
    for reference in ("/part", "https://example.com/part", "part"):
        schema = {"$id": "https://example.com/all", "properties": {"a": {"$ref": reference}}, "$defs": {"b": parts}}

        assert weigh(schema).levels[2].ns > 100 * 240
