"""`duetime audit`: changes to tenants and keys: by whom, when, and the values before and after."""

import msgspec

from duetime.cli.actions import Action, Given, Subparsers, list_all
from duetime.cli.arguments import count
from duetime.cli.output import Column, local_time
from duetime.sdk.calls.administration import AUDIT
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.operation import Act


def add_parser(subparsers: Subparsers) -> None:
    Action(
        "audit",
        "what was done to tenants and keys",
        list_all(_page, _COLUMNS, _row, most=lambda given: int(given.limit)),
        (
            lambda parser: parser.add_argument("--tenant", metavar="NAME", help="only what was done to this tenant"),
            lambda parser: parser.add_argument(
                "-n", "--limit", type=count, default=50, metavar="N", help="at most so many (50)"
            ),
        ),
        "What was done to tenants and keys, the latest first; needs an admin key, or an owner's for its own tenant.",
        has_tenant=False,
    ).add_to(subparsers)


_COLUMNS = tuple(Column(name) for name in ("AT", "TENANT", "BY", "ACTION", "OF", "CHANGE"))


def _page(given: Given, limit: int, cursor: str | None) -> ApiCall[Page[Act]]:
    return AUDIT.list(limit=limit, cursor=cursor, tenant=given.tenant)


def _row(act: Act) -> tuple[str, ...]:
    by = act.actor if act.key_hint is None else f"{act.key_hint}…"
    return (local_time(act.at), act.tenant or "", by, act.action, act.subject, _change(act))


def _change(act: Act) -> str:
    before, after = act.before or {}, act.after or {}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if act.before is None:
        return ", ".join(f"{name} {_value(after[name])}" for name in names if after[name])
    return ", ".join(f"{name} {_value(before.get(name))} → {_value(after[name])}" for name in names if name in after)


def _value(value: object) -> str:
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
