"""The hosts that a tenant's HTTP targets may be at: an allow-list that an admin sets.  Pure, no I/O.

It only ever narrows: whatever it lists, the node's own guard judges the addresses
afterwards.
"""

import ipaddress
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from duetime.model.origin import Origin
from duetime.model.quotas import Source

MAX_HOSTS = 200
MAX_PORTS = 100
MAX_HOST_CHARACTERS = 255
#: The code of a refusal, and the reason of a task that fails by it.
EGRESS_REFUSED = "egress_refused"

RIGHT_HOST = "use a host (api.example.com), an address, *.example.com for every host below it, or * for every host"
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
#: A host, or a pattern of hosts; an IPv6 address is a host as well.
HOST_PATTERN = rf"^(\*|(\*\.)?{_LABEL}(\.{_LABEL})*\.?)$"
_HOST = re.compile(HOST_PATTERN[1:-1])

Port = Annotated[int, Meta(ge=1, le=65_535)]
HOSTS = Meta(description="Hosts that may be called: `api.example.com`, `*.example.com` (every host below it), `*`.")
PORTS = Meta(description="Ports that may be called.")
HTTPS_ONLY = Meta(description="Whether only `https` may be called.")


class EgressRules(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where HTTP targets may be; what is absent is not limited."""

    hosts: Annotated[tuple[str, ...] | None, HOSTS] = None
    ports: Annotated[tuple[Port, ...] | None, PORTS] = None
    https_only: Annotated[bool | None, HTTPS_ONLY] = None

    def over(self, defaults: "EgressRules") -> "EgressRules":
        """These rules, with the defaults for those that are absent."""
        if self == NO_EGRESS_RULES:
            return defaults
        return EgressRules(
            defaults.hosts if self.hosts is None else self.hosts,
            defaults.ports if self.ports is None else self.ports,
            defaults.https_only if self.https_only is None else self.https_only,
        )


NO_EGRESS_RULES = EgressRules()


class EgressLayers(msgspec.Struct, frozen=True):
    """A tenant's rules, and the defaults for them: its tier's, then those of the tier `default`."""

    own: EgressRules
    tier: EgressRules = NO_EGRESS_RULES
    defaults: EgressRules = NO_EGRESS_RULES

    @property
    def together(self) -> EgressRules:
        return self.own.over(self.tier).over(self.defaults)

    def sources(self) -> dict[str, Source]:
        """Where each rule that holds comes from, by names like `egress.hosts`."""
        together = self.together
        layers: Sequence[tuple[Source, EgressRules]] = (
            ("own", self.own),
            ("tier", self.tier),
            ("default", self.defaults),
        )
        return {
            f"egress.{name}": next(source for source, each in layers if getattr(each, name) is not None)
            for name in EgressRules.__struct_fields__
            if getattr(together, name) is not None
        }


class EgressJudge:
    """Rules in the form in which a call is judged by them."""

    __slots__ = ("_any_host", "_endings", "_hosts", "_https_only", "_ports")

    def __init__(self, rules: EgressRules) -> None:
        hosts = rules.hosts or ()
        self._any_host = rules.hosts is None or "*" in hosts
        self._hosts = frozenset(hosts)
        self._endings = tuple(host[1:] for host in hosts if host.startswith("*."))
        self._ports = None if rules.ports is None else frozenset(rules.ports)
        self._https_only = bool(rules.https_only)

    @classmethod
    def of(cls, rules: EgressRules) -> "EgressJudge | None":
        """None if there is no rule to judge by."""
        judge = cls(rules)
        return None if judge._any_host and judge._ports is None and not judge._https_only else judge

    def refusal(self, origin: Origin) -> str | None:
        """Why the tenant may not call this host, beginning with the name of the rule; None if it may."""
        if self._https_only and origin.scheme != "https":
            return "egress.https_only: the tenant may call https only"
        if not self._any_host:
            host = origin.host.removesuffix(".")
            if host not in self._hosts and not host.endswith(self._endings) and _plain(host) not in self._hosts:
                return f"egress.hosts: {host[:80]} is not among the hosts that the tenant may call"
        if self._ports is not None and origin.port not in self._ports:
            return f"egress.ports: {origin.port} is not among the ports that the tenant may call"
        return None


def read_host_pattern(text: str) -> str | None:
    """A pattern as it is stored; None if it is not a pattern."""
    host = text.strip().lower()
    if len(host) > MAX_HOST_CHARACTERS:
        return None
    if _HOST.fullmatch(host):
        return host.removesuffix(".")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return _plain(bare) if ":" in bare else None


def _plain(host: str) -> str | None:
    """An IPv6 address in its usual form, other hosts unchanged; None for what is not a host."""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        return None
