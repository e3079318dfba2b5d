"""Errors as problem details (RFC 9457), and wrong input as paths and messages.

Every error of ours has a stable `code`; a program reads that, a person reads
`detail` and `errors`.  What we did not expect is a 500 whose request id stands
in the log, and nothing of its inside.
"""

import re
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.api.right_values import fields_at, words_at
from duetime.errors import DuetimeError, FieldError, InvalidInput, MalformedBody, SearchIncomplete


class Problem(msgspec.Struct, frozen=True):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError] = []
    #: Of an item of a batch, which has no headers.
    retry_after: Annotated[
        float | UnsetType, Meta(description="Seconds after which to try again, where that may help.")
    ] = UNSET
    request_id: Annotated[
        str | UnsetType, Meta(description="The header `X-Request-Id`; an item of a batch has none of its own.")
    ] = UNSET
    next: Annotated[
        str | UnsetType, Meta(description="With the code `search_incomplete`: the cursor to go on from.")
    ] = UNSET


_AT = re.compile(r"^(?P<message>.*?)(?: - at `(?:key in )?\$\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_NO_WORD = "Invalid enum value "
_SHOWN_NAME = 80
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def problem_of(error: DuetimeError, request_id: bytes | None = None) -> Problem:
    return Problem(
        type=f"urn:duetime:problem:{error.code}",
        title=error.title,
        status=error.status,
        code=error.code,
        detail=error.detail,
        errors=list(error.errors),
        retry_after=UNSET if error.retry_after is None else error.retry_after,
        request_id=UNSET if request_id is None else request_id.decode(),
        next=error.next if isinstance(error, SearchIncomplete) else UNSET,
    )


def read_decode_error(error: Exception, body: bytes, kind: Any = None) -> DuetimeError:
    """Turn what the JSON decoder said into an error of ours; `kind` is what the body was read as."""
    if isinstance(error, msgspec.ValidationError):
        # The decoder stops at the first wrong value; what follows may not be JSON at all.
        try:
            _decode_raw(body)
        except (msgspec.DecodeError, RecursionError) as deeper:
            error = deeper
    match error:
        case msgspec.ValidationError():
            return _invalid(str(error), kind)
        case RecursionError():
            return MalformedBody("the JSON is nested too deeply")
        case UnicodeError():
            return MalformedBody("the body is not UTF-8")
        case _:
            return MalformedBody(f"the body is not valid JSON: {error}")


def _invalid(text: str, kind: Any) -> InvalidInput:
    found = _AT.match(text)
    assert found is not None
    message, path = found["message"], found["path"] or ""
    if unknown := _UNKNOWN.fullmatch(message):
        known = fields_at(kind, path)
        hint = f"; there are: {', '.join(known)}" if known else ""
        return InvalidInput.at(_join(path, unknown["name"][:_SHOWN_NAME]), f"there is no such field{hint}")
    if missing := _MISSING.fullmatch(message):
        return InvalidInput.at(_join(path, missing["name"]), "is required")
    if message.startswith(_NO_WORD) and (words := words_at(kind, path)):
        message = f"{message.removeprefix(_NO_WORD)} is none of: {', '.join(words)}"
    message = message[:1].lower() + message[1:]
    return InvalidInput.at(path, message) if path else InvalidInput(message, (FieldError("", message),))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
