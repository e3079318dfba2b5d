"""Check payloads and results: JSON that every reader in duetime can decode, kept byte for byte."""

import re
from array import array
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from duetime.errors import FieldError, InvalidInput, TooLarge
from duetime.model.task import MAX_PAYLOAD_BYTES

MAX_DEPTH = 100

_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*"', re.DOTALL)
#: An opening bracket counts one level down, a closing one level up.
_AS_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

decode_any = msgspec.json.Decoder().decode


def read_payload(payload: msgspec.Raw, name: str = "payload", limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """The bytes of a JSON value that every reader in duetime can decode."""
    data = bytes(payload)
    if not data:
        return b"null"
    if len(data) > limit:
        raise TooLarge(
            f"{name} has {len(data)} bytes; at most {limit} are allowed, keep bigger things elsewhere and send a link",
            (FieldError(name, f"at most {limit} bytes"),),
        )
    # The typed decoder skips over a raw value: numbers that no float or integer can hold pass it, and would later fail
    # in the code that reads the task.
    try:
        decode_any(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput.at(name, f"is not JSON that can be read: {error}") from error
    # Each level takes two characters.
    if len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH and is_deep(data):
        raise InvalidInput.at(name, f"is nested more than {MAX_DEPTH} deep")
    return data


def are_readable(payloads: Sequence[bytes]) -> bool:
    """Whether `read_payload` would accept all: one call, because a call for each takes as long as the answer."""
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


def is_deep(data: bytes) -> bool:
    """Whether valid JSON has more levels than allowed.

    Python code does not run for each value: a batch may have a million of them.
    """
    steps = array("b", _STRING.sub(b"", data).translate(_AS_STEPS, _NO_BRACKETS))
    return max(accumulate(steps), default=0) > MAX_DEPTH
