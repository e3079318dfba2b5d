"""Choose the proxy for the server: the given one, or that of the environment.

For an https address it is `HTTPS_PROXY`, for an http address `HTTP_PROXY`;
lower-case names come before upper-case ones. Hosts in `NO_PROXY` and this machine
are reached directly.  A given proxy is used for everything.
"""

import base64
import ipaddress
import os
import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

from duetime.http1.messages import ExchangeError, Reason
from duetime.sdk.errors import ConfigurationError
from duetime.sdk.server import is_this_machine

_PROXY_WANTS_CREDENTIALS = 407


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    #: A header line with the password, or nothing.
    authorization: str = field(repr=False)

    @classmethod
    def read(cls, url: str, source: str) -> Self:
        """Parse the address of a proxy. `source` says where the address comes from."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigurationError(f"{source} is not the address of a proxy: {error}") from error
        if parts.scheme != "http" or not host or not host.isascii():
            # Without the user name and the password.
            shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
            raise ConfigurationError(
                f'{source} is "{shown}", which is no HTTP proxy: its address looks like http://proxy.example.com:3128'
            )
        authorization = ""
        if parts.username is not None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = f"Proxy-Authorization: Basic {base64.b64encode(credentials.encode()).decode()}\r\n"
        return cls(host, 80 if port is None else port, authorization)

    @property
    def name(self) -> str:
        """Its address, without the password."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


class ProxyRefusedError(ExchangeError):
    """The answer comes from the proxy and not from the server."""

    def __init__(self, proxy: Proxy, status: int) -> None:
        message = f"the proxy {proxy.name} answered {status}"
        if status == _PROXY_WANTS_CREDENTIALS:
            message += (
                ": it does not take the user name and password of its address"
                if proxy.authorization
                else ": it wants a user name and a password, http://user:password@host:port"
            )
        super().__init__(Reason.CONNECT, message)
        self.status = status

    @property
    def is_passing(self) -> bool:
        """Whether the proxy may answer differently soon."""
        return self.status == 429 or self.status >= 500


def find_proxy(given: str | None, *, is_tls: bool, host: str, port: int) -> Proxy | None:
    """Return the proxy for an address. None: it is reached directly.  If `given` is empty, there is no proxy."""
    if given is not None:
        return Proxy.read(given, "proxy") if given else None
    if is_this_machine(host):
        return None
    scheme = "https" if is_tls else "http"
    for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
        # In a CGI program HTTP_PROXY holds the header `Proxy`, which the client of the program controls.
        if name == "HTTP_PROXY" and "REQUEST_METHOD" in os.environ:
            continue
        if url := os.environ.get(name):
            direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
            return None if is_excepted(host, port, direct) else Proxy.read(url, name)
    return None


def is_excepted(host: str, port: int, rules: str) -> bool:
    """Whether `NO_PROXY` names an address: `*`, or domains, addresses and networks, each with or without a port."""
    return any(_fits(rule, host.lower().rstrip("."), port) for rule in re.split(r"[\s,]+", rules) if rule)


def _fits(rule: str, host: str, port: int) -> bool:
    if rule == "*":
        return True
    name, wanted_port = _split(rule)
    if wanted_port and wanted_port != str(port):
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        domain = name.lower().removeprefix("*").strip(".")
        return bool(domain) and (host == domain or host.endswith(f".{domain}"))
    try:
        return address in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False


def _split(rule: str) -> tuple[str, str]:
    """Divide an entry into name and port. An IPv6 address with a port has brackets."""
    if rule.startswith("["):
        name, _, port = rule[1:].partition("]")
        return name, port.removeprefix(":")
    if rule.count(":") == 1:
        name, _, port = rule.partition(":")
        return name, port
    return rule, ""
