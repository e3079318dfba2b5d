"""Where requests go, through which proxy, and how they are written, for plain code and for asyncio."""

from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, urlsplit

from duetime.http1.answers import AnswerReader
from duetime.http1.messages import ExchangeError
from duetime.sdk.calls.call import KEY_HEADER, TENANT_HEADER, Answer
from duetime.sdk.errors import ApiError, ConfigurationError, ServerUnreachable
from duetime.sdk.transport.headers import Headers
from duetime.sdk.transport.proxies import Proxy, ProxyRefusedError, find_proxy

#: For waiting for a free connection, looking up the name, TCP and TLS together.
CONNECT_SECONDS = 5.0
#: Well below the time for which servers and proxies keep an idle connection.
IDLE_SECONDS = 15.0
#: Four times the size of a lease of 1,000 tasks with the largest payloads.
MAX_BYTES = 256 * 1024 * 1024

#: Characters that have a meaning in a path or a query, or that are quoted already.
_PATH_CHARACTERS = "/?:@!$&'()*+,;=-._~%"
_REPEATABLE = frozenset(("GET", "PUT", "DELETE"))


@dataclass(frozen=True)
class ServerAddress:
    """A base URL, divided into its parts."""

    is_tls: bool
    host: str
    port: int
    #: The prefix of every path; "" or "/…".
    prefix: str

    @classmethod
    def read(cls, url: str) -> Self:
        try:
            parts = urlsplit(url)
            port = parts.port
            host = _ascii(parts.hostname or "")
        except ValueError as error:
            raise ConfigurationError(f'"{url}" is not a server address: {error}') from error
        if not host or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(f'"{url}" is not a server address: it has a scheme, a host, a port and a path')
        is_tls = parts.scheme == "https"
        path = quote(parts.path.rstrip("/"), safe=_PATH_CHARACTERS)
        return cls(is_tls, host, (443 if is_tls else 80) if port is None else port, path)

    @property
    def authority(self) -> str:
        """For the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.is_tls else 80) else f"{name}:{self.port}"


@dataclass(frozen=True)
class Route:
    """The route for one base URL and one key."""

    url: str
    address: ServerAddress
    proxy: Proxy | None
    #: The constant bytes before the path, and those after it up to the part that differs.
    _prefix: str
    _fixed: str

    @classmethod
    def to(cls, url: str, key: str, *, tenant: str | None = None, proxy: str | None = None) -> Self:
        """Without `proxy`, the environment decides. An empty one means no proxy."""
        address = ServerAddress.read(url)
        through = find_proxy(proxy, is_tls=address.is_tls, host=address.host, port=address.port)
        fixed = (
            f" HTTP/1.1\r\nHost: {address.authority}\r\nUser-Agent: duetime\r\nAccept: application/json\r\n"
            f"Accept-Encoding: identity\r\nAuthorization: Bearer {key}\r\n"
        )
        if tenant is not None:
            fixed += f"{TENANT_HEADER}: {tenant}\r\n"
        prefix = address.prefix
        if through is not None and not address.is_tls:
            prefix = f"http://{address.authority}{prefix}"
            fixed += through.authorization
        return cls(url, address, through, prefix, fixed)

    @property
    def name(self) -> str:
        """For messages."""
        return self.url if self.proxy is None else f"{self.url} (through the proxy {self.proxy.name})"

    def write(self, method: str, path: str, body: bytes | None, idempotency_key: str | None) -> bytes:
        """A request, as it is sent."""
        if not path.isascii() or not path.isprintable() or " " in path:
            path = quote(path, safe=_PATH_CHARACTERS)
        head = f"{method} {self._prefix}{path}{self._fixed}"
        if idempotency_key is not None:
            if not idempotency_key.isascii() or not idempotency_key.isprintable():
                raise ValueError("an idempotency key for a request has printable ASCII characters only")
            head += f"{KEY_HEADER}: {idempotency_key}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            return head.encode("ascii") + body
        return (head + ("\r\n" if method == "GET" else "Content-Length: 0\r\n\r\n")).encode("ascii")

    def read(self, answered: AnswerReader) -> Answer:
        """Return the answer that was read, or raise ApiError (too large) or ProxyRefusedError (from the proxy)."""
        if answered.is_truncated:
            message = f"{self.url}: the answer is larger than {answered.bounds.kept_bytes // 1024:,} KiB"
            raise ApiError(message, code="unreadable")
        answer = Answer(answered.status, Headers(answered.fields), answered.body)
        if self.proxy is not None and not self.address.is_tls and _is_of_proxy(answer):
            raise ProxyRefusedError(self.proxy, answer.status)
        return answer


def failure_of(said: str, error: ExchangeError) -> ApiError:
    """Return the error for a missing answer. Trying again is safe, and helps if the proxy may change its answer."""
    if isinstance(error, ProxyRefusedError) and not error.is_passing:
        return ApiError(f"{said}: {error}", status=error.status, code="proxy_refused")
    return ServerUnreachable(f"{said}: {error}")


def may_be_repeated(method: str, exchanges: int) -> bool:
    """Whether to send an unanswered request again: it was not processed, or processing it twice has the same effect.

    A server may close a kept connection just as the next request is sent.
    """
    return exchanges > 1 and method in _REPEATABLE


def _is_of_proxy(answer: Answer) -> bool:
    """Whether the answer cannot come from the server, which reports errors as JSON."""
    if answer.status in (502, 503, 504):
        return "json" not in answer.headers.get("Content-Type", "")
    return answer.status == 407


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode()
