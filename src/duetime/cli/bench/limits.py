"""Say in sentences what limits an installation, from the figures of `duetime bench`.

A cause is named only if the figures show it. Otherwise the sentence says where
to look.
"""

from typing import Literal

import msgspec

from duetime.cli.bench.machine import Cpu
from duetime.cli.bench.phases import LAG_RATE, Phase

#: A process that uses this much of a core is at its limit.
FULL = 0.9
#: A longer round trip is caused by a network, not by a program.
FAR_MS = 5.0
#: A longer commit waits for something: a disk, a replica, a network.
SLOW_COMMIT_MS = 2.0
#: A start that is later than this, without the network time, was delayed by something: the rate is low.
LATE_MS = 100.0

Cause = Literal[
    "network",
    "commit",
    "computing",
    "machine",
    "node",
    "workers",
    "client",
    #: A value that cannot be measured from here.
    "server",
    "others",
    "unknown",
    "nothing",
]


class Limit(msgspec.Struct, frozen=True):
    """What limits one kind of use. It is named after its phase."""

    of: str
    by: Cause
    sentence: str


class Setting(msgspec.Struct, frozen=True):
    """Where it was measured."""

    cores: int
    workers: int
    #: The server is on this machine.
    is_local: bool


def judge(phases: list[Phase], setting: Setting) -> list[Limit]:
    """A sentence for each kind of use that was measured."""
    found = {phase.name: phase for phase in phases}
    way = _p50(found.get("round_trip"))
    commit = max(0.0, _p50(found.get("one_by_one")) - way)
    limits = []
    for phase in phases:
        match phase.name:
            case "one_by_one":
                limits.append(_judge_single(phase, way, commit, setting))
            case "twenty_at_a_time" | "bulk" | "drain" | "sustained":
                limits.append(_judge_many(phase, way, commit, setting))
            case "start_after_submit" | "start_after_run_at":
                limits.append(_judge_start(phase, way, commit))
    return limits


def _judge_single(submitted: Phase, way: float, commit: float, setting: Setting) -> Limit:
    of, whole = submitted.name, _p50(submitted)
    if way >= FAR_MS and way >= commit:
        return Limit(
            of,
            "network",
            f"A round trip takes {_ms(way)} of the {_ms(whole)} of a single submission: submit in batches, or several "
            "at a time over connections that are kept open.",
        )
    if (full := _full_machine(submitted.cpu, setting)) is not None:
        return Limit(of, "machine", full)
    cpu = submitted.cpu
    if cpu.node is not None and cpu.bench + cpu.node + (cpu.postgres or 0.0) >= FULL:
        return Limit(
            of,
            "computing",
            f"A single submission takes {_ms(whole)}, nearly all of it computing, not waiting: submit several at a "
            "time, or in batches.",
        )
    if commit >= SLOW_COMMIT_MS:
        return Limit(
            of,
            "commit",
            f"One commit takes {_ms(commit)}: the disk, or the way from the node to the database, limits single "
            "submissions; batches, and several at a time, hide it.",
        )
    return Limit(
        of,
        "nothing",
        f"A single submission takes {_ms(whole)}, of which {_ms(way)} are the round trip and {_ms(commit)} the commit: "
        "nothing is slow here; several at a time give more.",
    )


_MORE = {
    "twenty_at_a_time": "more of them at a time, or batches",
    "bulk": "more programs that submit",
    "drain": "more worker processes (--workers)",
    "sustained": "more worker processes (--workers)",
}


def _judge_many(phase: Phase, way: float, commit: float, setting: Setting) -> Limit:
    """Load from many senders at once: the part without free CPU limits it, else the parts that are waited for."""
    of = phase.name
    if phase.rate is None:
        return Limit(of, "unknown", "No task was run in the time that there was: look at the node's log.")
    if (limit := _judge_cpu(phase, setting)) is not None:
        return limit
    if way >= FAR_MS and way >= commit:
        return Limit(
            of,
            "network",
            f"{phase.rate:,.0f} a second wait for the way: a round trip takes {_ms(way)}; {_MORE[of]} hide it.",
        )
    if not setting.is_local or phase.cpu.machine is None:
        return Limit(
            of,
            "server",
            f"{phase.rate:,.0f} a second use up neither this program nor its workers: the limit is on the server's "
            "side or on the way there; look at the CPU of the node and of the database.",
        )
    spare = f"{phase.rate:,.0f} a second leave CPU to spare"
    if commit >= SLOW_COMMIT_MS:
        return Limit(
            of,
            "commit",
            f"{spare}: they wait for commits, of which one takes {_ms(commit)} (the disk, or the way to the database).",
        )
    return Limit(of, "nothing", f"{spare}: nothing is used up; {_MORE[of]} may give more.")


