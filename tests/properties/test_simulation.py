"""Hundreds of thousands of steps of a world in which everything fails, and proof that they would show it."""

from dataclasses import fields

import pytest

from depth import far
from duetime.model.task import Outcome
from properties.simulation import SimulationFailure, simulate
from properties.store_double import Faults

#: Where faults show that show in few worlds: the search for one takes a quarter of a minute.
SEEDS = {
    "stores_old_ids": 14,
    "trusts_snapshot_end": 2,
    "lapses_without_counter": 17,
    "lapses_while_away": 2,
    "charges_by_task": 2,
    "mints_anew_in_doubt": 4,
    "sweeps_lately_ended": 13,
    "repeats_verbs_in_doubt": 11,
}


@pytest.mark.parametrize("seed", range(1, far(5, 51)))
def test_what_must_hold_holds_whatever_fails(seed: int) -> None:
    figures = simulate(seed, steps=100_000)

    assert figures.steps >= 100_000
    assert figures.tasks > 1_000
    # Everything that can happen to an attempt did.
    assert figures.outcomes.keys() == set(Outcome)


def test_a_seed_tells_the_same_story_every_time() -> None:
    assert simulate(11, steps=10_000) == simulate(11, steps=10_000)


@pytest.mark.parametrize("fault", [each.name for each in fields(Faults)])
def test_a_rule_that_is_switched_off_is_missed(fault: str) -> None:
    failure = find_failure(Faults(**{fault: True}))

    assert f"--fault {fault}" in failure
    assert "python -m properties.simulation --seed" in failure
    assert "the last events:" in failure


def find_failure(faults: Faults) -> str:
    """By the seed that is known to show it, or else, since the rules may have changed, by any other."""
    known = [seed for fault, seed in SEEDS.items() if getattr(faults, fault)]
    for seed in (*known, *range(1, 31)):
        try:
            simulate(seed, steps=30_000, faults=faults)
        except SimulationFailure as failure:
            return str(failure)
    raise AssertionError(f"nobody noticed {faults}")
