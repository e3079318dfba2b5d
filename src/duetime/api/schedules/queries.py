"""Read the query parameters and cursors of schedules."""

import base64
import binascii
import uuid
from collections.abc import Sequence

from duetime.api.schedules.reading import check_name
from duetime.api.server.http import read_uuid
from duetime.api.tasks.filters import not_a_cursor, read_one
from duetime.errors import InvalidInput


def read_choice(query: dict[str, list[str]], name: str, choices: Sequence[str]) -> str | None:
    text = read_one(query, name)
    if text is not None and text not in choices:
        raise InvalidInput.at(name, f"must be one of {', '.join(choices)}")
    return text


def read_text(query: dict[str, list[str]], name: str, longest: int) -> str | None:
    text = read_one(query, name)
    if text is not None and ("\0" in text or len(text) > longest):
        raise InvalidInput.at(name, f"must have at most {longest} characters and no NUL")
    return text


def make_name_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).rstrip(b"=").decode()


def read_name_cursor(cursor: str | None) -> str:
    if cursor is None:
        return ""
    try:
        name = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return check_name(name.decode("ascii"))
    except (binascii.Error, ValueError, InvalidInput) as error:
        raise not_a_cursor() from error


def read_moment_cursor(cursor: str | None) -> uuid.UUID:
    moment = uuid.UUID(int=(1 << 128) - 1) if cursor is None else read_uuid(cursor)
    if moment is None:
        raise not_a_cursor()
    return moment
