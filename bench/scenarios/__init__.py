"""The scenarios, by name, in the order in which they are run."""

from importlib import import_module

from bench.scenarios.contract import Scenario

_MODULES = (
    "submit",
    "drain",
    "sustained",
    "lag",
    "burst",
    "limit",
    "targets",
    "load",
    "waiting",
    "snapshot",
    "soak",
)


def _read() -> dict[str, Scenario]:
    scenarios: list[Scenario] = [import_module(f"bench.scenarios.{name}").SCENARIO for name in _MODULES]
    return {scenario.name: scenario for scenario in scenarios}


SCENARIOS: dict[str, Scenario] = _read()
