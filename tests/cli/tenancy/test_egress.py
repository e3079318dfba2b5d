"""Egress rules from the command line, on a real node: set, shown, obeyed, and what they refused is redriven."""

import uuid

import pytest

from cli.conftest import Run
from duetime.sdk.client.sync_client import Client
from nodes import NodeProcess
from services import wait_until


@pytest.fixture
def tenant() -> str:
    return f"team-{uuid.uuid4().hex[:12]}"


def test_rules_are_set_shown_and_unset(duetime: Run, tenant: str) -> None:
    duetime("tiers", "put", f"{tenant}-tier", "--egress-port", "443")
    words = ("--egress-host", "a.example", "--egress-host", "*.b.example", "--egress-https-only")
    put = duetime("tenants", "put", tenant, "--tier", f"{tenant}-tier", "--no-defaults", *words)
    more = duetime("tenants", "put", tenant, "--egress-port", "443", "--egress-port", "8443")
    shown = duetime("tenants", "show", tenant)
    unset = duetime("tenants", "put", tenant, "--unset", "egress-hosts", "--unset", "egress-https-only", "--json")

    said = f"Tenant {tenant}: active, weight 1, tier {tenant}-tier, without default quotas, "
    least = "Defaults: max_types=1,000 max_calendars=1,000.\n"
    own = f"{said}egress_hosts=a.example,*.b.example egress_https_only.\n"
    assert put.out == f"{own}From tier {tenant}-tier: egress_ports=443.\n{least}"
    own = f"{said}egress_hosts=a.example,*.b.example egress_ports=443,8443 egress_https_only.\n"
    assert more.out == shown.out == f"{own}{least}"
    assert "dead letter" in more.err
    assert unset.json["egress"] == {"ports": [443, 8443]}
    assert duetime("tenants", "put", tenant, "--unset", "egress", "--json").json["egress"] == {}
    assert duetime("tiers", "show", f"{tenant}-tier").out.endswith("weight 1, egress_ports=443; 1 tenants.\n")


def test_wrong_options_are_said_before_anything_is_sent(run: Run) -> None:
    nowhere = ("--url", "http://127.0.0.1:1", "--key", "k")
    for words, said in (
        (("--egress-port", "0"), "'0' is not a port"),
        (("--egress-port", "https"), "'https' is not a port"),
        (("--egress-port", "1", "--unset", "egress", *nowhere), "--egress-port is both set and unset"),
        (("--egress-https-only", "--unset", "egress-https-only", *nowhere), "--egress-https-only is both"),
    ):
        answer = run("tenants", "put", "acme", *words)
        assert (answer.code, said in answer.err) == (2, True)


def test_a_node_obeys_a_change_and_what_it_refused_can_be_redriven(
    duetime: Run, node: NodeProcess, tenant: str
) -> None:
    duetime("tenants", "put", tenant)
    key = duetime("keys", "create", "--role", "owner", "--tenant", tenant).out.strip()
    # Nobody listens there: that the call was made is seen by how it failed.
    target = ("--target", "http://127.0.0.1:9/", "--max-attempts", "1", "--key", key)
    stored = duetime("submit", "a", *target, "--delay", "2s", "--json").json["id"]

    duetime("tenants", "put", tenant, "--egress-host", "api.example.com")
    wait_until(lambda: duetime("submit", "a", *target).code != 0)
    refused = duetime("submit", "a", *target)
    assert (refused.code, "egress.hosts: 127.0.0.1 is not among the hosts" in refused.err) == (2, True)

    with Client(node.url, key) as client:
        assert how_it_failed(client, stored, 1) == ("permanent", "egress_refused")

        duetime("tenants", "put", tenant, "--unset", "egress")
        wait_until(lambda: duetime("submit", "a", *target).code == 0)
        client.redrive([stored])
        assert how_it_failed(client, stored, 2) == ("transient", "connect")


def how_it_failed(client: Client, task: str, attempts: int) -> tuple[str, str]:
    wait_until(lambda: client.get(task).state == "dead" and len(client.get(task).attempts) == attempts)
    error = client.get(task).attempts[-1].error
    assert error is not None
    assert isinstance(error.detail, dict)
    return str(error.kind), error.detail["reason"]
