"""`duetime breakers`: target hosts that are called less or not at all, whether the tenant is stopped, and why."""

import argparse
from datetime import datetime
from urllib.parse import quote

import msgspec

from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import Column, Table, local_time, print_line, print_note, print_raw
from duetime.errors import UsageError
from duetime.model.breaker_status import TENANT_HOST
from duetime.model.origin import read_host
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call


class _Breaker(msgspec.Struct):
    host: str
    state: str
    reason: str
    next_probe_at: datetime | None
    allowed_rate: float | None
    calls: int
    failures: int
    forced: str | None
    note: str


class _Page(msgspec.Struct):
    items: list[_Breaker]
    next: str | None


_COLUMNS = (
    Column("HOST"),
    Column("STATE"),
    Column("RATE"),
    Column("FAILED"),
    Column("NEXT PROBE"),
    Column("WHY", shrinks=True),
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    breakers = subparsers.add_parser(
        "breakers",
        help="target hosts that are called less or not at all, and whether the tenant is stopped",
        description="Breakers of target hosts, and the tenant's own (the host `tenant`): what they let through and "
        "why, and forcing them by hand.",
        allow_abbrev=False,
    )
    breakers.set_defaults(run=lambda _: _show_help(breakers))
    actions = breakers.add_subparsers(metavar="ACTION", parser_class=type(breakers))

    listing = actions.add_parser("list", help="list those that are not closed, or are forced", allow_abbrev=False)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    force_open = actions.add_parser("open", help="call a host no more, until it is set otherwise", allow_abbrev=False)
    force_open.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, "open")))

    close = actions.add_parser("close", help="limit nothing for a host, whatever fails", allow_abbrev=False)
    close.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, "closed")))

    auto = actions.add_parser("auto", help="let a host's breaker decide by itself again", allow_abbrev=False)
    auto.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, "auto")))

    for parser in (force_open, close, auto):
        parser.add_argument(
            "host",
            metavar="HOST",
            help="host:port as the list shows it, a URL (port 443 if none), or `tenant`: all tasks of the tenant",
        )
        parser.add_argument("--note", default="", metavar="TEXT", help="why, for those who look at it")
    for parser in (listing, force_open, close, auto):
        add_json_option(parser)
        add_connection_options(parser)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _list(client: Client, arguments: argparse.Namespace) -> int:
    table = Table(_COLUMNS)
    cursor = ""
    while True:
        body = client.send(Call("GET", f"/v1/breakers?limit=200{cursor}", bytes))
        page = msgspec.json.decode(body, type=_Page)
        if arguments.json:
            for item in msgspec.json.decode(body)["items"]:
                print_line(msgspec.json.encode(item).decode())
        elif not page.items:
            print_note("Nothing is stopped, and every host is called as fast as there is work.")
        else:
            table.add([_row(each) for each in page.items])
        if page.next is None:
            return 0
        cursor = f"&cursor={quote(page.next, safe='')}"


def _row(breaker: _Breaker) -> tuple[str, ...]:
    rate = "free" if breaker.allowed_rate is None else f"{breaker.allowed_rate:g}/s"
    failed = f"{breaker.failures} of {breaker.calls}" if breaker.calls else "-"
    why = f"{breaker.reason}: {breaker.note}" if breaker.note else breaker.reason
    return breaker.host, breaker.state, rate, failed, local_time(breaker.next_probe_at), why


def _put(client: Client, arguments: argparse.Namespace, state: str) -> int:
    host = TENANT_HOST if arguments.host == TENANT_HOST else read_host(arguments.host)
    if host is None:
        wanted = "write it as api.example.com:443, as a URL, or as the word tenant"
        raise UsageError(f"{arguments.host} is not a host: {wanted}")
    asked = msgspec.json.encode({"state": state, "note": arguments.note})
    body = client.send(Call("PUT", f"/v1/breakers/{quote(host, safe='')}", bytes, asked))
    if arguments.json:
        print_raw(body)
        return 0
    breaker = msgspec.json.decode(body, type=_Breaker)
    said = f"held {breaker.forced} by hand" if breaker.forced is not None else f"{breaker.state}, deciding by itself"
    whose = "the tenant" if breaker.host == TENANT_HOST else breaker.host
    print_line(f"Breaker of {whose}: {said}.")
    return 0
