"""Judge payloads and results: JSON that any reader of ours can decode, kept byte by byte."""

from collections.abc import Sequence

import msgspec

from duetime.errors import FieldError, InvalidInput, TooLarge
from duetime.model.task import MAX_PAYLOAD_BYTES

MAX_DEPTH = 100

decode_any = msgspec.json.Decoder().decode


def read_payload(payload: msgspec.Raw, name: str = "payload", limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """The bytes of a JSON value that any reader of ours can decode."""
    data = bytes(payload)
    if not data:
        return b"null"
    if len(data) > limit:
        raise TooLarge(
            f"{name} has {len(data)} bytes; at most {limit} are allowed, keep bigger things elsewhere and send a link",
            (FieldError(name, f"at most {limit} bytes"),),
        )
    # The typed decoder only skips over a raw value: numbers that no float or integer can
    # hold pass it, and would fail whoever reads the task later.
    try:
        value = decode_any(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput.at(name, f"is not JSON that can be read: {error}") from error
    # Each level takes two characters.
    if len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise InvalidInput.at(name, f"is nested more than {MAX_DEPTH} deep")
    return data


def are_readable(payloads: Sequence[bytes]) -> bool:
    """Whether `read_payload` would take each; asked at once, because a call for each takes as long as the answer."""
    try:
        decode_any(b"[%s]" % b",".join(payloads))
    except (msgspec.DecodeError, RecursionError):
        return False
    return not [
        data
        for data in payloads
        if len(data) > 2 * MAX_DEPTH
        and (len(data) > MAX_PAYLOAD_BYTES or data.count(b"[") + data.count(b"{") > MAX_DEPTH)
    ]


def _depth(value: object) -> int:
    deepest, left = 0, [(value, 1)]
    while left:
        each, depth = left.pop()
        if isinstance(each, dict | list):
            deepest = max(deepest, depth)
            left.extend((inner, depth + 1) for inner in (each.values() if isinstance(each, dict) else each))
    return deepest
