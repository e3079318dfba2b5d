"""Runs that lost their time to others are made again."""

from pathlib import Path

import pytest
from bench.results import Run
from bench.stolen import MOST_PERCENT, Stolen, measure_undisturbed


def write(file: Path, *, idle: int, steal: int) -> None:
    file.write_text(f"cpu  0 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")


def test_what_was_stolen_is_counted_since_the_last_look(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    write(file, idle=100, steal=100)
    stolen = Stolen(file)

    write(file, idle=190, steal=110)
    assert stolen.percent() == 10.0
    assert stolen.percent() == 0.0


def test_a_machine_that_does_not_say_loses_nothing(tmp_path: Path) -> None:
    assert Stolen(tmp_path / "absent").percent() == 0.0


@pytest.mark.parametrize(
    ("shares", "runs", "kept"),
    [
        pytest.param([0], 1, 0, id="a quiet run"),
        pytest.param([MOST_PERCENT], 1, 0, id="just quiet enough"),
        pytest.param([30, 2], 2, 1, id="the second is quiet"),
        pytest.param([30, 12, 20], 3, 1, id="none is quiet"),
    ],
)
async def test_a_disturbed_run_is_made_again_and_the_least_disturbed_counts(
    tmp_path: Path, shares: list[float], runs: int, kept: int
) -> None:
    file = tmp_path / "stat"
    write(file, idle=0, steal=0)
    stolen, said = Stolen(file), list[str]()
    made = idle = steal = 0

    async def measure() -> Run:
        nonlocal made, idle, steal
        idle += int(1000 - 10 * shares[made])
        steal += int(10 * shares[made])
        write(file, idle=idle, steal=steal)
        made += 1
        return Run({"rate": made - 1})

    run = await measure_undisturbed(measure, stolen, 2, said.append)

    assert (made, run.figures["rate"], run.stolen_percent) == (runs, kept, shares[kept])
    assert len(said) == runs - 1
