"""What a schema can cost is known before anything is judged, and what is usual is not refused."""

import json
from typing import Any

import pytest

from duetime.model.payload_schema import MAX_COST, PayloadSchema, SchemaError
from duetime.model.schema_weight import weigh

ITSELF = {"$ref": "#"}
TWO_STEPS = {"properties": {"a": {"properties": {"b": {"allOf": [ITSELF, ITSELF]}}}}}


def compile_schema(schema: Any) -> PayloadSchema:
    return PayloadSchema(json.dumps(schema).encode())


def is_valid(schema: PayloadSchema, payload: Any) -> bool:
    return schema.is_valid(payload, len(json.dumps(payload)))


def errors_of(schema: PayloadSchema, payload: Any) -> list[tuple[str, str]]:
    return schema.judge(payload, len(json.dumps(payload)))


def chain(steps: int, times: int = 2) -> Any:
    """Each definition names the next one so many times."""
    names = {f"d{step}": {"allOf": [{"$ref": f"#/$defs/d{step + 1}"}] * times} for step in range(steps)}
    return {"$ref": "#/$defs/d0", "$defs": {**names, f"d{steps}": {"type": "object"}}}


def nested(depth: int, *names: str) -> Any:
    return 1 if depth == 0 else {name: nested(depth - 1, *names) for name in names}


def test_a_definition_counts_as_often_as_it_is_named() -> None:
    once, twice = weigh(chain(5, times=1)), weigh(chain(5, times=2))

    assert twice.levels[0].checks > 2**5
    assert twice.levels[0].checks > 4 * once.levels[0].checks


def test_names_that_are_looked_up_count() -> None:
    names = {"items": {"dependentRequired": {f"a{n}": ["b"] for n in range(100)}, "required": ["a"]}}

    assert weigh(names).levels[1].ns > 100 * 31


@pytest.mark.parametrize("steps", [20, 600])
def test_references_that_multiply_are_refused(steps: int) -> None:
    with pytest.raises(SchemaError, match=r"references|too deeply"):
        compile_schema(chain(steps))


@pytest.mark.parametrize(
    ("schema", "branching"),
    [
        ({"items": ITSELF}, 1),
        ({"properties": {"left": ITSELF, "right": ITSELF}}, 1),
        ({"properties": {"next": {"anyOf": [{"type": "null"}, ITSELF]}}}, 1),
        ({"properties": {"a": ITSELF}, "additionalProperties": ITSELF}, 1),
        ({"properties": {"a": {"anyOf": [ITSELF, ITSELF]}}}, 2),
        ({"anyOf": [{"properties": {"a": ITSELF}}, {"properties": {"a": ITSELF}}]}, 2),
        ({"patternProperties": {"a": ITSELF, "b": ITSELF, "c": ITSELF}}, 3),
        (TWO_STEPS, 2),
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
    levels = weigh(schema).levels

    # In one of the forms it takes two levels to come back to itself.
    steps = 2 if schema == TWO_STEPS else 1
    last = len(levels) - 1
    assert round(levels[last].ns / levels[last - steps].ns) == branching


def test_a_payload_that_doubles_with_each_level_is_refused_unjudged_and_a_shallow_one_is_judged() -> None:
    schema = compile_schema({"type": ["object", "integer"], "additionalProperties": {"anyOf": [ITSELF, ITSELF]}})

    assert is_valid(schema, nested(5, "a"))
    assert not is_valid(schema, nested(90, "a"))
    assert errors_of(schema, nested(90, "a"))[0][1].startswith("is too large to be judged")


def test_a_tree_and_a_large_flat_payload_are_judged() -> None:
    tree = compile_schema({"type": ["object", "integer"], "properties": {"left": ITSELF, "right": ITSELF}})
    table = compile_schema({"items": {"properties": {f"p{n}": {"type": "string"} for n in range(20)}}})
    rows: list[Any] = [{f"p{n}": "text" for n in range(20)} for _ in range(150)]

    assert is_valid(tree, nested(10, "left", "right"))
    assert is_valid(table, rows)
    rows[149]["p19"] = 7
    assert errors_of(table, rows) == [("[149].p19", '7 is not of type "string"')]


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

    assert weigh(schema).small_ns < 100_000
    assert is_valid(compile_schema(schema), nested(6, "p1", "p2"))


def test_of_many_alternatives_for_many_values_no_error_is_made() -> None:
    schema = compile_schema({"items": {"anyOf": [{"const": number} for number in range(40)]}})
    payload = [-1] * 2_000

    assert weigh({"items": {"anyOf": [{"const": n} for n in range(40)]}}).cost_of(payload)[0] <= MAX_COST
    assert not is_valid(schema, payload)
    assert errors_of(schema, payload) == [("", "does not match the schema of its type, and is too large to say where")]
    assert [path for path, _ in errors_of(schema, [1, -1, 2])] == ["[1]"]
