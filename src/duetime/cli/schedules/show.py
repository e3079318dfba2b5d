"""Schedules, their fires, runs and backfills, as people read them."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC

from duetime.cli.output import (
    Column,
    Table,
    counted,
    local_time,
    paint,
    paint_state,
    print_fields,
    print_json,
    print_line,
    print_note,
    printable,
    whole_time,
    width_of,
)
from duetime.cli.schedules.fields import canonical
from duetime.cli.schedules.plan import Step, StepKind, summary, totals
from duetime.sdk.shapes.schedules import Backfill, Fire, Run, Schedule

#: Shown if the template has no value and the type's defaults apply.
_OF_TYPE = "as its type"
SCHEDULE_COLUMNS = (
    Column("NAME", shrinks=True),
    Column("STATE", paint=paint_state),
    Column("WHEN", shrinks=True),
    Column("ZONE"),
    Column("TYPE", shrinks=True),
    Column("FIRED"),
    Column("SKIPPED", plain="0"),
    Column("MISSED", plain="0"),
    Column("ORIGIN", shrinks=True, plain="api"),
    Column("NOTE", shrinks=True, plain=""),
)
RUN_COLUMNS = (
    Column("FIRE TIME"),
    Column("CAUSE"),
    Column("OUTCOME", paint=paint_state),
    Column("TASK"),
    Column("STATE", paint=paint_state),
    Column("ENDED AT", plain="-"),
    Column("REASON", shrinks=True, plain=""),
)
BACKFILL_COLUMNS = (
    Column("ID"),
    Column("STATE", paint=paint_state),
    Column("FROM"),
    Column("TO"),
    Column("RATE"),
    Column("TASKS"),
    Column("REACHED"),
    Column("STARTED"),
    Column("ENDED"),
    Column("WAITS FOR", shrinks=True, plain=""),
)
_FIRE_COLUMNS = (Column("AT"), Column("BY ITS CLOCK"), Column("NOTE", shrinks=True, plain=""))
_SHOWN_UNCHANGED = 20
_WIDEST_NAME = 48
_MARKS = {
    StepKind.CREATE: ("+", "green"),
    StepKind.CHANGE: ("~", "yellow"),
    StepKind.UNCHANGED: ("=", "dim"),
    StepKind.DELETE: ("-", "red"),
    StepKind.CONFLICT: ("!", "magenta"),
}
_PLANNED = {
    StepKind.CREATE: "to create",
    StepKind.CHANGE: "to change",
    StepKind.UNCHANGED: "unchanged",
    StepKind.DELETE: "to delete",
    StepKind.CONFLICT: "in conflict",
}
#: Shown only if they differ from the usual value: field → (name, usual value).
_UNUSUAL: dict[str, tuple[str, object]] = {
    "jitter": ("jitter", "0s"),
    "start_at": ("starts at", None),
    "end_at": ("ends at", None),
    "max_fires": ("fires at most", None),
    "overlap": ("overlap", "skip"),
    "misfire": ("misfire", "fire_latest"),
    "misfire_threshold": ("misfire from", "10s"),
    "catchup_window": ("catch-up window", "1d"),
    "catchup_rate": ("catch-up rate", 10),
    "pause_on_failure": ("pause on failure", False),
}
_UNUSUAL_OF_TASK: dict[str, tuple[str, object]] = {
    "timeout": ("timeout", None),
    "sla": ("sla", None),
    "expires_after": ("expires after", None),
    "delivery": ("delivery", "at_least_once"),
}


def schedule_row(schedule: Schedule) -> Sequence[str]:
    counters = schedule.counters
    return (
        schedule.name,
        schedule.state,
        when_of(schedule.spec).removeprefix("cron "),
        schedule.timezone,
        str(schedule.task.get("type") or ""),
        f"{counters.fired:,}",
        f"{counters.skipped:,}",
        f"{counters.missed:,}",
        owner_words(schedule),
        schedule.note or "",
    )


def owner_words(schedule: Schedule) -> str:
    return f"{schedule.origin} {schedule.source}" if schedule.source else schedule.origin


def when_of(spec: Mapping[str, object]) -> str:
    """What makes it fire, as it was written."""
    return summary({"spec": canonical({"spec": dict(spec)}, is_lenient=True).get("spec"), "timezone": ""})


def run_row(run: Run) -> Sequence[str]:
    return (
        local_time(run.fire_time),
        run.cause,
        run.outcome,
        run.task or "-",
        run.state or "-",
        local_time(run.ended_at) if run.ended_at is not None else "-",
        run.reason or "",
    )


def backfill_row(backfill: Backfill) -> Sequence[str]:
    return (
        str(backfill.id),
        backfill.state,
        local_time(backfill.from_),
        local_time(backfill.to),
        "-" if backfill.rate is None else f"{backfill.rate:g}/s",
        f"{backfill.created_count:,}",
        local_time(backfill.reached),
        local_time(backfill.created_at),
        local_time(backfill.ended_at),
        backfill.waits_for or "",
    )


def print_fires(fires: Sequence[Fire], indent: str = "") -> None:
    """Excluded times are listed too: they are the reason to look."""
    Table(_FIRE_COLUMNS, indent=indent).add(
        [
            (
                f"{fire.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z",
                fire.local.replace("T", " ") or "-",
                "; ".join(part for part in ("excluded" if fire.excluded else "", fire.note or "") if part),
            )
            for fire in fires
        ]
    )


def print_schedule(schedule: Schedule, definition: Mapping[str, object]) -> None:
    found = canonical(dict(definition), is_lenient=True)
    print_line(f"{paint('Schedule ' + printable(schedule.name), 'bold')}  {paint_state(schedule.state)}")
    print_fields(_fields(schedule, found))
    if schedule.next_fires:
        print_line(paint("Next fires", "bold"))
        print_fires(schedule.next_fires, indent="  ")
    task = found.get("task")
    if isinstance(task, dict) and task.get("payload") is not None:
        print_json("Payload", task["payload"])


def _fields(schedule: Schedule, found: Mapping[str, object]) -> list[tuple[str, str]]:
    fields = [("when", printable(when_of(schedule.spec)))]
    if schedule.words:
        fields.append(("in words", printable(schedule.words)))
    fields.append(("zone", printable(schedule.timezone)))
    exclude = found.get("spec", {})
    if isinstance(exclude, dict) and exclude.get("exclude"):
        fields.append(("except", printable(entry_words(exclude["exclude"]))))
    fields += _unusual(found, _UNUSUAL)
    fields += _task_fields(found.get("task"))
    if schedule.note:
        fields.append(("note", printable(schedule.note)))
    fields.append(("origin", printable(f"{owner_words(schedule)}, version {schedule.version}")))
    counters = schedule.counters
    said = f"{counters.fired:,} fired, {counters.skipped:,} skipped, {counters.missed:,} missed"
    said += f", {counters.buffered:,} buffered ({schedule.buffered_now:,} now)" if counters.buffered else ""
    fields.append(("so far", said))
    if (skip := schedule.last_skip) is not None:
        fields.append(("last skip", printable(f"{whole_time(skip.fire_time or skip.at)}: {skip.reason}")))
    fields.append(("changed at", whole_time(schedule.updated_at or schedule.created_at)))
    return fields


def _task_fields(task: object) -> list[tuple[str, str]]:
    if not isinstance(task, dict):
        return []
    fields = [
        ("task", printable(str(task.get("type")))),
        ("queue", printable(f"{task.get('queue', _OF_TYPE)}, {task.get('priority', _OF_TYPE)}")),
    ]
    if isinstance(target := task.get("target"), dict):
        fields.append(("target", printable(f"{target.get('method')} {target.get('url')}")))
    if isinstance(retry := task.get("retry"), dict):
        fields.append(("attempts", f"up to {retry.get('max_attempts')}"))
    if isinstance(labels := task.get("labels"), dict) and labels:
        fields.append(("labels", printable(" ".join(f"{name}={value}" for name, value in labels.items()))))
    if isinstance(requires := task.get("requires"), list) and requires:
        fields.append(("requires", printable(", ".join(map(str, requires)))))
    return fields + _unusual(task, _UNUSUAL_OF_TASK)


def _unusual(found: Mapping[str, object], names: Mapping[str, tuple[str, object]]) -> list[tuple[str, str]]:
    return [
        (title, printable("yes" if found[name] is True else str(found[name])))
        for name, (title, usual) in names.items()
        if found.get(name) is not None and found[name] != usual
    ]


def entry_words(entries: object) -> str:
    said = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and {"from", "to"} <= entry.keys():
            said.append(f"{entry['from']} to {entry['to']}")
        elif isinstance(entry, dict):
            said += [f"{name} {value}" for name, value in entry.items()]
        else:
            said.append(str(entry))
    return ", ".join(said)


def share_done(backfill: Backfill) -> float:
    """Return the finished part of a backfill's time range, from 0 to 1."""
    if backfill.from_ is None or backfill.to is None or backfill.reached is None:
        return 0.0
    whole = (backfill.to - backfill.from_).total_seconds()
    return min(1.0, max(0.0, (backfill.reached - backfill.from_).total_seconds() / whole)) if whole > 0 else 1.0


