"""`duetime tenants`: the teams on this service, their weights and quotas, and whether they may run anything."""

import argparse

from duetime.cli import arguments as words
from duetime.cli.actions import Action, Command, Given, RunAction, Subparsers, list_all, named, tell, with_client
from duetime.cli.connect import ask
from duetime.cli.output import Column, local_time, print_line, print_note, print_raw
from duetime.cli.tenancy.egress_options import EGRESS, add_egress_options, egress_words, read_egress_options
from duetime.cli.tenancy.quota_options import add_quota_options, quota_words, read_quota_options
from duetime.sdk.calls.administration import TENANTS
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes.tenants import EffectiveTenant, Tenant


def add_parser(subparsers: Subparsers) -> None:
    name = named("the tenant's name")
    Command(
        "tenants",
        "tenants: weight, quotas, suspend",
        "The teams on this service; needs an admin key, or an owner's to show its own tenant.",
        (
            Action(
                "list",
                "list the tenants",
                list_all(lambda _, limit, cursor: TENANTS.list(limit=limit, cursor=cursor), _COLUMNS, _row),
                has_tenant=False,
            ),
            Action(
                "show",
                "print what holds for a tenant",
                tell(lambda given: TENANTS.get(given.name), _say_all),
                (name,),
                has_tenant=False,
            ),
            Action(
                "put",
                "create a tenant, or change its weight and quotas",
                tell(_put, _say_change),
                (_add_put_options, name),
                has_tenant=False,
            ),
            Action(
                "suspend",
                "let nothing of a tenant run; nothing is lost",
                _steer("suspended"),
                (name,),
                has_tenant=False,
            ),
            Action("resume", "let a suspended tenant run again", _steer("active"), (name,), has_tenant=False),
        ),
    ).add_to(subparsers)


_COLUMNS = tuple(Column(name) for name in ("NAME", "WEIGHT", "TIER", "STATE", "SHARD", "CREATED", "QUOTAS"))


def _add_put_options(parser: argparse.ArgumentParser) -> None:
    add_quota_options(parser, "tier", *EGRESS)
    add_egress_options(parser)
    parser.add_argument("--tier", metavar="TIER", help="whose values hold where the tenant sets none")
    parser.add_argument("--spread", type=words.count, metavar="N", help="over how many shards its new lanes go (1)")
    parser.add_argument(
        "--defaults",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the default quotas hold where neither it nor its tier says anything",
    )


def _row(tenant: Tenant) -> tuple[str, ...]:
    return (
        tenant.name,
        str(tenant.effective.weight),
        tenant.tier or "",
        tenant.state,
        str(tenant.shard),
        local_time(tenant.created_at),
        _quotas_from(tenant.effective, "own", "tier"),
    )


def _put(given: Given) -> ApiCall[Tenant]:
    fields = read_quota_options(given, "tier") | read_egress_options(given)
    others = {"spread": given.spread, "defaults": given.defaults}
    return TENANTS.put(given.name, fields | {name: value for name, value in others.items() if value is not None})


def _steer(state: str) -> RunAction:
    def run(client: Client, given: Given) -> int:
        # PUT would create a tenant with a misspelt name.
        client.send(TENANTS.get(given.name))
        body, tenant = ask(client, TENANTS.put(given.name, {"state": state}))
        if given.json:
            print_raw(body)
        else:
            _say_change(tenant)
        return 0

    return with_client(run)


def _say_change(tenant: Tenant) -> None:
    _say_all(tenant)
    for note in tenant.notes:
        print_note(f"{note}.")


def _say_all(tenant: Tenant) -> None:
    facts = [tenant.state, f"weight {tenant.effective.weight}"]
    facts += [f"tier {tenant.tier}"] if tenant.tier is not None else []
    facts += [f"over {tenant.spread} shards"] if tenant.spread > 1 else []
    facts += [] if tenant.defaults else ["without default quotas"]
    facts += _facts_from(tenant.effective, "own")
    print_line(f"Tenant {tenant.name}: {', '.join(facts)}.")
    for source, title in (("tier", f"From tier {tenant.tier}"), ("default", "Defaults")):
        if said := _facts_from(tenant.effective, source):
            print_line(f"{title}: {', '.join(said)}.")


def _quotas_from(effective: EffectiveTenant, *sources: str) -> str:
    """Return the quotas with this origin. An older server does not report origins."""
    return quota_words(effective.quotas, lambda name: effective.sources.get(name, "own") in sources)


def _facts_from(effective: EffectiveTenant, source: str) -> list[str]:
    """Return the quotas and the egress rules with this origin."""
    egress = egress_words(effective.egress, lambda name: effective.sources.get(f"egress.{name}", "own") == source)
    return [words for words in (_quotas_from(effective, source), egress) if words]
