"""What answers of many kinds have: problem details, and pages of lists."""

from typing import Generic, TypeVar

import msgspec

from duetime.sdk.errors import FieldError

T = TypeVar("T")


class Problem(msgspec.Struct, frozen=True):
    """Problem details (RFC 9457), as every error is told."""

    title: str = ""
    status: int = 0
    code: str = ""
    detail: str = ""
    errors: tuple[FieldError, ...] = ()
    #: Seconds after which to try again, of an item of a batch.
    retry_after: float | None = None
    request_id: str = ""
    #: Of a search that is not complete: the cursor to go on from.
    next: str | None = None


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list; `next` leads to the page after it."""

    items: list[T]
    next: str | None = None