def _judge_cpu(phase: Phase, setting: Setting) -> Limit | None:
    """Return the part that has used up its CPU, if there is one: the machine before the processes on it."""
    of, cpu = phase.name, phase.cpu
    if (full := _full_machine(cpu, setting)) is not None:
        return Limit(of, "machine", full)
    if cpu.node_busiest is not None and cpu.node_busiest >= FULL:
        return Limit(
            of,
            "node",
            f"The node's process is at {100 * cpu.node_busiest:.0f} % of a core: start it with more processes "
            "(--processes), on a machine that has the cores.",
        )
    if cpu.workers / setting.workers >= FULL:
        return Limit(
            of,
            "workers",
            f"The workers limit: each of the {setting.workers} is at {100 * cpu.workers / setting.workers:.0f} % of a "
            "core; start more of them (--workers here).",
        )
    if cpu.bench >= FULL:
        return Limit(
            of,
            "client",
            f"The program that submits is at {100 * cpu.bench:.0f} % of a core: this is what one process can send, not "
            "what the server can take.",
        )
    return None


def _full_machine(cpu: Cpu, setting: Setting) -> str | None:
    # Programs that wait for each other never fill the last half core of a small machine.
    spare = max((1 - FULL) * setting.cores, min(0.5, 0.25 * setting.cores))
    stolen = cpu.stolen or 0.0
    if cpu.machine is None or setting.cores - cpu.machine - stolen > spare:
        return None
    parts = [
        (spent, name)
        for spent, name in (
            (cpu.postgres, "PostgreSQL"),
            (cpu.node, "the node"),
            (cpu.workers, "the workers"),
            (cpu.bench, "this program"),
        )
        if spent is not None and spent >= 0.05
    ]
    shares = ", ".join(f"{name} {spent:.1f}" for spent, name in sorted(parts, reverse=True))
    rest = cpu.machine - sum(spent for spent, _ in parts)
    others = f", others {rest:.1f}" if rest >= 0.1 else ""
    cores = "1 core" if setting.cores == 1 else f"{setting.cores} cores"
    taken = f"; its host gave {stolen:.1f} to others" if stolen >= 0.1 else ""
    return f"This machine has hardly any CPU left: of its {cores} {shares}{others} are in use{taken}."


def _judge_start(phase: Phase, way: float, commit: float) -> Limit:
    of = phase.name
    after = "its submission" if of == "start_after_submit" else "its time"
    if phase.missing or phase.p50_ms is None or phase.p99_ms is None:
        return Limit(
            of,
            "unknown",
            f"{phase.missing} of {phase.count} tasks had not started long after {after}: look at the node's log.",
        )
    starts = f"At {LAG_RATE} a second a task starts {_ms(phase.p50_ms)} after {after} (p99 {_ms(phase.p99_ms)})"
    late = LATE_MS + 4 * way
    if phase.p50_ms < late <= phase.p99_ms:
        stolen = phase.cpu.stolen or 0.0
        who = f"this machine's host, which gave {stolen:.1f} cores to others," if stolen >= 0.1 else "something else"
        return Limit(of, "others", f"{starts}: most are prompt, but {who} gets in between now and then.")
    if way >= FAR_MS and 2 * way >= phase.p50_ms / 2:
        return Limit(of, "network", f"{starts}, most of it on the way: a round trip takes {_ms(way)}.")
    if commit >= SLOW_COMMIT_MS and 2 * commit >= phase.p50_ms / 2:
        return Limit(of, "commit", f"{starts}, most of it waiting for commits of {_ms(commit)}.")
    if phase.p50_ms >= late:
        return Limit(
            of, "server", f"{starts}: more than a commit and the way explain; is the server busy with other work?"
        )
    return Limit(of, "nothing", f"{starts}: nothing is slow here.")


def _p50(phase: Phase | None) -> float:
    return phase.p50_ms or 0.0 if phase is not None else 0.0


def _ms(milliseconds: float) -> str:
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:,.0f} ms"
