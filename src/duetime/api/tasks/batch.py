"""Read the items of a batch, each by itself, in bounded memory.

A batch without errors is decoded in one go.  If anything is wrong, or if the body
could hold far more values than a batch may have, the items are cut apart first and
then judged one by one, so that the error of an item stands in its place.  A body
that is not JSON is refused as a whole.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from duetime.api.bodies.requests import PlainTaskRequest, TaskRequest
from duetime.api.problems import read_decode_error
from duetime.api.server.http import JSON, NDJSON, UNREADABLE, check_text, explain_unreadable, make_decoder
from duetime.errors import InvalidInput, TooLarge, UnsupportedMediaType
from duetime.model.task import MAX_BATCH


class Unread(NamedTuple):
    """An item that was cut out of the body and not decoded."""

    part: bytes
    #: Its line number, if each line is an item.
    line: int | None = None


#: A single item has one payload of 64 KiB and a few options.
MAX_ITEM_BYTES = 256 * 1024
#: Up to these numbers, decoding everything at once takes about ten megabytes at most.
_EASY_OBJECTS = 20_000
_EASY_VALUES = 300_000

_decoder = make_decoder(TaskRequest)
_list_decoder = make_decoder(list[TaskRequest])
_plain_decoder = make_decoder(list[PlainTaskRequest])


def read_plain_items(content_type: str, body: bytes) -> list[PlainTaskRequest] | None:
    """The items, if all are right and are plain requests; None: use `read_items`."""
    if content_type != JSON or not _is_easy(body):
        return None
    check_text(body)
    try:
        items = _plain_decoder.decode(body)
    except UNREADABLE:
        return None
    return items if len(items) <= MAX_BATCH else None


def read_items(content_type: str, body: bytes) -> list[TaskRequest] | list[Unread]:
    """The items in order; if some are wrong, undecoded ones for `read_item`."""
    if content_type in NDJSON:
        check_text(body)
        return _cut_lines(body)
    if content_type != JSON:
        raise UnsupportedMediaType(f"send {JSON} or {NDJSON[0]}, not {content_type}")
    check_text(body)
    if _is_easy(body):
        try:
            items = _list_decoder.decode(body)
        except msgspec.ValidationError:
            pass
        except UNREADABLE as error:
            raise read_decode_error(error, body) from error
        else:
            if len(items) > MAX_BATCH:
                raise _too_many()
            return items
    return [Unread(bytes(part)) for part in _cut_array(body)]


def _is_easy(body: bytes) -> bool:
    # A value and its comma take two bytes.
    has_few_values = len(body) <= 2 * _EASY_VALUES or body.count(b",") <= _EASY_VALUES
    return has_few_values and body.count(b"{") <= _EASY_OBJECTS


def read_item(item: Unread, judge: Callable[[TaskRequest], object]) -> TaskRequest:
    """Decode the item; raises all its errors, and MalformedBody if it is not JSON.

    `judge` finds what else is wrong with a wrong item.
    """
    part = item.part
    if len(part) > MAX_ITEM_BYTES:
        raise TooLarge(f"the item has {len(part)} bytes; at most {MAX_ITEM_BYTES} are allowed")
    try:
        return _decoder.decode(part)
    except UNREADABLE as error:
        raise explain_unreadable(error, _decoder, part, judge) from error


def _cut_lines(body: bytes) -> list[Unread]:
    if body.count(b"\n") > 2 * MAX_BATCH:
        raise _too_many()
    lines = [Unread(line, number) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    if len(lines) > MAX_BATCH:
        raise _too_many()
    return lines


@cache
def _array_decoder() -> "msgspec.json.Decoder[Any]":
    """Reads an array into at most 5,000 raw parts; a list would grow with the body."""
    fields = [(f"item{place}", Raw, Raw()) for place in range(MAX_BATCH)]
    kind = msgspec.defstruct("Items", fields, array_like=True, forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(kind)


def _cut_array(body: bytes) -> list[Raw]:
    try:
        parts = msgspec.structs.astuple(_array_decoder().decode(body))
    except msgspec.ValidationError as error:
        if "at most length" in str(error):
            raise _too_many() from error
        raise InvalidInput("the body must be an array of tasks") from error
    except UNREADABLE as error:
        raise read_decode_error(error, body) from error
    return [part for part in parts if bytes(part)]


def _too_many() -> TooLarge:
    return TooLarge(f"a batch has at most {MAX_BATCH:,} tasks; send several")
