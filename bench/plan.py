"""Which runs are made, in which order, and how long they will take.

Everything is measured round by round: the first run of each peer in each scenario,
then the second of each, so that a disturbance of the machine affects all of them; a
run that lost much of its time to other programs is made again.  Scenarios that are
measured only once come last.  Each round begins with another peer.  Peers on the same
server follow each other.  A peer that fails keeps its earlier results and is not run
again in that variant; the rest goes on.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.peers.base import Installation, Peer
from bench.processes import BenchError
from bench.results import Measurement, Run
from bench.scenarios.contract import Options, Scenario
from bench.stage import Hall
from bench.stolen import MORE_RUNS, Stolen, measure_undisturbed


@dataclass(frozen=True)
class Step:
    """One run of one peer in one variant of a scenario."""

    scenario: Scenario
    peer: Peer
    variant: str
    round: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.scenario.name, self.peer.name, self.variant

    def __str__(self) -> str:
        return " ".join(filter(None, (self.scenario.name, self.peer.name, self.variant and f"({self.variant})")))


def make_steps(scenarios: Sequence[Scenario], peers: Sequence[Peer], options: Options) -> list[Step]:
    """All runs, in their order."""
    steps = [step for scenario in scenarios for step in _steps_of(scenario, peers, options)]
    return sorted(steps, key=lambda step: (step.scenario.most_runs is not None, step.round))


def _steps_of(scenario: Scenario, peers: Sequence[Peer], options: Options) -> Iterator[Step]:
    servers = ("postgres", "redis")
    groups = [[peer for peer in peers if (peer.server == "redis") == (server == "redis")] for server in servers]
    for number in range(scenario.runs(options)):
        for group in groups:
            first = number % len(group) if group else 0
            for peer in group[first:] + group[:first]:
                for variant in scenario.variants(peer, options):
                    yield Step(scenario, peer, variant, number)


class Durations:
    """How long each kind of step took last time, in a file, to estimate the time that is left."""

    def __init__(self, file: Path, options: Options) -> None:
        self._file = file
        self._options = options
        try:
            self._seen: dict[str, float] = json.loads(file.read_text())
        except (OSError, ValueError):
            self._seen = {}

    def estimate(self, step: Step) -> float:
        return self._seen.get(self._name(step)) or step.scenario.seconds(step.peer, step.variant, self._options)

    def learn(self, step: Step, seconds: float) -> None:
        self._seen[self._name(step)] = round(seconds, 2)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._seen, indent=1, sort_keys=True))

    def _name(self, step: Step) -> str:
        size = "quick" if self._options.is_quick else str(self._options.tasks or "")
        return "/".join(filter(None, (*step.key, size)))


class Record:
    """The results of the runs so far."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._keys = dict.fromkeys(step.key for step in steps)
        self._runs: dict[tuple[str, str, str], list[Run]] = {}
        self._errors: dict[tuple[str, str, str], str] = {}

    def add(self, step: Step, run: Run) -> None:
        self._runs.setdefault(step.key, []).append(run)

    def fail(self, step: Step, error: str) -> None:
        self._errors[step.key] = error

    def has_failed(self, step: Step) -> bool:
        return step.key in self._errors

    def measurements(self) -> list[Measurement]:
        """The measurements that were made or have failed, scenario by scenario."""
        made = [key for key in self._keys if key in self._runs or key in self._errors]
        return [Measurement.of(*key, self._runs.get(key, []), self._errors.get(key, "")) for key in made]


async def carry_out(
    steps: Sequence[Step],
    hall: Hall,
    installations: Mapping[str, Installation],
    options: Options,
    durations: Durations,
    record: Record,
) -> None:
    """Make all the runs, and store their results in the record."""
    stolen = Stolen()
    for place, step in enumerate(steps):
        if record.has_failed(step):
            continue
        left = sum(durations.estimate(each) for each in steps[place:] if not record.has_failed(each))
        runs = step.scenario.runs(options)
        say(f"[{place + 1}/{len(steps)}, {tell_time(left)} left] {step}, run {step.round + 1} of {runs}")
        began = time.monotonic()
        try:
            run = await measure_undisturbed(
                partial(_measure, step, hall, installations, options),
                stolen,
                0 if options.is_quick or step.scenario.most_runs is not None else MORE_RUNS,
                lambda line: say(f"    {line}"),
            )
        except* Exception as group:
            # Any error of one peer is stored in the results, and the others are still measured.
            error = tell_error(group)
            record.fail(step, error)
            say(f"    failed: {error}")
        else:
            record.add(step, run)
            durations.learn(step, time.monotonic() - began)
            say(f"    {tell_run(run)}")


async def _measure(step: Step, hall: Hall, installations: Mapping[str, Installation], options: Options) -> Run:
    async with hall.stage(step.peer, installations[step.peer.name]) as stage:
        return await step.scenario.measure(stage, step.variant, options)


def tell_error(error: BaseException) -> str:
    """The first error of a group, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"


def tell_run(run: Run) -> str:
    """The figures of one run, in one line."""
    figures = ", ".join(f"{name} {value:,.1f}" for name, value in run.figures.items() if name != "tasks")
    spent = ", ".join(f"{part} {value:,.0f}" for part, value in run.cpu.items())
    stolen = f"; stolen {run.stolen_percent:.1f} %" if run.stolen_percent else ""
    return figures + (f"; CPU µs a task: {spent}" if spent else "") + stolen


def tell_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
