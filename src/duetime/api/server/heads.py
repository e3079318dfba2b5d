"""The rules for the head of a request, beyond what the parser refuses by itself.

The parser (llhttp) refuses bare line feeds, folded headers, spaces around names,
wrong chunk sizes, and two framings of one body.  The rest is checked here: a proxy
in front of this server may read a head differently, and then one request can
become two.
"""

import re
from collections.abc import Mapping, Sequence

from duetime.errors import HeadTooLarge, MalformedRequest

MAX_HEAD_BYTES = 64 * 1024
#: Each costs more memory than its bytes.
MAX_HEADERS = 1000

Headers = Sequence[tuple[bytes, bytes]]

#: Headers of which a second one would change what the first one says.
_SINGLE = (
    b"authorization",
    b"content-length",
    b"content-type",
    b"duetime-tenant",
    b"host",
    b"idempotency-key",
    b"transfer-encoding",
)
#: More digits are leading zeros, and Python refuses to read thousands of them.
_MAX_LENGTH_DIGITS = 19
#: uri-host [ ":" port ] of RFC 9112; a name may be empty.
_is_host = re.compile(
    rb"(?:\[[0-9A-Fa-fVv:.%~_!$&'()*+,;=-]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?[ \t]*", re.ASCII
).fullmatch
_is_absolute = re.compile(rb"https?://[^/?#@]+(/.*)", re.IGNORECASE).fullmatch


def check_head(version: str, headers: Headers, named: Mapping[bytes, bytes]) -> None:
    """Check the headers; raise `MalformedRequest`. `named` is `headers` as a mapping."""
    if len(named) != len(headers):
        _check_repeated(headers)
    host = named.get(b"host")
    if host is None:
        if version == "1.1":
            raise MalformedRequest("the request has no Host header, which HTTP/1.1 needs")
    elif not _is_host(host):
        raise MalformedRequest("the Host header is not a host name or address with an optional port")
    coding = named.get(b"transfer-encoding")
    if coding is not None and (coding.strip().lower() != b"chunked" or version != "1.1"):
        raise MalformedRequest("the only transfer encoding is chunked, in HTTP/1.1")
    if version != "1.1" and version != "1.0":
        raise MalformedRequest("this server speaks HTTP/1.1 and HTTP/1.0")


def read_length(length: bytes) -> int:
    """The value of a Content-Length, whose characters the parser has checked."""
    if len(length) > _MAX_LENGTH_DIGITS:
        raise MalformedRequest(f"Content-Length has more than {_MAX_LENGTH_DIGITS} characters")
    return int(length)


def read_target(url: bytes) -> tuple[bytes, bytes]:
    """Split a target into the path and the query; the parser also accepts a fragment, `*` and other things."""
    if not url.startswith(b"/"):
        absolute = _is_absolute(url)
        url = absolute[1] if absolute is not None else b"#"
    if b"#" in url:
        raise MalformedRequest("the target of the request is not a path such as /v1/tasks")
    path, _, query = url.partition(b"?")
    return path, query


def check_upgrade(method: bytes, named: Mapping[bytes, bytes]) -> None:
    """Refuse a tunnel, and an upgrade with a body: the parser does not read that, so it would be the next request."""
    if method == b"CONNECT":
        raise MalformedRequest("this server is no proxy")
    if named.get(b"content-length", b"0").strip(b"0 \t") or b"transfer-encoding" in named:
        raise MalformedRequest("this server does not upgrade connections; leave the Upgrade header out")


def check_size(url: bytes, headers: Headers) -> None:
    """Check the size of a head that came with enough bytes to be too large."""
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD_BYTES:
        raise head_too_large()


def too_many_headers() -> HeadTooLarge:
    return HeadTooLarge(f"a request has at most {MAX_HEADERS:,} headers")


def head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the line and headers of a request have at most {MAX_HEAD_BYTES:,} bytes")


def _check_repeated(headers: Headers) -> None:
    names = [name for name, _ in headers]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise MalformedRequest(f"the request has more than one {name.decode().title()} header")