def print_plan(steps: Sequence[Step], left_over: int) -> None:
    unchanged = [step for step in steps if step.action is StepKind.UNCHANGED]
    shown = [step for step in steps if step.action is not StepKind.UNCHANGED or len(unchanged) <= _SHOWN_UNCHANGED]
    width = min(_WIDEST_NAME, max((width_of(_title(step)) for step in shown), default=0))
    for step in shown:
        mark, colour = _MARKS[step.action]
        title = _title(step)
        line = f"{mark} {step.action.value:9}  {title}{' ' * max(0, width - width_of(title))}  {printable(step.remark)}"
        print_line(paint(line.rstrip(), colour))
        for change in step.changes:
            print_line(f"{' ' * 15}{printable(change.words())}")
    if len(unchanged) > _SHOWN_UNCHANGED:
        print_line(paint(f"= unchanged  {len(unchanged):,} of them", "dim"))
    number = totals(steps)
    said = [f"{number[action]:,} {words}" for action, words in _PLANNED.items() if number[action]]
    print_line(f"Plan: {', '.join(said) or 'nothing is wanted, nothing is there'}.")
    if left_over:
        verb = "is" if left_over == 1 else "are"
        print_note(f"{counted(left_over, 'schedule')} of this source {verb} in no file; --prune would delete them.")
    sys.stdout.flush()


def _title(step: Step) -> str:
    return printable(step.name if step.noun == "schedule" else f"{step.noun} {step.name}")
