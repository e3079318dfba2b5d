"""The id of a request: the client's own, if it is valid, else one that this process makes.

It is on every answer and in every problem, and in the log lines about a request.
Making one costs a counter: the random part belongs to the process.
"""

import itertools
import re
import secrets

HEADER = b"x-request-id"
MAX_BYTES = 128
_is_sane = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,%d}" % MAX_BYTES).fullmatch
_process = secrets.token_hex(5).encode()
_count = itertools.count(1).__next__


def mint() -> bytes:
    return b"%s-%x" % (_process, _count())


def given_id(header: bytes | None) -> bytes | None:
    """The client's id of the request, if it is safe to repeat."""
    return header if header is not None and _is_sane(header) else None


def read_or_mint(header: bytes | None) -> bytes:
    return given_id(header) or mint()
