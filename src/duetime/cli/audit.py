"""`duetime audit`: what was done to tenants and keys: who, when, what before and after."""

import argparse
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from duetime.cli.arguments import count
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import Column, Table, local_time, print_line
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call

_MOST_IN_A_PAGE = 200


class _Act(msgspec.Struct):
    at: datetime
    tenant: str | None
    actor: str
    key_hint: str | None
    action: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    audit = subparsers.add_parser(
        "audit",
        help="what was done to tenants and keys",
        description="What was done to tenants and keys, the latest first; needs an admin key, or an owner's for its "
        "own tenant.",
        allow_abbrev=False,
    )
    audit.add_argument("--tenant", metavar="NAME", help="only what was done to this tenant")
    audit.add_argument("-n", "--limit", type=count, default=50, metavar="N", help="at most so many (50)")
    audit.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))
    add_json_option(audit)
    add_connection_options(audit, has_tenant=False)


def _list(client: Client, arguments: argparse.Namespace) -> int:
    table = Table(tuple(Column(name) for name in ("AT", "TENANT", "BY", "ACTION", "OF", "CHANGE")))
    left, cursor = arguments.limit, ""
    tenant = "" if arguments.tenant is None else f"&tenant={quote(arguments.tenant, safe='')}"
    while left > 0:
        path = f"/v1/audit?limit={min(left, _MOST_IN_A_PAGE)}{tenant}{cursor}"
        page = msgspec.json.decode(client.send(Call("GET", path, bytes)))
        left -= len(page["items"])
        if arguments.json:
            for item in page["items"]:
                print_line(msgspec.json.encode(item).decode())
        else:
            table.add([_row(msgspec.convert(item, _Act)) for item in page["items"]])
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    return 0


def _row(act: _Act) -> tuple[str, ...]:
    by = act.actor if act.key_hint is None else f"{act.key_hint}…"
    return (local_time(act.at), act.tenant or "", by, act.action, act.subject, _change(act))


def _change(act: _Act) -> str:
    before, after = act.before or {}, act.after or {}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if act.before is None:
        return ", ".join(f"{name} {_value(after[name])}" for name in names if after[name])
    return ", ".join(f"{name} {_value(before.get(name))} → {_value(after[name])}" for name in names if name in after)


def _value(value: object) -> str:
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
