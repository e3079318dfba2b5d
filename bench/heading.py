"""The beginning of docs/benchmarks.md: where, when and how it was measured."""

from bench.page import Page, cell, table
from bench.results import Machine, Results
from bench.stolen import MORE_RUNS, MOST_PERCENT


def add_heading(page: Page, runs: list[Results]) -> None:
    results = runs[0]
    page.add("# Benchmarks")
    page.add(
        "This page compares duetime with other job systems on one machine. What is compared ran alternately, in one "
        "run. `make bench` writes this page and its plots from its results ([results.json](benchmarks/results.json)). "
        "No figure on it is written by hand."
    )
    if any(run.is_quick for run in runs):
        page.add("**This was a quick run: small counts, one run each. Its figures are not for comparing.**")
    machine = results.machine
    found = {name: version for run in reversed(runs) for name, version in run.versions.items()}
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    is_other = any(run.machine != machine for run in runs)
    rows = [
        ["machine", _name_machine(machine) + (", unless another one is named" if is_other else "")],
        ["system", f"{machine.system}, Linux {machine.kernel}"],
        ["versions", versions],
        *[["measured", _when(run, machine, of=len(runs))] for run in runs],
    ]
    page.add(table(["", ""], rows))
    if is_other:
        page.add(
            "Not all of it was measured on one machine. What is compared (ratios and percentages) always was. "
            "Do not compare absolute figures of different scenarios."
        )
    words = cell(" ".join(results.arguments))
    page.add(
        "To repeat it: `make bench` measures everything and writes this page; `python -m bench sustained drain --peers "
        "graphile-worker,bullmq` measures a part. It starts its own PostgreSQL and Redis on free ports, installs "
        "the peers into `.bench/`, and stops by itself. "
        + (f"This run was `python -m bench {words}`." if words else "")
    )
    page.add(
        "The task does nothing and has a payload of about 150 bytes. There are one producer and at most two worker "
        "processes, and everything runs on this machine. PostgreSQL commits are durable (fsync on). Redis appends to "
        "its log and syncs it every second, so it can lose what it acknowledged in the last second. For "
        "`bullmq-synced` Redis syncs its log before it answers, which is as durable as PostgreSQL; targets name that "
        "one. Each peer is set up as its own documentation recommends for throughput "
        "([below](#how-each-was-set-up)). Figures are medians of the runs. Quiet runs of the same tool vary by up to a "
        "quarter, so small differences mean nothing. If the host gave more than "
        f"{MOST_PERCENT:.0f} % of the processors' time to others during a short run, that run is repeated, at most "
        f"{MORE_RUNS} times and for every peer alike, and the least disturbed run counts. duetime is measured through "
        "its HTTP API and its Python SDK, the others through libraries that talk to the store directly."
    )


def _name_machine(machine: Machine) -> str:
    return f"{machine.cores} cores, {machine.cpu}, {machine.memory_gb:g} GB"


def _when(run: Results, machine: Machine, of: int) -> str:
    began, ended = (time[:16].replace("T", " ") for time in (run.began_at, run.ended_at))
    commit = f"commit `{run.commit[:12]}`" if run.commit else "a commit that is not known"
    changed = ", with changes that are not committed" if run.is_dirty else ""
    scenarios = dict.fromkeys(each.scenario for each in run.measurements)
    where = "" if run.machine == machine else f", on another machine: {_name_machine(run.machine)}"
    return (f"{', '.join(scenarios)}: " if of > 1 else "") + f"{began} to {ended} UTC, {commit}{changed}{where}"
