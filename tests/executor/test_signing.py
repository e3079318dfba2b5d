"""Signatures, checked by the public library that targets use."""

import base64
import hmac
import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from duetime.admin.signing import Signing, show_secret
from duetime.executor.signing import sign

SECRET = bytes(range(32))


def signed_headers(body: bytes, secret: bytes = SECRET) -> dict[str, str]:
    timestamp = int(time.time())
    return {
        "webhook-id": "018f",
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, "018f", timestamp, body),
    }


@pytest.mark.parametrize("body", [b"", b"{}", '{"name":"Zoë"}'.encode()])
def test_the_public_library_accepts_a_signature(body: bytes) -> None:
    Webhook(show_secret(SECRET)).verify(body, signed_headers(body), json_parse=False)


def test_the_public_library_gives_back_the_payload() -> None:
    body = b'{"n":1}'

    assert Webhook(show_secret(SECRET)).verify(body, signed_headers(body)) == json.loads(body)


@pytest.mark.parametrize("changed", ["body", "secret", "id", "timestamp"])
def test_the_public_library_refuses_what_was_changed(changed: str) -> None:
    body = b'{"n":1}'
    headers = signed_headers(body, b"other" if changed == "secret" else SECRET)
    if changed == "id":
        headers["webhook-id"] = "018e"
    if changed == "timestamp":
        headers["webhook-timestamp"] = str(int(headers["webhook-timestamp"]) + 1)

    with pytest.raises(WebhookVerificationError):
        Webhook(show_secret(SECRET)).verify(b'{"n":2}' if changed == "body" else body, headers)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_signature_is_hmac_sha256_for_secrets_of_every_length(secret: bytes, body: bytes) -> None:
    expected = hmac.digest(secret, b"018f.7." + body, "sha256")

    assert sign(secret, "018f", 7, body) == "v1," + base64.b64encode(expected).decode()


def test_a_signature_is_the_one_of_the_specification() -> None:
    # The example of the Standard Webhooks specification's reference libraries.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    key = base64.b64decode(secret.removeprefix("whsec_"))

    assert show_secret(key) == secret
    assert (
        sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_a_former_secret_signs_until_its_time_and_not_at_it() -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    signing = Signing(b"new", b"former", until)

    assert signing.former_at(until - timedelta(microseconds=1)) == b"former"
    assert signing.former_at(until) is None
    assert Signing(b"new").former_at(until) is None
