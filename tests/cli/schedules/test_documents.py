"""YAML, TOML and JSON as plain values: nothing is guessed, nothing is lost unseen."""

import pytest

from duetime.cli.schedules import documents
from duetime.cli.schedules.documents import read_documents
from duetime.errors import UsageError


def value_of(name: str, text: str) -> object:
    (document,) = read_documents(name, text.encode())
    return document.value


def complaint_of(name: str, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        read_documents(name, text.encode())
    return caught.value.detail


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: on", "on"),
        ("a: yes", "yes"),
        ("a: true", True),
        ("a: 2027-12-24", "2027-12-24"),
        ("a: 2027-12-24T09:00:00+01:00", "2027-12-24T09:00:00+01:00"),
        ("a: 1:30", "1:30"),
        ("a: 010", "010"),
        ("a: 0x1f", 31),
        ("a: -7", -7),
        ("a: 1.5", 1.5),
        ("a: 1e3", 1000.0),
        ("a: ~", None),
        ("a:", None),
        ("a: '5'", "5"),
        ("a: 15m", "15m"),
        ("a: 5 * * * *", "5 * * * *"),
    ],
)
def test_yaml_is_read_as_version_1_2(text: str, value: object) -> None:
    assert value_of("a.yaml", text) == {"a": value}


def test_anchors_and_merges_are_followed_and_own_keys_count() -> None:
    text = "base: &base {x: 1, y: 2}\nmore: &more {y: 3, z: 4}\nhere:\n  <<: [*base, *more]\n  x: 9\n"

    assert value_of("a.yaml", text) == {
        "base": {"x": 1, "y": 2},
        "more": {"y": 3, "z": 4},
        "here": {"x": 9, "y": 2, "z": 4},
    }


def test_several_documents_and_a_byte_order_mark_are_read() -> None:
    documents = read_documents("a.yaml", b"\xef\xbb\xbfa: 1\n---\nb: 2\n---\n")

    assert [each.value for each in documents] == [{"a": 1}, {"b": 2}, None]


def test_toml_dates_become_text() -> None:
    text = 'a = 2027-12-24\nb = 2027-12-24T09:00:00+01:00\nc = "x"\n'

    assert value_of("a.toml", text) == {"a": "2027-12-24", "b": "2027-12-24T09:00:00+01:00", "c": "x"}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.yaml", "a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "a.yaml line 5: b.c is given twice"),
        ("a.yaml", "a: [1\n", "a.yaml line 2: it is not YAML"),
        ("a.yaml", "a: b: c\n", "a.yaml line 1: it is not YAML"),
        ("a.yaml", "a: *nothing\n", "a.yaml line 1: it is not YAML"),
        ("a.yaml", "1: x\n", "a.yaml line 1: the key 1 is not text: put it in quotes"),
        ("a.yaml", "a: .nan\n", "line 1: .nan is not a number that JSON can hold"),
        ("a.yaml", "a: !!python/object:os.system x\n", "line 1: the tag !!python/object:os.system is not known here"),
        ("a.yaml", "a: !secret x\n", "line 1: the tag !secret is not known here"),
        ("a.yaml", "a: &a [*a]\n", "line 1: an alias stands inside of what it stands for"),
        ("a.yaml", "a: \x07\n", "a.yaml: it is not YAML"),
        ("a.toml", "a = 1\na = 2\n", "a.toml: it is not TOML: cannot overwrite a value (at line 2"),
        ("a.toml", "a = nan\n", "a.toml: a is not a number that JSON can hold"),
        ("a.json", '{"a": 1, "a": 2}', "a.json: the key a is given twice"),
        ("a.json", '{"a": 1,', "a.json: it is not JSON"),
        ("a.json", '{"a": NaN}', "a.json: a is not a number that JSON can hold"),
        ("a.json", '{"a": ["\\ud800"]}', "a.json: a[0] has characters that are not text"),
        ("a.yaml", 'a: "\\ud800"', "a.yaml line 1: it is not YAML"),
        ("a.yaml", "[" * 5_000, "a.yaml"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(name: str, text: str, sentence: str) -> None:
    said = complaint_of(name, text)

    assert sentence in said
    assert "\n" not in said


def test_aliases_cannot_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_VALUES", 10_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    assert "more than" in complaint_of("a.yaml", "\n".join(lines))


def test_text_that_is_not_utf_8_is_said() -> None:
    with pytest.raises(UsageError, match="it is not UTF-8 text"):
        read_documents("a.yaml", b"a: \xff\n")
