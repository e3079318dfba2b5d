"""Errors as problem details (RFC 9457), and wrong input as paths and messages.

Every error of ours has a stable `code`; a program reads that, a person reads
`detail` and `errors`.  What we did not expect is a 500 whose request id stands
in the log, and nothing of its inside.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.api.bodies.errors import Found, field_error, find_errors
from duetime.errors import DuetimeError, FieldError, InvalidInput, MalformedBody, SearchIncomplete

#: Of the items of one answer together.
MAX_ITEM_ERRORS = 5_000


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
    """Problems of the items of one answer, which is not too large however many there are.

    Beyond so many errors in all, an item names its first one alone; its detail has some more.
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
    """Turn what the JSON decoder said into an error of ours; `kind` is what the body was read as.

    `judge` looks at what is right of the body, and raises what it finds wrong.
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
        # A value within it is JSON that nobody can decode.
        found = Found([], None)
    errors = found.errors or [field_error(str(error), kind)]
    if judge is not None and found.repaired is not None:
        try:
            judge(found.repaired)
        except msgspec.DecodeError:
            pass  # What is left is not right either, by a rule about all of it; that has been said.
        except DuetimeError as deeper:
            known = found.errors
            errors += [
                each for each in deeper.errors if not (_is_named(each, known) or _is_judged_in_part(each, known))
            ]
    return InvalidInput.all(errors)


def wrong_with_each(*checks: Callable[[], object]) -> list[FieldError]:
    """What all of these checks find wrong."""
    errors: list[FieldError] = []
    for check in checks:
        try:
            check()
        except DuetimeError as error:
            errors += error.errors or (FieldError("", error.detail),)
    return errors


def with_more(error: InvalidInput, judge: Callable[[], object]) -> InvalidInput:
    """An error, and what else is found wrong."""
    known = list(error.errors)
    try:
        judge()
    except DuetimeError as deeper:
        more = [each for each in deeper.errors if not _is_named(each, known)]
        # Alone it keeps its own code.
        return type(error).all(known + more) if more else error
    return error


def _is_named(error: FieldError, known: list[FieldError]) -> bool:
    """What is said of a field that is wrong anyway, or of what stands in for it, is not news."""
    return any(error.path == each.path or error.path.startswith((f"{each.path}.", f"{each.path}[")) for each in known)


def _is_judged_in_part(error: FieldError, known: list[FieldError]) -> bool:
    """Nor is what is said of an object without the fields that are wrong."""
    return any(each.path.startswith(f"{error.path}.") for each in known)
