"""Where names are looked up: resolv.conf and the hosts file, as the system reads them, or configured name servers.

The files are read again when they have changed.  That is done in a thread,
because a hosts file may be large.
"""

import asyncio
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RESOLV_CONF = Path("/etc/resolv.conf")
HOSTS = Path("/etc/hosts")
_PORT = 53
# As many as the system's own resolver reads.
_MAX_SERVERS = 3
_MAX_NDOTS = 15
_MAX_SEARCH = 32
_MAX_TIMEOUT_SECONDS = 30
_MAX_ATTEMPTS = 5

Server = tuple[str, int]
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True)
class Settings:
    servers: tuple[Server, ...] = (("127.0.0.1", _PORT),)
    search: tuple[str, ...] = ()
    #: A name with at least this many dots is looked up as it is before the search domains are tried.
    ndots: int = 1
    timeout_seconds: float = 5.0
    attempts: int = 2
    #: Addresses by name, in lower case.
    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def candidates(self, name: str) -> list[str]:
        """The full names that a name may stand for, in the order in which they are looked up."""
        if name.endswith("."):
            return [name]
        searched = [f"{name}.{domain}" for domain in self.search]
        return [name, *searched] if name.count(".") >= self.ndots else [*searched, name]


class SystemSettings:
    """The current settings; `servers` replace those of resolv.conf."""

    def __init__(self, servers: Sequence[Server] = (), *, resolv_conf: Path = RESOLV_CONF, hosts: Path = HOSTS) -> None:
        self._servers = tuple(servers)
        self._files = (resolv_conf, hosts)
        self._stamps: tuple[Stamp, ...] | None = None
        self._settings = Settings()
        self._reading = asyncio.Lock()

    async def current(self) -> Settings:
        stamps = tuple(_stamp(file) for file in self._files)
        if stamps != self._stamps:
            async with self._reading:
                if stamps != self._stamps:
                    self._settings = await asyncio.get_running_loop().run_in_executor(None, self._read)
                    self._stamps = stamps
        return self._settings

    def _read(self) -> Settings:
        resolv_conf, hosts = self._files
        return read_resolv_conf(_text(resolv_conf), self._servers, read_hosts(_text(hosts)))


def read_resolv_conf(
    text: str, servers: Sequence[Server] = (), hosts: dict[str, tuple[str, ...]] | None = None
) -> Settings:
    """Parse resolv.conf(5); lines that cannot be read are skipped, as the system does."""
    named: list[Server] = []
    search: Iterable[str] = ()
    options = {"ndots": 1, "timeout": 5, "attempts": 2}
    for line in text.splitlines():
        if line[:1] in "#;":
            continue
        word, *values = line.split() or [""]
        match word:
            case "nameserver" if values:
                try:
                    named.append((str(ipaddress.ip_address(values[0])), _PORT))
                except ValueError:
                    continue
            case "search":
                search = values
            case "domain":
                search = values[:1]
            case "options":
                for option in values:
                    name, _, number = option.partition(":")
                    if name in options and number.isascii() and number.isdigit():
                        options[name] = int(number[:6])
            case _:
                pass
    return Settings(
        tuple(servers) or tuple(named[:_MAX_SERVERS]) or Settings.servers,
        tuple(domain.strip(".").lower() for domain in search if domain.strip("."))[:_MAX_SEARCH],
        min(options["ndots"], _MAX_NDOTS),
        float(min(max(options["timeout"], 1), _MAX_TIMEOUT_SECONDS)),
        min(max(options["attempts"], 1), _MAX_ATTEMPTS),
        hosts or {},
    )


def read_hosts(text: str) -> dict[str, tuple[str, ...]]:
    """Parse a file like hosts(5) into addresses by name."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        try:
            ipaddress.ip_address(address)
        except ValueError:
            continue
        for name in names:
            found.setdefault(name.lower().rstrip("."), []).append(address)
    return {name: tuple(dict.fromkeys(addresses)) for name, addresses in found.items()}


def _stamp(file: Path) -> Stamp:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError:
        return ""
