"""Every setting, once: its name, its meaning, its default, and its check.

A setting comes from the command line, else from the environment
(`DUETIME_PORT` for `port`), else from a TOML file (`--config`), else its
default.  A test checks `docs/configuration.md` against this module.
"""

import ipaddress
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from duetime.errors import UsageError

#: How long a holder may be silent before it counts as dead, and loses what it holds.
DEFAULT_SILENCE_SECONDS = 9.0
#: Two beats: a holder that is late with one must not count as dead.
MIN_SILENCE_SECONDS = 6.0
MAX_SILENCE_SECONDS = 600.0


_DNS_PORT = 53


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one node."""

    host: Annotated[str, Meta(description="Address the API listens on.")] = "127.0.0.1"
    port: Annotated[int, Meta(description="Port the API listens on; 0 picks a free one.", ge=0, le=65535)] = 8080
    data: Annotated[str, Meta(description="Folder of the embedded PostgreSQL and the first API key.")] = ".duetime"
    database_url: Annotated[
        str | None,
        Meta(description="PostgreSQL 15 or newer to use; the embedded server when absent."),
    ] = None
    redis_url: Annotated[
        str | None,
        Meta(description="Redis that keeps the budgets that nodes share; PostgreSQL keeps them when absent."),
    ] = None
    database_connections: Annotated[
        int, Meta(description="Connections to PostgreSQL that a node keeps open.", ge=2, le=100)
    ] = 10
    processes: Annotated[int, Meta(description="Node processes that share the port and the shards.", ge=1, le=32)] = 1
    log_format: Annotated[str, Meta(description="`console` (or `text`) for people, `json` for programs.")] = "console"
    log_level: Annotated[str, Meta(description="`debug`, `info`, `warning` or `error`.")] = "info"
    node_name: Annotated[
        str | None, Meta(description="Name of this node in logs and histories; the host's name when absent.")
    ] = None
    egress_allow: Annotated[
        list[str],
        Meta(
            description="Networks (CIDR) that HTTP targets may be in although they are private, loopback or link-local."
        ),
    ] = []
    egress_ca_file: Annotated[
        str | None, Meta(description="Certificates (PEM) that HTTP targets are checked against, beside the system's.")
    ] = None
    dns_servers: Annotated[
        list[str],
        Meta(
            description="Name servers (`10.0.0.2`, `10.0.0.2:5353`, `[fd00::2]:53`) that the hosts of HTTP targets are "
            "looked up with, in place of those in `/etc/resolv.conf`."
        ),
    ] = []
    trusted_proxies: Annotated[
        list[str],
        Meta(
            description="Networks (CIDR) of reverse proxies: a request from there counts as that of the client that "
            "its `X-Forwarded-For` names."
        ),
    ] = []
    max_connections: Annotated[
        Annotated[int, Meta(ge=16, le=100_000)] | None,
        Meta(
            description="Connections of clients that a node process keeps, as far as its limit of open files goes; "
            "20,000 when absent."
        ),
    ] = None
    max_connections_per_peer: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        Meta(
            description="Those of them that come from one address, except loopback and trusted proxies; 2,000 when "
            "absent, at most a quarter of all."
        ),
    ] = None
    executor_calls: Annotated[int, Meta(description="HTTP calls in flight per node.", ge=1, le=10_000)] = 512
    executor_calls_per_host: Annotated[
        int, Meta(description="HTTP calls in flight per tenant and target host.", ge=1, le=10_000)
    ] = 64
    shutdown_seconds: Annotated[
        float, Meta(description="How long a stop waits for calls in flight before it gives them back.", ge=0, le=600)
    ] = 20.0
    secrets_key_file: Annotated[
        str | None,
        Meta(description="File with the keys that encrypt secrets, one a line: the first encrypts, all decrypt."),
    ] = None
    secrets_keys: Annotated[
        list[str],
        Meta(description="The same keys themselves, before those of the file; for the environment."),
    ] = []
    max_silence: Annotated[
        float,
        Meta(
            description="Seconds that a worker may be silent before it counts as dead, if neither it nor its queues "
            "say otherwise.",
            ge=MIN_SILENCE_SECONDS,
            le=MAX_SILENCE_SECONDS,
        ),
    ] = DEFAULT_SILENCE_SECONDS
    retention_days: Annotated[
        int, Meta(description="How long finished tasks and their history are kept.", ge=1, le=3650)
    ] = 14
    dead_retention_days: Annotated[int, Meta(description="How long dead letters are kept.", ge=1, le=3650)] = 30
    tenant_breaker_failure_rate: Annotated[
        float,
        Meta(
            description="More than this share of a tenant's attempts must fail to stop it; 1 never stops.", ge=0.1, le=1
        ),
    ] = 0.9
    tenant_breaker_window_seconds: Annotated[
        float, Meta(description="For how long they must have failed.", ge=60, le=3600)
    ] = 300.0
    tenant_breaker_probe_seconds: Annotated[
        float, Meta(description="How often one task of a stopped tenant is tried.", ge=1, le=3600)
    ] = 60.0
    tenant_breaker_min_attempts: Annotated[
        int, Meta(description="With fewer attempts in that time a tenant is not stopped.", ge=1, le=1_000_000)
    ] = 20


#: How the environment writes settings that are lists.
_LISTS: dict[str, Callable[[str], list[str]]] = {
    "egress_allow": lambda text: text.split(","),
    "dns_servers": lambda text: text.split(","),
    "trusted_proxies": lambda text: text.split(","),
    "secrets_keys": lambda text: text.replace(",", " ").split(),
}


def read_config(
    given: Mapping[str, object], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Config:
    """The settings in force; raises a UsageError that names the setting and what would be right."""
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    values.update(_read_file(file) if file is not None else {})
    for field in msgspec.structs.fields(Config):
        value = environment.get(f"DUETIME_{field.name.upper()}")
        if value is not None:
            values[field.name] = _LISTS[field.name](value) if field.name in _LISTS else value
    values.update({name: value for name, value in given.items() if value is not None})
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(_sentence(str(error))) from error
    _check(config)
    return config


def _sentence(text: str) -> str:
    """What msgspec says of a value, after the name of its setting."""
    message, _, place = text.partition(" - at `$.")
    name = place.removesuffix("`")
    return f"setting {name}: {message[:1].lower()}{message[1:]}" if name else f"configuration: {text}"


def _read_file(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"configuration file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration file {file} is not TOML: {error}") from error


def _check(config: Config) -> None:
    # The worker calls it "text" as well, so that one variable serves both.
    if config.log_format not in ("console", "text", "json"):
        raise UsageError(f"log_format is console (or text) or json, not {config.log_format!r}")
    if config.log_level not in ("debug", "info", "warning", "error"):
        raise UsageError(f"log_level is debug, info, warning or error, not {config.log_level!r}")
    _check_networks("egress_allow", config.egress_allow)
    _check_networks("trusted_proxies", config.trusted_proxies)
    for server in config.dns_servers:
        try:
            read_name_server(server)
        except ValueError as error:
            raise UsageError(f"dns_servers takes addresses such as 10.0.0.2 or [fd00::2]:5353: {error}") from error
    if any(ipaddress.ip_network(network).prefixlen == 0 for network in config.trusted_proxies):
        raise UsageError("trusted_proxies names your proxies, not everybody: a client could give itself any address")
    if config.database_url is not None and not config.database_url.startswith(("postgres://", "postgresql://")):
        raise UsageError("database_url is an address such as postgresql://user:password@host:5432/database")
    if config.redis_url is not None and not config.redis_url.startswith(("redis://", "rediss://")):
        raise UsageError("redis_url is an address such as redis://:password@host:6379/0")


def _check_networks(name: str, networks: list[str]) -> None:
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise UsageError(f"{name} takes networks such as 10.0.0.0/8, not {network!r}: {error}") from error


def read_name_server(text: str) -> tuple[str, int]:
    """Parse an address, with a port if it is not 53; raises ValueError."""
    host, colon, port = text.strip(), "", ""
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        before, colon, port = rest.partition(":")
        if before:
            raise ValueError(f"{text!r} is no address with a port")
    elif host.count(":") == 1:
        host, colon, port = host.partition(":")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ValueError(f"{text!r} has no valid port")
    return str(ipaddress.ip_address(host)), int(port) if colon else _DNS_PORT
