"""Read the items of a batch, each on its own merits, in bounded memory.

A batch that is right throughout is decoded in one go.  If anything is wrong,
or if the body could hold far more values than a batch may have, the items are
cut apart first and then judged one by one, so that a bad one gets its error in
its place.  A body that is not JSON is refused as a whole.
"""

from functools import cache
from typing import Any

import msgspec
from msgspec import Raw

from duetime.api.http import JSON, NDJSON, check_text, make_decoder
from duetime.api.problems import read_decode_error
from duetime.api.schemas import PlainTaskRequest, TaskRequest
from duetime.errors import DuetimeError, InvalidInput, MalformedBody, TooLarge, UnsupportedMediaType
from duetime.model.task import MAX_BATCH

Item = TaskRequest | DuetimeError

#: A single item has one payload of 64 KiB and a few options.
MAX_ITEM_BYTES = 256 * 1024
#: Up to here, decoding everything at once costs at most some ten megabytes.
_EASY_OBJECTS = 20_000
_EASY_VALUES = 300_000

_decoder = make_decoder(TaskRequest)
_list_decoder = make_decoder(list[TaskRequest])
_plain_decoder = make_decoder(list[PlainTaskRequest])
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError)


def read_plain_items(content_type: str, body: bytes) -> list[PlainTaskRequest] | None:
    """The items, if all are right and none has more than what a plain request has; None: ask `read_items`."""
    if content_type != JSON or not _is_easy(body):
        return None
    check_text(body)
    try:
        items = _plain_decoder.decode(body)
    except _UNREADABLE:
        return None
    return items if len(items) <= MAX_BATCH else None


def read_items(content_type: str, body: bytes) -> list[Item]:
    """The items in order, an error in the place of each that cannot be read."""
    if content_type in NDJSON:
        check_text(body)
        return _read_lines(body)
    if content_type != JSON:
        raise UnsupportedMediaType(f"send {JSON} or {NDJSON[0]}, not {content_type}")
    check_text(body)
    if _is_easy(body):
        try:
            items: list[Any] = _list_decoder.decode(body)
        except msgspec.ValidationError:
            pass
        except _UNREADABLE as error:
            raise read_decode_error(error, body) from error
        else:
            return _not_too_many(items)
    return [_read_item(bytes(part)) for part in _cut_array(body)]


def _is_easy(body: bytes) -> bool:
    # A value and its comma take two bytes.
    has_few_values = len(body) <= 2 * _EASY_VALUES or body.count(b",") <= _EASY_VALUES
    return has_few_values and body.count(b"{") <= _EASY_OBJECTS


def _read_item(part: bytes) -> Item:
    if len(part) > MAX_ITEM_BYTES:
        return TooLarge(f"the item has {len(part)} bytes; at most {MAX_ITEM_BYTES} are allowed")
    try:
        return _decoder.decode(part)
    except _UNREADABLE as error:
        return read_decode_error(error, part, _decoder.type)


def _read_lines(body: bytes) -> list[Item]:
    if body.count(b"\n") > 2 * MAX_BATCH:
        raise _too_many()
    items: list[Item] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        item = _read_item(line)
        if isinstance(item, MalformedBody):
            raise MalformedBody(f"line {number} is not JSON, so nothing was stored: {item.detail}")
        items.append(item)
    return _not_too_many(items)


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
    except _UNREADABLE as error:
        raise read_decode_error(error, body) from error
    return [part for part in parts if bytes(part)]


def _not_too_many(items: list[Item]) -> list[Item]:
    if len(items) > MAX_BATCH:
        raise _too_many()
    return items


def _too_many() -> TooLarge:
    return TooLarge(f"a batch has at most {MAX_BATCH:,} tasks; send several")
