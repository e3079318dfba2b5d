"""Hundreds of thousands of steps of a world in which everything fails, and proof that they would show it."""

from dataclasses import fields

import pytest

from depth import far
from duetime.model.task import Outcome
from simulation.faults import Faults
from simulation.world import SimulationFailure, simulate

#: Where faults show that show in few worlds.
SEEDS = {
    "claims_by_the_nodes_clock": 7,
    "lapses_while_away": 5,
    "lapses_without_counter": 10,
    "repeats_verbs_in_doubt": 6,
    "sweeps_lately_ended": 7,
    "trusts_snapshot_end": 32,
    "verbs_commit_themselves": 35,
}


@pytest.mark.parametrize("seed", range(1, far(5, 51)))
def test_what_must_hold_holds_whatever_fails(seed: int) -> None:
    figures = simulate(seed, steps=100_000)

    assert figures.steps >= 100_000
    assert figures.tasks > 400
    # Everything that can happen to an attempt did.
    assert figures.outcomes.keys() == set(Outcome)
    assert figures.events["handed over"] > 10


def test_the_shards_move_between_nodes() -> None:
    assert simulate(4, steps=30_000).events["moved shards"] > 2


def test_a_seed_tells_the_same_story_every_time() -> None:
    assert simulate(11, steps=10_000) == simulate(11, steps=10_000)


@pytest.mark.parametrize("fault", [each.name for each in fields(Faults)])
def test_a_rule_that_is_switched_off_is_missed(fault: str) -> None:
    failure = find_failure(Faults(**{fault: True}))

    assert f"--fault {fault}" in failure
    assert "python -m simulation.world --seed" in failure
    assert "the last events:" in failure


def find_failure(faults: Faults) -> str:
    """By the seed that is known to show it, or else, since the rules may have changed, by any other."""
    known = [seed for fault, seed in SEEDS.items() if getattr(faults, fault)]
    for seed in (*known, *range(1, 61)):
        try:
            simulate(seed, steps=40_000, faults=faults)
        except SimulationFailure as failure:
            return str(failure)
    raise AssertionError(f"nobody noticed {faults}")
