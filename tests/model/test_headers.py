"""Which headers are secret, and bodies without them."""

import json

import pytest

from duetime.model.headers import redact_body, secret_names, shown_headers
from duetime.model.task import Target


def test_secret_headers_are_known_by_name_or_by_mark_whatever_their_case() -> None:
    names = ["AUTHORIZATION", "cookie", "x-api-key", "X-Team", "X-Pass"]

    assert secret_names(names, ["x-pass"]) == ["AUTHORIZATION", "cookie", "x-api-key", "X-Pass"]


def test_what_was_stored_in_plain_is_hidden_too() -> None:
    target = Target("http://a", headers={"Cookie": "old", "X-Team": "core"}, secret_headers={"X-Pass": "sealed"})

    assert shown_headers(target) == ({"Cookie": "***", "X-Team": "core", "X-Pass": "***"}, ["Cookie", "X-Pass"])


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ({"headers": {"cookie": "s", "a": "b"}}, {"headers": {"cookie": "***", "a": "b"}}),
        (
            {"headers": {"A": "s"}, "secret_headers": ["a"]},
            {"headers": {"A": "***"}, "secret_headers": ["a"]},
        ),
        # What nobody can make sense of is hidden whole.
        ({"headers": ["Cookie: s"]}, {"headers": "***"}),
        ({"headers": {"A": "s"}, "secret_headers": "A"}, {"headers": {"A": "***"}, "secret_headers": "A"}),
        ("http://a", "http://a"),
        ({"url": "http://a"}, {"url": "http://a"}),
    ],
)
def test_a_body_is_shown_without_its_secrets(target: object, shown: object) -> None:
    body = json.dumps({"type": "a", "target": target}).encode()

    assert json.loads(redact_body(body)) == {"type": "a", "target": shown}


def test_the_payload_of_a_redacted_body_stays_as_it_was_written() -> None:
    body = b'{"payload": {"x": 1.10,  "y": 123456789012345678901234567890}, "target": {"headers": {"Cookie": "s"}}}'

    assert b'{"x": 1.10,  "y": 123456789012345678901234567890}' in redact_body(body)
    assert redact_body(b"[1]") == b"[1]"
