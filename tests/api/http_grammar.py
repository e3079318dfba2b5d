"""What clients send: requests that are right or nearly so, one behind the other, for Hypothesis."""

import hypothesis.strategies as st

_token = st.sampled_from([b"a", b"X-Some", b"Accept", b"User-Agent", b"Cookie", b"Expect", b"TE"])
_text = st.sampled_from([b"", b"b", b"a b", b"\t", b" x ", b"a,b", b"caf\xc3\xa9", b"100-continue", b'"q"', b"a: b"])
_plain = st.builds(lambda name, value: name + b": " + value, _token, _text)
#: How the application of the test goes about it.
_manner = st.sampled_from([b"short: now", b"short: wait", b"slow: 1", b"early: 1", b"early: 1\r\nslow: 1"])
_harmless = st.sampled_from(
    [
        b"Connection: keep-alive",
        b"Connection: closed",
        b"Connection: upgrade",
        b"Upgrade: h2c",
        b"Authorization: Bearer a",
        b"Duetime-Tenant: a",
    ]
)
_odd = st.sampled_from(
    [
        b"Connection: close",
        b"connection: keep-alive, Close",
        b"Proxy-Connection: close",
        b"Connection: Upgrade, x\r\nUpgrade: h2c",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x",
        b"Host: y",
        b"Authorization: Bearer a\r\nAuthorization: Bearer a",
        b"Duetime-Tenant: b",
        b"Content-Length: 0",
        b"Content-Length: 3",
        b"Content-Length: 3 ",
        b"Content-Length: 003",
        b"Content-Length: +3",
        b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: Chunked ",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: chunked\r\n x",
        b"Transfer-Encoding:\x0bchunked",
        b" folded: x",
        b"a b: c",
        b": c",
        b"nothing",
        b"a: b\nc: d",
        b"a: b\rc: d",
        b"a: b\0",
        b"a\0: b",
        b"X-\xff: b",
    ]
)
_hosts = [b"Host: x", b"host:x:80", b"HOST: [::1]:80 ", b"Host:"]
_odd_hosts = [*_hosts, b"a: b", b"Host: a b", b"Host: x\r\nHost: x", b"Host: @"]
_methods = [b"GET", b"POST", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS"]
_odd_methods = [*_methods, b"CONNECT", b"PRI", b"get", b"FOO", b"", b"POST ", b"SOURCE"]
_targets = [b"/v1/tasks", b"/v1/tasks", b"/v1/tasks", b"/", b"/a?b=c", b"/a%20b", b"//x/y"]
_odd_targets = [*_targets, b"*", b"http://h/a?b", b"http://h", b"HTTPS://h:1/", b"/a#b", b"x:80", b"a", b"", b"/a b"]
_odd_targets += [b"/\xff", b"/\x7f", b"?"]
_versions = [b"HTTP/1.1"]
_odd_versions = [*_versions * 12, b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"http/1.1", b""]
_bodies = [b"", b"x", b"abc", b"GET / HTTP/1.1\r\nHost: smuggled\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"y" * 300]
_extensions = [b""] * 6 + [b";a", b";a=b", b';a="b c"', b";a=b;c"]
_odd_extensions = [*_extensions, b" ", b"; a", b"\t", b";", b";a\n", b';a="', b";a= b"]
_chunk_sizes = [b"%x"] * 6 + [b"%X", b"00%x"]
_odd_chunk_sizes = [*_chunk_sizes, b"0x%x", b"%x0", b"-%x", b" %x", b"", b"fffffffffffffffff%x"]
_lasts = [b"0\r\n"] * 4 + [b"000\r\n", b"0;a=b\r\n"]
_odd_lasts = [*_lasts, b"0\n", b"", b"0 \r\n"]
_litter = [b"\r", b"\n", b"\r\n", b" ", b"\t", b"\0", b":", b"0", b",", b";", b"\x7f", b"\xff"]


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """In pieces of these sizes, over and over."""
    pieces, turn = [], 0
    while stream:
        size = sizes[turn % len(sizes)]
        pieces.append(stream[:size])
        stream, turn = stream[size:], turn + 1
    return pieces


@st.composite
def chunks(draw: st.DrawFn, body: bytes, is_odd: bool) -> bytes:
    """A body in chunks."""
    said = b""
    for piece in cut(body, draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))):
        size = draw(st.sampled_from(_odd_chunk_sizes if is_odd else _chunk_sizes))
        extension = draw(st.sampled_from(_odd_extensions if is_odd else _extensions))
        end = draw(st.sampled_from([b"\r\n"] * 6 + [b"\n", b"", b"x\r\n"])) if is_odd else b"\r\n"
        said += (size % len(piece) if size else b"") + extension + b"\r\n" + piece + end
    last = draw(st.sampled_from(_odd_lasts if is_odd else _lasts))
    trailer = st.one_of(_plain, _harmless, _odd) if is_odd else st.one_of(_plain, st.just(b"Authorization: Bearer t"))
    trailers = draw(st.lists(trailer, max_size=2))
    return said + last + b"".join(each + b"\r\n" for each in trailers) + b"\r\n"


@st.composite
def requests(draw: st.DrawFn, is_odd: bool) -> bytes:
    """A request; one that is odd has something unusual, mostly something wrong."""
    method = draw(st.sampled_from(_odd_methods if is_odd and draw(st.booleans()) else _methods))
    target = draw(st.sampled_from(_odd_targets if is_odd and draw(st.booleans()) else _targets))
    version = draw(st.sampled_from(_odd_versions if is_odd else _versions))
    headers = draw(st.lists(_plain, max_size=3)) + draw(st.lists(_manner, max_size=1))
    headers += draw(st.lists(_odd if is_odd else _harmless, max_size=2 if is_odd else 1))
    host = draw(st.sampled_from(_odd_hosts if is_odd and draw(st.booleans()) else _hosts))
    headers.insert(draw(st.integers(0, len(headers))), host)
    body = draw(st.sampled_from(_bodies))
    match draw(st.sampled_from(["none", "length", "length", "chunked", "chunked", *["unsaid"] * is_odd])):
        case "none":
            body = b""
        case "length":
            headers.append(b"Content-Length: %d" % len(body))
        case "chunked":
            headers.append(b"Transfer-Encoding: chunked")
            body = draw(chunks(body, is_odd and draw(st.booleans())))
    if is_odd:
        headers = draw(st.permutations(headers))
    return b" ".join([method, target, version]) + b"\r\n" + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + body


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Some requests, of which one may be odd, and sometimes a byte that is wrong anywhere."""
    count = draw(st.integers(1, 5))
    odd = draw(st.none() | st.integers(0, count - 1))
    said: list[bytes] = []
    for number in range(count):
        if said and number != odd and draw(st.booleans()):
            # As a client that keeps its connection does.
            said.append(said[-1])
        else:
            said.append(draw(requests(number == odd)))
    between = draw(st.sampled_from([b""] * 6 + [b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"x", b"\0"]))
    stream = bytearray(between.join(said))
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(stream) - 1))
        match draw(st.sampled_from(["change", "drop", "put", "cut"])):
            case "change":
                stream[place] = draw(st.integers(0, 255))
            case "drop":
                del stream[place]
            case "put":
                stream[place:place] = draw(st.sampled_from(_litter))
            case _:
                del stream[place:]
    return bytes(stream)
