"""What one run of the benchmark leaves: one JSON file, written by `python -m bench` and read by the report.

    Results
      machine        where it ran
      versions       of PostgreSQL, Redis, Python, Node, wrk and each peer's package
      commit         of this repository, and whether files were changed since
      peers          how each peer was set up, and the reason if it could not be used
      measurements   one for each scenario × peer × variant
        figures, cpu   medians over its runs: what a table shows
        runs           all of them, in order; `rows` are what changed within a run (a minute, a load, …)

Figures are compared within one file only: absolute figures differ between machines,
ratios hardly do.  A measurement with an `error` has no figures.
"""

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

FORMAT = 1
#: The folders of a path that begins at the root; an address has a name before its first slash.
_FOLDERS = re.compile(r"(?<![\w.:/-])/(?:[\w.@+-]+/)+")


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run: what was measured, what each part spent, and what changed within it."""

    #: By name; the end of the name is the unit (`p99_ms`, `memory_mb`), and `rate` is tasks a second.
    figures: dict[str, float] = {}
    #: CPU microseconds per task of each part: producer, workers, server (PostgreSQL or Redis), node, wrk.
    cpu: dict[str, float] = {}
    rows: list[dict[str, float | str]] = []
    #: The share of the processors' time that the host gave to others (`bench.stolen`).
    stolen_percent: float = 0.0


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True):
    """All runs of one peer in one variant of a scenario, and their medians."""

    scenario: str
    peer: str
    #: A way of doing the scenario ("one", "no keys"); empty if there is only one.
    variant: str = ""
    figures: dict[str, float] = {}
    cpu: dict[str, float] = {}
    runs: list[Run] = []
    #: Why there are no figures, in a sentence or two; empty if all went well.
    error: str = ""

    @classmethod
    def of(cls, scenario: str, peer: str, variant: str, runs: list[Run], error: str = "") -> "Measurement":
        """The measurement with the medians of its runs; without medians if it failed."""
        if error:
            return cls(scenario, peer, variant, runs=runs, error=error)
        return cls(
            scenario, peer, variant, _medians(run.figures for run in runs), _medians(run.cpu for run in runs), runs
        )


class PeerFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a peer was set up."""

    name: str
    server: str
    packages: list[str] = []
    workers: int = 0
    tuning: str = ""
    #: Why it could not be installed; empty if it could.
    error: str = ""


class Machine(msgspec.Struct, frozen=True):
    cores: int
    cpu: str
    memory_gb: float
    kernel: str
    system: str

    @classmethod
    def here(cls) -> "Machine":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(cores, _cpu_model(), round(memory / 1e9, 1), platform.release(), _system())


class Results(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that one `python -m bench` measured."""

    #: UTC, ISO 8601.
    began_at: str
    ended_at: str
    #: The arguments of `python -m bench`.
    arguments: list[str]
    #: Whether counts were small and every figure comes from one run: enough to try it out, not to compare.
    is_quick: bool
    machine: Machine
    versions: dict[str, str]
    commit: str
    is_dirty: bool
    peers: list[PeerFacts]
    measurements: list[Measurement]
    format: int = FORMAT

    def find(self, scenario: str, peer: str, variant: str = "") -> Measurement | None:
        """The measurement, if it was made and went well."""
        for each in self.measurements:
            if (each.scenario, each.peer, each.variant) == (scenario, peer, variant) and not each.error:
                return each
        return None

    def figure(self, name: str, scenario: str, peer: str, variant: str = "") -> float | None:
        """One median, or None: `figure("rate", "sustained", "graphile-worker")`."""
        measurement = self.find(scenario, peer, variant)
        return None if measurement is None else measurement.figures.get(name)

    def ratio(self, name: str, ours: tuple[str, str, str], theirs: tuple[str, str, str]) -> float | None:
        """One median divided by another, each named by (scenario, peer, variant); None if one is missing."""
        upper, lower = self.figure(name, *ours), self.figure(name, *theirs)
        return None if upper is None or not lower else upper / lower

    @property
    def is_complete(self) -> bool:
        """Whether nothing went wrong."""
        return not any(each.error for each in self.measurements) and not any(each.error for each in self.peers)

    def save(self, file: Path) -> None:
        _write(file, _encode(self))


def save_all(runs: list[Results], file: Path) -> None:
    """A copy for publishing, without the folders of this machine."""
    _write(file, hide_folders(_encode(runs)))


def _encode(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value).decode(), indent=1) + "\n"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.write_text(text, "utf-8")
    fresh.rename(file)


def hide_folders(text: str) -> str:
    """Text without the folders of this machine."""
    return _FOLDERS.sub("…/", text)


def load(file: Path) -> list[Results]:
    """Read one run, or the runs that a report was made of."""
    found = msgspec.json.decode(file.read_bytes(), type=Results | list[Results])
    return found if isinstance(found, list) else [found]


def find_latest(folder: Path) -> Path | None:
    """The newest file of results in a folder; file names begin with the time."""
    return max(folder.glob("*.json"), default=None)


def read_commit(root: Path) -> tuple[str, bool]:
    """The commit that is checked out, and whether files differ from it; ("", False) outside a repository."""
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit.strip(), bool(_git(root, "status", "--porcelain").strip())
    except (OSError, subprocess.SubprocessError):
        return "", False


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True, timeout=30).stdout


def _medians(runs: Iterable[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.items():
            values.setdefault(name, []).append(value)
    return {name: statistics.median(each) for name, each in values.items()}


def _cpu_model() -> str:
    try:
        facts = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in facts.splitlines() if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()
