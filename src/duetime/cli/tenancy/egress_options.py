"""The options of egress rules, which tenants and tiers share."""

import argparse
from collections.abc import Callable
from typing import Any

from duetime.errors import UsageError
from duetime.sdk.shapes.tenants import Egress

#: The names that `--unset` accepts for them. The first one means all.
EGRESS = ("egress", "egress-hosts", "egress-ports", "egress-https-only")
_FIELDS = {"hosts": "egress_host", "ports": "egress_port", "https_only": "egress_https_only"}


def egress_words(egress: Egress, is_meant: Callable[[str], bool] = lambda _: True) -> str:
    """Those of the rules that are set and meant."""
    words = {
        "hosts": None if egress.hosts is None else f"egress_hosts={','.join(egress.hosts) or 'none'}",
        "ports": None if egress.ports is None else f"egress_ports={','.join(map(str, egress.ports))}",
        "https_only": "egress_https_only" if egress.https_only else None,
    }
    return " ".join(word for name, word in words.items() if word is not None and is_meant(name))


def add_egress_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where its HTTP targets may be")
    group.add_argument(
        "--egress-host",
        action="append",
        metavar="HOST",
        help="a host that may be called, like api.example.com or *.example.com; may be given several times",
    )
    group.add_argument(
        "--egress-port", action="append", type=_port, metavar="PORT", help="a port; may be given several times"
    )
    group.add_argument("--egress-https-only", action="store_true", default=None, help="only https")


def read_egress_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the field of the request, or nothing. An unset value is null."""
    given = {field: getattr(arguments, option) for field, option in _FIELDS.items()}
    unset = {field for field in _FIELDS if f"egress-{field.replace('_', '-')}" in arguments.unset}
    for field, value in given.items():
        if value is not None and (field in unset or "egress" in arguments.unset):
            raise UsageError(f"--{_FIELDS[field].replace('_', '-')} is both set and unset")
    if "egress" in arguments.unset:
        return {"egress": None}
    egress = {field: value for field, value in given.items() if value is not None or field in unset}
    return {"egress": egress} if egress else {}


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: 1 to 65535")
    return int(text)
