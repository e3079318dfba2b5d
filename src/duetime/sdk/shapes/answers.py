"""What many kinds of answers have in common: problem details, and pages of lists."""

from typing import Generic, TypeVar

import msgspec

from duetime.sdk.errors import FieldError

T = TypeVar("T")


class Problem(msgspec.Struct, frozen=True):
    """Problem details (RFC 9457), the format of every error."""

    title: str = ""
    status: int = 0
    code: str = ""
    detail: str = ""
    errors: tuple[FieldError, ...] = ()
    #: For an item of a batch: try again after this many seconds.
    retry_after: float | None = None
    request_id: str = ""
    #: For an incomplete search: the cursor to continue from.
    next: str | None = None


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. `next` is the cursor of the following page."""

    items: list[T]
    next: str | None = None
