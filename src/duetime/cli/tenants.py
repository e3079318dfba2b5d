"""`duetime tenants`: the teams on this service, their weights and quotas, and whether they may run anything."""

import argparse
from datetime import datetime
from urllib.parse import quote

import msgspec

from duetime.cli import arguments as words
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.egress_options import EGRESS, ShownEgress, add_egress_options, read_egress_options
from duetime.cli.output import Column, Table, local_time, print_line, print_note, print_raw
from duetime.cli.quota_options import ShownQuotas, add_quota_options, read_quota_options
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call


class _Effective(msgspec.Struct):
    weight: int
    quotas: ShownQuotas
    egress: ShownEgress = ShownEgress()
    sources: dict[str, str] = {}

    def words_from(self, *sources: str) -> str:
        """The quotas that come from there; an older server does not say it of any."""
        return self.quotas.words_of(lambda name: self.sources.get(name, "own") in sources)

    def facts_from(self, source: str) -> list[str]:
        """The quotas and the rules of HTTP targets that come from there."""
        egress = self.egress.words_of(lambda name: self.sources.get(f"egress.{name}", "own") == source)
        return [words for words in (self.words_from(source), egress) if words]


class _Tenant(msgspec.Struct):
    name: str
    state: str
    shard: int
    created_at: datetime
    effective: _Effective
    tier: str | None = None
    spread: int = 1
    defaults: bool = True
    notes: list[str] = []


class _Page(msgspec.Struct):
    items: list[_Tenant]
    next: str | None


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tenants = subparsers.add_parser(
        "tenants",
        help="tenants: weight, quotas, suspend",
        description="The teams on this service; needs an admin key, or an owner's to show its own tenant.",
        allow_abbrev=False,
    )
    tenants.set_defaults(run=lambda _: _show_help(tenants))
    actions = tenants.add_subparsers(metavar="ACTION", parser_class=type(tenants))

    listing = actions.add_parser("list", help="list the tenants", allow_abbrev=False)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    show = actions.add_parser("show", help="print what holds for a tenant", allow_abbrev=False)
    show.set_defaults(run=lambda given: talk(given, lambda client: _show(client, given)))

    put = actions.add_parser("put", help="create a tenant, or change its weight and quotas", allow_abbrev=False)
    add_quota_options(put, "tier", *EGRESS)
    add_egress_options(put)
    put.add_argument("--tier", metavar="TIER", help="whose values hold where the tenant sets none")
    put.add_argument("--spread", type=words.count, metavar="N", help="over how many shards its new lanes go (1)")
    put.add_argument(
        "--defaults",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the default quotas hold where neither it nor its tier says anything",
    )
    put.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, _read_put(given))))

    suspend = actions.add_parser("suspend", help="let nothing of a tenant run; nothing is lost", allow_abbrev=False)
    suspend.set_defaults(run=lambda given: talk(given, lambda client: _steer(client, given, "suspended")))

    resume = actions.add_parser("resume", help="let a suspended tenant run again", allow_abbrev=False)
    resume.set_defaults(run=lambda given: talk(given, lambda client: _steer(client, given, "active")))

    for parser in (show, put, suspend, resume):
        parser.add_argument("name", type=words.name, metavar="NAME", help="the tenant's name")
    for parser in (listing, show, put, suspend, resume):
        add_json_option(parser)
        add_connection_options(parser, has_tenant=False)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _list(client: Client, arguments: argparse.Namespace) -> int:
    names = ("NAME", "WEIGHT", "TIER", "STATE", "SHARD", "CREATED", "QUOTAS")
    table = Table(tuple(Column(name) for name in names))
    cursor = ""
    while True:
        body = client.send(Call("GET", f"/v1/tenants?limit=200{cursor}", bytes))
        page = msgspec.json.decode(body, type=_Page)
        if arguments.json:
            for item in msgspec.json.decode(body)["items"]:
                print_line(msgspec.json.encode(item).decode())
        else:
            table.add(
                [
                    (
                        each.name,
                        str(each.effective.weight),
                        each.tier or "",
                        each.state,
                        str(each.shard),
                        local_time(each.created_at),
                        each.effective.words_from("own", "tier"),
                    )
                    for each in page.items
                ]
            )
        if page.next is None:
            return 0
        cursor = f"&cursor={quote(page.next, safe='')}"


def _read_put(arguments: argparse.Namespace) -> dict[str, object]:
    fields = read_quota_options(arguments, "tier") | read_egress_options(arguments)
    given = {"spread": arguments.spread, "defaults": arguments.defaults}
    return fields | {name: value for name, value in given.items() if value is not None}


def _show(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(Call("GET", _path(arguments.name), bytes))
    if arguments.json:
        print_raw(body)
    else:
        _say(msgspec.json.decode(body, type=_Tenant))
    return 0


def _put(client: Client, arguments: argparse.Namespace, fields: dict[str, object]) -> int:
    body = client.send(Call("PUT", _path(arguments.name), bytes, msgspec.json.encode(fields)))
    if arguments.json:
        print_raw(body)
        return 0
    tenant = msgspec.json.decode(body, type=_Tenant)
    _say(tenant)
    for note in tenant.notes:
        print_note(f"{note}.")
    return 0


def _steer(client: Client, arguments: argparse.Namespace, state: str) -> int:
    # PUT would make a tenant of a misspelt name.
    client.send(Call("GET", _path(arguments.name), bytes))
    return _put(client, arguments, {"state": state})


def _say(tenant: _Tenant) -> None:
    facts = [tenant.state, f"weight {tenant.effective.weight}"]
    facts += [f"tier {tenant.tier}"] if tenant.tier is not None else []
    facts += [f"over {tenant.spread} shards"] if tenant.spread > 1 else []
    facts += [] if tenant.defaults else ["without default quotas"]
    facts += tenant.effective.facts_from("own")
    print_line(f"Tenant {tenant.name}: {', '.join(facts)}.")
    for source, title in (("tier", f"From tier {tenant.tier}"), ("default", "Defaults")):
        if said := tenant.effective.facts_from(source):
            print_line(f"{title}: {', '.join(said)}.")


def _path(name: str) -> str:
    return f"/v1/tenants/{quote(name, safe='')}"
