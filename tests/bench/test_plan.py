"""The order of runs: whatever disturbs the machine for a while disturbs them all."""

from itertools import groupby

from bench.peers import PEERS
from bench.plan import make_steps
from bench.scenarios import SCENARIOS
from bench.scenarios.contract import Options


def test_scenarios_go_round_by_round_and_long_ones_come_last() -> None:
    scenarios = [SCENARIOS[name] for name in ("sustained", "soak", "limit", "drain")]
    peers = [PEERS["duetime"], PEERS["graphile-worker"]]

    steps = make_steps(scenarios, peers, Options(runs=3))

    rounds = [(key, {step.scenario.name for step in group}) for key, group in groupby(steps, lambda step: step.round)]
    short = {"sustained", "limit", "drain"}
    assert rounds == [(0, short), (1, short), (2, short), (0, {"soak"})]
    # The first run of each is with another peer first.
    firsts = [step.peer.name for step in steps if step.scenario.name == "drain"][::2]
    assert firsts == ["duetime", "graphile-worker", "duetime"]
