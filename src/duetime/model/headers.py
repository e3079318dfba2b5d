"""Which headers of a target are secret, and what readers see in place of their values.  Pure data, no I/O."""

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from duetime.model.task import Target

#: What replaces a secret value wherever it is read.
HIDDEN = "***"
#: Headers that always hold credentials, in lower case; a target may name more.
SECRET_HEADERS = frozenset(
    {
        "access-token",
        "api-key",
        "apikey",
        "api-token",
        "authorization",
        "circle-token",
        "cookie",
        "dd-api-key",
        "dd-application-key",
        "ocp-apim-subscription-key",
        "private-token",
        "proxy-authorization",
        "x-access-token",
        "x-amz-security-token",
        "x-api-key",
        "x-api-secret",
        "x-api-token",
        "x-apikey",
        "x-auth",
        "x-auth-key",
        "x-auth-token",
        "x-authorization",
        "x-functions-key",
        "x-gitlab-token",
        "x-goog-api-key",
        "x-secret",
        "x-session-token",
        "x-shopify-access-token",
        "x-token",
        "x-vault-token",
        "x-webhook-secret",
    }
)
_HIDDEN_JSON = Raw(msgspec.json.encode(HIDDEN))
_decode_parts = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


def secret_names(names: Iterable[str], marked: Iterable[str] = ()) -> list[str]:
    """The secret names among these: secret by themselves, or because they are marked, in any case."""
    wanted = {name.lower() for name in marked}
    return [name for name in names if name.lower() in SECRET_HEADERS or name.lower() in wanted]


def shown_headers(target: Target) -> tuple[dict[str, str], list[str]]:
    """The headers as readers see them, and which of them are secret."""
    if not target.headers and not target.secret_headers:
        return {}, []
    # Tasks that are older than the encryption have their secrets among the plain headers.
    secret = [*secret_names(target.headers), *target.secret_headers]
    return {**target.headers, **dict.fromkeys(secret, HIDDEN)}, sorted(secret)


def redact_body(body: bytes) -> bytes:
    """A task's body as JSON, with what may be secret in its target hidden. Raises what a decoder raises.

    Everything else, as the payload, stays byte for byte as it is.
    """
    parts = _decode_mapping(body)
    if parts is None or "target" not in parts:
        return body
    target = _decode_mapping(bytes(parts["target"]))
    if target is None or "headers" not in target:
        return body
    headers = _decode_mapping(bytes(target["headers"]))
    if headers is None:
        target["headers"] = _HIDDEN_JSON
    else:
        marked = _texts(target.get("secret_headers"))
        hidden = headers if marked is None else secret_names(headers, marked)
        target["headers"] = Raw(_encode({**headers, **dict.fromkeys(hidden, _HIDDEN_JSON)}))
    return _encode({**parts, "target": target})


def _decode_mapping(text: bytes) -> dict[str, Raw] | None:
    try:
        return _decode_parts(text)
    except msgspec.ValidationError:
        # It is JSON, but not an object.
        return None


def _texts(raw: Raw | None) -> list[str] | None:
    """The names that are marked as secret; None: the body does not tell."""
    try:
        return [] if raw is None else msgspec.json.decode(raw, type=list[str])
    except msgspec.ValidationError:
        return None
