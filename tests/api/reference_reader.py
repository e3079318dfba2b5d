"""A slow, strict reader of HTTP/1.1 and 1.0 requests, to compare the server's with: all the bytes in, the requests out.

It knows nothing of packets, callbacks or answers, and takes each thing in the order
of RFC 9112.
"""

import re
from dataclasses import dataclass
from enum import Enum

METHODS = frozenset(
    b"""GET HEAD POST PUT DELETE OPTIONS TRACE PATCH COPY LOCK MKCOL MOVE PROPFIND PROPPATCH SEARCH UNLOCK BIND REBIND
    UNBIND ACL REPORT MKACTIVITY CHECKOUT MERGE M-SEARCH NOTIFY SUBSCRIBE UNSUBSCRIBE PURGE MKCALENDAR LINK UNLINK
    SOURCE QUERY""".split()
)
#: A second one of these is refused.
SINGLE = {
    b"authorization",
    b"content-length",
    b"content-type",
    b"duetime-tenant",
    b"host",
    b"idempotency-key",
    b"transfer-encoding",
}
#: They say how to read on, so they are nothing for a trailer.
FRAMING = {b"connection", b"proxy-connection", b"content-length", b"transfer-encoding"}

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# More than one space between the parts is allowed by RFC 9112, 3.
_line = re.compile(rb"([A-Z-]+) +([!-~]+) +HTTP/(\d\.\d)", re.DOTALL)
_field = re.compile(rb"(%s):[ \t]*((?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*" % _TOKEN, re.DOTALL)
_target = re.compile(rb"(?:(?i:https?)://[^/?#@]+)?(/[^#?]*)(?:\?([^#]*))?", re.DOTALL)
_host = re.compile(rb"(?:\[[0-9A-Fa-f:.vV%~_!$&'()*+,;=-]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(?::\d*)?", re.DOTALL)
# An extension may lack its name or its value, as the parser has it: it frames nothing and means nothing here.
_quoted = rb"\"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*\""
_chunk_line = re.compile(
    rb"0*([0-9A-Fa-f]{1,16})(?:;(?:%s)?(?:=(?:%s)?(?:%s)?)?)*(?<!;)" % (_TOKEN, _TOKEN, _quoted), re.DOTALL
)


class End(Enum):
    #: All requests are whole, and one more may come.
    BETWEEN = "between"
    #: The last request was whole, and said that it is the last.
    LAST = "last"
    #: A request has begun.
    PARTIAL = "partial"
    #: What came is no request.
    WRONG = "wrong"


@dataclass
class Seen:
    method: bytes
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    is_whole: bool = False


class _WrongError(Exception):
    pass


class _PartialError(Exception):
    pass


class Reader:
    def __init__(self, stream: bytes) -> None:
        self._stream = stream
        self._place = 0
        self.requests: list[Seen] = []

    def read(self) -> End:
        """Read everything; what stays in `requests` may end with one that is not whole."""
        try:
            while True:
                while self._stream[self._place : self._place + 1] in (b"\r", b"\n"):
                    self._place += 1
                if self._place == len(self._stream):
                    return End.BETWEEN
                if not self._read_request():
                    return End.LAST
        except _PartialError:
            return End.PARTIAL
        except _WrongError:
            return End.WRONG

    def _read_line(self) -> bytes:
        end = self._stream.find(b"\n", self._place)
        if end < 0:
            raise _PartialError
        line = self._stream[self._place : end + 1]
        self._place = end + 1
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise _WrongError
        return line[:-2]

    def _read_fields(self) -> list[tuple[bytes, bytes]]:
        fields = []
        while line := self._read_line():
            field = _must(_field.fullmatch(line))
            fields.append((field[1].lower(), field[2]))
        return fields

    def _read_request(self) -> bool:
        """Whether another one may follow."""
        if b"\r\n\r\n" not in self._stream[self._place :]:
            # Whatever may be wrong with it: the server need not see it before the head ends.
            raise _PartialError
        line = _must(_line.fullmatch(self._read_line()))
        method, url, version = line.groups()
        headers = self._read_fields()
        target = _must(_target.fullmatch(url))
        _check(method in METHODS and version in (b"1.0", b"1.1"))
        names = [name for name, _ in headers]
        _check(all(names.count(name) <= 1 for name in SINGLE))
        named = dict(headers)
        _check(version == b"1.0" or b"host" in named)
        _must(_host.fullmatch(named.get(b"host", b"")))
        coding, length = named.get(b"transfer-encoding"), named.get(b"content-length")
        _check(coding is None or (coding.lower() == b"chunked" and length is None and version == b"1.1"))
        _check(length is None or re.fullmatch(rb"[0-9]{1,19}", length) is not None)
        connection = {
            token.strip().lower()
            for name, value in headers
            if name in (b"connection", b"proxy-connection")
            for token in value.split(b",")
        }
        has_body = coding is not None or int(length or b"0") > 0
        _check(not (b"upgrade" in connection and b"upgrade" in named and has_body))
        seen = Seen(method, target[1], target[2] or b"", headers)
        self.requests.append(seen)
        if coding is not None:
            self._read_chunks(seen)
        else:
            seen.body = self._read_bytes(int(length or b"0"))
        seen.is_whole = True
        return version == b"1.1" and b"close" not in connection

    def _read_chunks(self, seen: Seen) -> None:
        while True:
            size = int(_must(_chunk_line.fullmatch(self._read_line()))[1], 16)
            if size == 0:
                break
            seen.body += self._read_bytes(size)
            end = self._stream[self._place : self._place + 2]
            _check(b"\r\n".startswith(end))
            if len(end) < 2:
                raise _PartialError
            self._place += 2
        _check(FRAMING.isdisjoint(name for name, _ in self._read_fields()))

    def _read_bytes(self, size: int) -> bytes:
        data = self._stream[self._place : self._place + size]
        if len(data) < size:
            raise _PartialError
        self._place += size
        return data


def _must(match: "re.Match[bytes] | None") -> "re.Match[bytes]":
    if match is None:
        raise _WrongError
    return match


def _check(is_right: bool) -> None:
    if not is_right:
        raise _WrongError
