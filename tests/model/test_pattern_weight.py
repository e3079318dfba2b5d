"""What a pattern holds in memory is known before it is compiled."""

import subprocess
import sys

import pytest

from duetime.model.pattern_weight import MAX_PATTERN_BYTES, PatternError, weigh_pattern

#: What is compiled one hundred times, each a little different, and then matched with texts that need many states.
FAMILY = [
    "^[a-z]+@@$",
    "[a-z]{100}@@[xy]",
    "^[a-z]{500}@@$",
    "[ab]*a[ab]{100}@@[xy]",
    "^.{300}@@$",
    ".{50}@@[xy]",
    r"^\p{L}{10}@@$",
    r"[^\p{Lu}]{5}@@[ab]",
    "(?:abcdefgh|ijk){50}@@[xy]",
    "(?:a?){200}@@[xy]",
    r"^\S{1,100}@@$",
    "(?i:[a-z]){60}@@",
    "(?:x|é){50}@@[ab]",
]
MEASURE = """
import random, sys
import jsonschema_rs
from duetime.model.pattern_weight import DFA_BYTES
def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
options = jsonschema_rs.RegexOptions(8 << 20, DFA_BYTES)
chance = random.Random(1)
texts = ["".join(chance.choice(some) for _ in range(2000)) for some in ("ab", "éà漢ab ", "abcxyz0123")]
jsonschema_rs.validator_for({"pattern": "a"}, pattern_options=options).is_valid(texts[0])
before = held()
kept = []
for number in range(100):
    pattern = sys.argv[1].replace("@@", f"{number:03}")
    kept.append(jsonschema_rs.validator_for({"pattern": pattern}, offline=True, pattern_options=options))
for each in kept:
    for text in texts:
        each.is_valid(text)
print(held() - before)
"""


@pytest.mark.parametrize("pattern", FAMILY)
def test_what_a_pattern_holds_is_no_more_than_its_weight(pattern: str) -> None:
    weighed = sum(weigh_pattern(pattern.replace("@@", f"{number:03}")).bytes for number in range(100))

    held = int(subprocess.run([sys.executable, "-c", MEASURE, pattern], check=True, capture_output=True).stdout)

    assert held <= weighed


@pytest.mark.parametrize(
    "pattern",
    [
        "^.{9000}$",
        "((a{100}){100}){1000}",
        r"\p{L}{200}",
        "(?:[^a]{99}){99}",
        "a{1000}{1000}",
        "a{ 9 , 999999 }",
        "(?i)[a-z]{9000}",
        "[[]{99999}",
        r"\[{99999}",
        r"[\]]{99999}",
        r"(?:\u{61}|\x{62}){99999}",
        r"\b{999999}",
        "(?x)a # {2}",
        "(" * 200 + ")" * 200,
    ],
)
def test_a_pattern_that_is_too_large_is_refused_before_it_is_compiled(pattern: str) -> None:
    with pytest.raises(PatternError):
        weigh_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "places"),
    [
        ("^abc$", 1),
        ("^[a-z]{36}$", 1),
        ("^[a-z]{1,255}$", 1),
        ("^[a-z]+@[a-z]+$", 2),
        ("[ab]*a[ab]{100}[xy]", 103),
        ("^a?b?c?$", 3),
        ("x[ab]{50}$", 51),
        ("^(?:a|b)c$", 2),
    ],
)
def test_as_many_places_count_as_can_be_reached_at_once(pattern: str, places: int) -> None:
    found = weigh_pattern(pattern).byte_ns

    assert found == (50 if places <= 3 else 400 + 7 * places)


def test_whatever_the_text_of_a_pattern_is_it_is_weighed() -> None:
    for text in (
        "",
        ")",
        "(",
        "[",
        "]",
        "{",
        "}",
        "\\",
        "a{",
        "a{1",
        "[a",
        "(?",
        "(?<",
        "\\p",
        "\\p{",
        "|",
        "a||b",
        "*",
    ):
        assert 0 < weigh_pattern(text).bytes <= MAX_PATTERN_BYTES
