"""The server that a URL leads to, and the name under which a target's host is known: pure, no I/O."""

import functools
import re
import urllib.parse
from typing import NamedTuple

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")


class Origin(NamedTuple):
    """The server to call; `host` is in ASCII and lower case, without brackets."""

    scheme: str
    host: str
    port: int


class TargetError(ValueError):
    """The task's target can never be called; the message is for the tenant."""


def split_origin(url: str) -> tuple[Origin, urllib.parse.SplitResult]:
    """Origin and parts of a URL; raises TargetError."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TargetError(f"the URL cannot be read: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise TargetError("the URL must begin with http:// or https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise TargetError("the URL must not carry a user name or password; use the header Authorization")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError as error:
            raise TargetError(f"the URL's host name is not valid: {error}") from error
    if not _HOST.fullmatch(host) or port == 0:
        raise TargetError("the URL's host name or port is not valid")
    return Origin(parts.scheme, host, port or default_port(parts.scheme)), parts


def default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


@functools.lru_cache(maxsize=4096)
def host_of(url: str) -> str:
    """`host:port` of a URL, in lower case and always with the port; empty if the URL cannot be called."""
    try:
        origin, _ = split_origin(url)
    except TargetError:
        return ""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    return f"{host}:{origin.port}"


def read_host(text: str) -> str | None:
    """A host as people write it in the form of `host_of`; the default port is that of https; None if it is no host."""
    if "//" in text:
        return host_of(text) or None
    if not text.isprintable() or any(each in text for each in "/?#@\\ ") or len(text) > 300:
        return None
    return host_of(f"https://{text}") or None
