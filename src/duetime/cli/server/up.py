"""`duetime up` and `duetime serve`: run a node, with an embedded PostgreSQL or on a server."""

import argparse
import asyncio
import json
import os
import shlex
import socket
from collections.abc import Coroutine
from pathlib import Path

import structlog
import uvloop

from duetime.admin.first_keys import MAKE_ONE, count_admin_keys, ensure_default
from duetime.admin.keyring import Keys
from duetime.admin.keys import create_key
from duetime.config import Config, read_config
from duetime.database.embedded import EmbeddedServer
from duetime.database.folder import write_private
from duetime.database.pool import Database
from duetime.errors import UsageError
from duetime.files import raise_limit
from duetime.passwords import hide_passwords
from duetime.secret_keys import FILE_NAME, make_key_file, read_secrets_keys
from duetime.serve import Node
from duetime.stopping import stop_when, watch_signals
from duetime.supervise import Processes
from duetime.telemetry import set_up_logs

log = structlog.get_logger()
#: `up` is for trying things out on one machine, so targets on it may be called.
_LOOPBACK = ["127.0.0.0/8", "::1/128"]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    up = subparsers.add_parser("up", help="run everything on this machine, with an embedded PostgreSQL")
    up.add_argument("--data", metavar="DIR", help="folder of the embedded PostgreSQL and the first key (.duetime)")
    up.add_argument("--json", action="store_true", help="print one JSON line when ready: url, key, key_file, data")
    up.set_defaults(run=run_up)
    serve = subparsers.add_parser("serve", help="run a node on a PostgreSQL server")
    serve.set_defaults(run=run_serve)
    for parser in (up, serve):
        parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
        parser.add_argument("--port", metavar="PORT", help="port to listen on; 0 picks a free one (8080)")
        parser.add_argument("--processes", metavar="N", help="node processes that share the port and the shards (1)")
        parser.add_argument("--database-url", metavar="URL", help="PostgreSQL 15 or newer (DUETIME_DATABASE_URL)")
        parser.add_argument("--config", type=Path, metavar="FILE", help="settings as TOML")
        parser.add_argument("--log-format", metavar="FORMAT", help="console (or text) or json")
        parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")
        parser.add_argument("--egress-allow", metavar="CIDR", action="append", help="network that targets may be in")
        parser.add_argument("--secrets-key-file", metavar="FILE", help="keys that encrypt tenants' secrets")
        parser.add_argument("--node-name", metavar="NAME", help="this node's name in logs and histories")


def run_up(arguments: argparse.Namespace) -> int:
    config = _config(arguments, quiet=True)
    if not config.egress_allow:
        config = _replace(config, egress_allow=_LOOPBACK)
    return _run(_up(config, arguments.json))


def run_serve(arguments: argparse.Namespace) -> int:
    config = _config(arguments, quiet=False)
    if config.database_url is None:
        raise UsageError("serve needs a PostgreSQL server: give --database-url, or use duetime up for an embedded one")
    return _run(_serve(config))


def _config(arguments: argparse.Namespace, *, quiet: bool) -> Config:
    names = (
        "host",
        "port",
        "data",
        "database_url",
        "processes",
        "log_format",
        "log_level",
        "egress_allow",
        "secrets_key_file",
        "node_name",
    )
    given: dict[str, object] = {name: getattr(arguments, name, None) for name in names}
    config = read_config(given, file=arguments.config)
    # Reported now, and not by each process.
    read_secrets_keys(config)
    # `up` is used by a person: show only what they need.
    if quiet and given["log_level"] is None and "DUETIME_LOG_LEVEL" not in os.environ and arguments.config is None:
        config = _replace(config, log_level="warning")
    set_up_logs(config.log_format, config.log_level, config.node_name or socket.gethostname())
    raise_limit()
    return config


def _replace(config: Config, **changes: object) -> Config:
    import msgspec

    return msgspec.structs.replace(config, **changes)


