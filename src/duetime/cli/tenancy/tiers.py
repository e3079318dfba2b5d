"""`duetime tiers`: weights and quotas for tenants that set none of their own."""

from duetime.cli.actions import Action, Command, Given, Subparsers, delete, list_all, named, tell
from duetime.cli.output import Column, print_line
from duetime.cli.tenancy.egress_options import EGRESS, add_egress_options, egress_words, read_egress_options
from duetime.cli.tenancy.quota_options import add_quota_options, quota_words, read_quota_options
from duetime.sdk.calls.administration import TIERS
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.shapes.tenants import Tier


def add_parser(subparsers: Subparsers) -> None:
    name = named("the tier's name")
    Command(
        "tiers",
        "weights and quotas for tenants that set none of their own",
        "Weights and quotas for tenants that set none of their own; needs an admin key.",
        (
            Action(
                "list",
                "list the tiers",
                list_all(lambda _, limit, cursor: TIERS.list(limit=limit, cursor=cursor), _COLUMNS, _row),
                has_tenant=False,
            ),
            Action("show", "print a tier", tell(lambda given: TIERS.get(given.name), _say), (name,), has_tenant=False),
            Action(
                "put",
                "create a tier, or change it",
                tell(_put, _say),
                (lambda parser: add_quota_options(parser, *EGRESS), add_egress_options, name),
                has_tenant=False,
            ),
            Action(
                "delete",
                "delete a tier that no tenant has",
                delete(lambda given: TIERS.delete(given.name), "Deleted tier {}."),
                (name,),
                has_tenant=False,
            ),
        ),
    ).add_to(subparsers)


_COLUMNS = (Column("NAME"), Column("WEIGHT"), Column("TENANTS"), Column("QUOTAS"))


def _row(tier: Tier) -> tuple[str, ...]:
    return tier.name, str(tier.weight or 1), f"{tier.tenants:,}", quota_words(tier.quotas)


def _put(given: Given) -> ApiCall[Tier]:
    return TIERS.put(given.name, read_quota_options(given) | read_egress_options(given))


def _say(tier: Tier) -> None:
    quotas = f", {said}" if (said := quota_words(tier.quotas)) else ""
    egress = f", {said}" if (said := egress_words(tier.egress)) else ""
    print_line(f"Tier {tier.name}: weight {tier.weight or 1}{quotas}{egress}; {tier.tenants:,} tenants.")
