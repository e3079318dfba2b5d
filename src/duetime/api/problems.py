"""Errors as problem details (RFC 9457), and wrong input as paths and messages.

Every error of duetime has a stable `code`; programs read that, people read `detail`
and `errors`.  An unexpected exception is a 500 whose request id is in the log, and the
answer says nothing of its cause.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.api.bodies.errors import Found, field_error, find_errors
from duetime.errors import DuetimeError, FieldError, InvalidInput, MalformedBody, SearchIncomplete

#: The most errors of all items of one answer together.
MAX_ITEM_ERRORS = 5_000


class Problem(msgspec.Struct, frozen=True):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError] = []
    #: For an item of a batch, which has no headers.
    retry_after: Annotated[
        float | UnsetType, Meta(description="Try again after this many seconds, where that may help.")
    ] = UNSET
    request_id: Annotated[
        str | UnsetType, Meta(description="The header `X-Request-Id`. Absent in the items of a batch.")
    ] = UNSET
    next: Annotated[
        str | UnsetType, Meta(description="With the code `search_incomplete`: the cursor to continue from.")
    ] = UNSET


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


class ItemProblems:
    """Problems of the items of one answer, bounded in size whatever the number of items.

    Once the answer has this many errors, an item names only its first error; its detail contains some more.
    """

    def __init__(self, most: int = MAX_ITEM_ERRORS) -> None:
        self._left = most

    def of(self, error: DuetimeError) -> Problem:
        problem = problem_of(error)
        if len(problem.errors) > max(1, self._left):
            problem = msgspec.structs.replace(problem, errors=problem.errors[:1])
        self._left -= len(problem.errors)
        return problem


def read_decode_error(
    error: Exception, body: bytes, kind: Any = None, judge: Callable[[bytes], object] | None = None
) -> DuetimeError:
    """Turn an error of the JSON decoder into an error of duetime; `kind` is the type that the body was read as.

    `judge` checks the right parts of the body, and raises what it finds wrong.
    """
    if isinstance(error, msgspec.ValidationError):
        # The decoder stops at the first wrong value; what follows may not be JSON at all.
        try:
            _decode_raw(body)
        except (msgspec.DecodeError, RecursionError) as deeper:
            error = deeper
    match error:
        case msgspec.ValidationError():
            return _invalid(error, body, kind, judge)
        case RecursionError():
            return MalformedBody("the JSON is nested too deeply")
        case UnicodeError():
            return MalformedBody("the body is not UTF-8")
        case _:
            return MalformedBody(f"the body is not valid JSON: {error}")


def _invalid(
    error: msgspec.ValidationError, body: bytes, kind: Any, judge: Callable[[bytes], object] | None
) -> InvalidInput:
    try:
        found = find_errors(body, kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        # A value inside is JSON that cannot be decoded.
        found = Found([], None)
    errors = found.errors or [field_error(str(error), kind)]
    if judge is not None and found.repaired is not None:
        try:
            judge(found.repaired)
        except msgspec.DecodeError:
            pass  # The rest breaks a rule about the whole, which was already reported.
        except DuetimeError as deeper:
            known = found.errors
            errors += [
                each for each in deeper.errors if not (_is_named(each, known) or _is_judged_in_part(each, known))
            ]
    return InvalidInput.all(errors)


def wrong_with_each(*checks: Callable[[], object]) -> list[FieldError]:
    """The errors that all of these checks find."""
    errors: list[FieldError] = []
    for check in checks:
        try:
            check()
        except DuetimeError as error:
            errors += error.errors or (FieldError("", error.detail),)
    return errors


def with_more(error: InvalidInput, judge: Callable[[], object]) -> InvalidInput:
    """The error together with what else is found wrong."""
    known = list(error.errors)
    try:
        judge()
    except DuetimeError as deeper:
        more = [each for each in deeper.errors if not _is_named(each, known)]
        # An error alone keeps its own code.
        return type(error).all(known + more) if more else error
    return error


def _is_named(error: FieldError, known: list[FieldError]) -> bool:
    """Whether the error is about a field that is known to be wrong, or about its replacement."""
    return any(error.path == each.path or error.path.startswith((f"{each.path}.", f"{each.path}[")) for each in known)


def _is_judged_in_part(error: FieldError, known: list[FieldError]) -> bool:
    """Whether the error is about an object from which the wrong fields were removed."""
    return any(each.path.startswith(f"{error.path}.") for each in known)