def _run(main: Coroutine[None, None, None]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
    return 0


async def _up(config: Config, as_json: bool) -> None:
    signalled = watch_signals()
    # In addition to the nodes there are doctors, backups and the server's own connections.
    connections = max(50, config.processes * config.database_connections + 20)
    settings = {"max_connections": str(connections)}
    embedded = None if config.database_url else EmbeddedServer(Path(config.data), settings=settings)
    try:
        database_url = config.database_url or await _start(embedded)
        config = _with_secrets_key(config)
        node = await _open(config, database_url)
        await node.start()
        key = await _first_key(database_url, Path(config.data))
        write_private(Path(config.data) / "url", node.url)
        _announce(node.url, key, config, as_json)
        await stop_when(signalled, node)
    finally:
        if embedded is not None:
            await embedded.stop()


def _with_secrets_key(config: Config) -> Config:
    """If no key for encrypting secrets is set, the data folder has its own."""
    if config.secrets_keys or config.secrets_key_file is not None:
        return config
    file = Path(config.data).resolve() / FILE_NAME
    make_key_file(file)
    return _replace(config, secrets_key_file=str(file))


async def _start(embedded: EmbeddedServer | None) -> str:
    assert embedded is not None
    return await embedded.start()


async def _open(config: Config, database_url: str) -> Node | Processes:
    if config.processes > 1:
        return await Processes.open(config, database_url)
    return await Node.open(config, database_url)


async def _serve(config: Config) -> None:
    assert config.database_url is not None
    signalled = watch_signals()
    node = await _open(config, config.database_url)
    await _look_for_key(config.database_url)
    if os.geteuid() == 0:
        log.warning("the node runs as root and needs no right of root: give it a user of its own (docs/security.md)")
    await node.start()
    await stop_when(signalled, node)


async def _look_for_key(database_url: str) -> None:
    """Without an admin key every call is refused, so show how to get one."""
    database = await Database.open(database_url, size=1)
    try:
        if not await count_admin_keys(database):
            log.warning(f"no admin key is valid: {MAKE_ONE}")
    finally:
        await database.close()


async def _first_key(database_url: str, data: Path) -> str | None:
    """Return the admin key of the tenant `default` if it was created just now. It is stored in the data folder."""
    file = data / "key"
    database = await Database.open(database_url, size=1)
    try:
        tenant, key = await ensure_default(database)
        if key is None and file.exists():
            kept = _read(file)
            if await Keys(database).resolve(kept) is not None:
                return None
        if key is None:
            _, key = await create_key(database, tenant.id, "admin")
    finally:
        await database.close()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(file, key)
    return key


def _read(file: Path) -> str:
    return file.read_text("utf-8").strip()


def _announce(url: str, key: str | None, config: Config, as_json: bool) -> None:
    """Show what a person or a program needs to begin. The key itself is shown only when it is new."""
    data = Path(config.data).resolve()
    if as_json:
        said = {"url": url, "key": key, "key_file": str(data / "key"), "data": str(data)}
        print(json.dumps(said), flush=True)
        return
    task = {"type": "hello", "payload": {"name": "world"}, "target": {"url": f"{url}/healthz", "method": "GET"}}
    # Shell words that read the key from its file.
    authorization = f'-H "Authorization: Bearer $(cat {shlex.quote(str(data / "key"))})"'
    shown = f"in {data / 'key'}" if key is None else f"{key}  (shown this once; it stays in {data / 'key'})"
    lines = [
        f"duetime is up at {url}",
        f"  API key    {shown}",
        f"  reference  {url}/docs",
        f"  data       {hide_passwords(config.database_url or str(data))}",
        "",
        "Try it: submit a task that calls this server, then see how it went.",
        f"  curl -s {url}/v1/tasks {authorization} -H 'Content-Type: application/json' -d '{json.dumps(task)}'",
        f"  curl -s '{url}/v1/tasks?type=hello' {authorization}",
        "",
        "Ctrl-C stops it; the data stays.",
    ]
    print("\n".join(lines), flush=True)
