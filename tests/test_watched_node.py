"""A real node: its watchdog runs, its tenant has the default quotas, and a bench lifts them."""

import json
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from duetime.model.quotas import DEFAULTS
from nodes import NodeProcess


def ask(node: NodeProcess, path: str) -> bytes:
    request = urllib.request.Request(node.url + path, headers={"Authorization": f"Bearer {node.key}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        body: bytes = answer.read()
    return body


def delays(node: NodeProcess) -> float:
    """How often the loop's delay was measured."""
    families = text_string_to_metric_families(ask(node, "/metrics").decode())
    [count] = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "duetime_loop_delay_seconds_count"
    ]
    return count


def test_the_delay_of_the_loop_is_measured_all_the_time(node: NodeProcess) -> None:
    first = delays(node)
    for _ in range(1_000):
        if (last := delays(node)) > first:
            break

    assert last > first


def test_the_tenant_of_a_new_node_has_the_defaults_until_it_is_given_others(node: NodeProcess) -> None:
    def max_waiting() -> tuple[Any, ...]:
        effective = json.loads(ask(node, "/v1/tenants/default"))["effective"]
        return effective["quotas"]["max_waiting"], effective["sources"]["max_waiting"]

    before = max_waiting()
    node.allow(max_waiting=1_000_000_000)

    assert (before, max_waiting()) == ((DEFAULTS.max_waiting, "default"), (1_000_000_000, "own"))
