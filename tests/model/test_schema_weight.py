"""What a schema can cost is known before anything is judged, and what is usual is not refused."""

import json
from typing import Any

import pytest

from duetime.model.payload_schema import MAX_COST, PayloadSchema, SchemaError
from duetime.model.schema_weight import weigh

ITSELF = {"$ref": "#"}


def compile_schema(schema: Any) -> PayloadSchema:
    return PayloadSchema(json.dumps(schema).encode())


def chain(steps: int, times: int = 2) -> Any:
    """Each definition names the next one so many times."""
    names = {f"d{step}": {"allOf": [{"$ref": f"#/$defs/d{step + 1}"}] * times} for step in range(steps)}
    return {"$ref": "#/$defs/d0", "$defs": {**names, f"d{steps}": {"type": "object"}}}


def nested(depth: int, *names: str) -> Any:
    return 1 if depth == 0 else {name: nested(depth - 1, *names) for name in names}


def test_a_definition_counts_as_often_as_it_is_named() -> None:
    once, twice = weigh(chain(5, times=1)), weigh(chain(5, times=2))

    assert once.size == 12
    assert twice.size > 2**6


def test_names_that_are_looked_up_count() -> None:
    assert weigh({"items": {"dependentRequired": {f"a{n}": ["b"] for n in range(100)}, "required": ["a"]}}).size == 103


@pytest.mark.parametrize("steps", [20, 600])
def test_references_that_multiply_are_refused(steps: int) -> None:
    with pytest.raises(SchemaError, match="references"):
        compile_schema(chain(steps))


@pytest.mark.parametrize(
    ("schema", "branching"),
    [
        ({"properties": {"a": {"type": "string"}}}, 1),
        ({"items": ITSELF}, 1),
        ({"properties": {"left": ITSELF, "right": ITSELF}}, 1),
        ({"properties": {"next": {"anyOf": [{"type": "null"}, ITSELF]}}}, 1),
        ({"properties": {"a": ITSELF}, "additionalProperties": ITSELF}, 1),
        ({"properties": {"a": {"anyOf": [ITSELF, ITSELF]}}}, 2),
        ({"anyOf": [{"properties": {"a": ITSELF}}, {"properties": {"a": ITSELF}}]}, 2),
        ({"patternProperties": {"a": ITSELF, "b": ITSELF, "c": ITSELF}}, 3),
        ({"properties": {"a": {"properties": {"b": {"allOf": [ITSELF, ITSELF]}}}}}, 2),
        ({"items": {"$dynamicRef": "#x"}, "contains": {"$dynamicRef": "#x"}, "$dynamicAnchor": "x"}, 2),
        (
            {
                "anyOf": [{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/t"}],
                "$defs": {"t": {"properties": {"a": {"anyOf": [ITSELF, ITSELF]}}}},
            },
            4,
        ),
    ],
)
def test_how_often_a_schema_that_refers_to_itself_meets_one_value(schema: Any, branching: int) -> None:
    assert weigh(schema).branching == branching


def test_a_payload_that_doubles_with_each_level_is_refused_unjudged_and_a_shallow_one_is_judged() -> None:
    schema = compile_schema({"type": ["object", "integer"], "additionalProperties": {"anyOf": [ITSELF, ITSELF]}})

    assert schema.is_valid(nested(5, "a"))
    assert not schema.is_valid(nested(90, "a"))
    assert schema.errors(nested(90, "a"))[0][1].startswith("is too large to be judged")


def test_a_tree_and_a_large_flat_payload_are_judged() -> None:
    tree = compile_schema({"type": ["object", "integer"], "properties": {"left": ITSELF, "right": ITSELF}})
    table = compile_schema({"items": {"properties": {f"p{n}": {"type": "string"} for n in range(20)}}})
    rows: list[Any] = [{f"p{n}": "text" for n in range(20)} for _ in range(150)]

    assert tree.is_valid(nested(10, "left", "right"))
    assert table.is_valid(rows)
    rows[149]["p19"] = 7
    assert table.errors(rows) == [("[149].p19", '7 is not of type "string"')]


def test_many_definitions_that_name_each_other_are_no_more_than_they_are() -> None:
    names = {
        f"d{n}": {
            "properties": {
                f"p{m}": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/d{(n + m) % 60}"}]} for m in range(6)
            }
        }
        for n in range(60)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": names}

    assert weigh(schema).size < 100
    assert compile_schema(schema).is_valid(nested(6, "p1", "p2"))


def test_of_many_alternatives_for_many_values_no_error_is_made() -> None:
    schema = compile_schema({"items": {"anyOf": [{"const": number} for number in range(40)]}})
    payload = [-1] * 2_000

    assert 20_000 < weigh({"items": {"anyOf": [{"const": n} for n in range(40)]}}).cost_of(payload) <= MAX_COST
    assert not schema.is_valid(payload)
    assert schema.errors(payload) == [("", "does not match the schema of its type, and is too large to say where")]
    assert [path for path, _ in schema.errors([1, -1, 2])] == ["[1]"]
