"""Show a task, its attempts and lists of tasks to people."""

from collections.abc import Sequence
from datetime import datetime, timedelta

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
    print_text,
    printable,
    span,
    whole_time,
)
from duetime.model.attempt import REASONS
from duetime.sdk.shapes.tasks import Attempt, AttemptError, DeadLetter, Explanation, Task

TASK_COLUMNS = (
    Column("ID"),
    Column("STATE", paint=paint_state),
    Column("DUE"),
    Column("TRIES", plain="0"),
    Column("TYPE", shrinks=True),
    Column("QUEUE", shrinks=True, plain="default"),
    Column("CLASS", plain="normal"),
    Column("LABELS", shrinks=True, plain=""),
)
DEAD_COLUMNS = (
    Column("ID"),
    Column("DIED"),
    Column("TRIES"),
    Column("TYPE", shrinks=True),
    Column("QUEUE", shrinks=True, plain="default"),
    Column("REASON"),
    Column("LAST ERROR", shrinks=True),
)
ATTEMPT_COLUMNS = (
    Column("N"),
    Column("OUTCOME", paint=paint_state),
    Column("PICKED UP"),
    Column("STARTED"),
    Column("TOOK"),
    Column("STATUS", plain=""),
    Column("HOLDER", shrinks=True),
    Column("ERROR", shrinks=True),
)


def task_row(task: Task) -> Sequence[str]:
    labels = " ".join(f"{name}={value}" for name, value in (task.labels or {}).items())
    due = local_time(task.next_run_at or task.run_at)
    return (
        task.id,
        task.state,
        due,
        str(task.attempts_omitted + len(task.attempts)),
        task.type,
        task.queue,
        task.priority,
        labels,
    )


def dead_row(letter: DeadLetter) -> Sequence[str]:
    error = letter.error.message if letter.error is not None else ""
    died = local_time(letter.died_at)
    return letter.id, died, str(letter.attempts), letter.type, letter.queue, letter.reason, error


def print_task(task: Task, *, has_all_traces: bool = False) -> None:
    """Show all of a task, with the traceback of its last attempt or of all failed ones."""
    print_line(f"{paint('Task ' + task.id, 'bold')}  {paint_state(task.state)}")
    print_fields(_fields(task))
    if task.attempts:
        print_line(paint("Attempts", "bold"))
        if task.attempts_omitted:
            left_out = counted(task.attempts_omitted, "earlier attempt")
            print_line(f"  {left_out} left out here: duetime tasks attempts {task.id} --all")
        Table(ATTEMPT_COLUMNS, indent="  ").add([attempt_row(attempt) for attempt in task.attempts])
        over = [attempt for attempt in task.attempts if attempt.outcome is not None]
        for attempt in over if has_all_traces else over[-1:]:
            _print_trace(attempt)
    if task.payload is not None:
        print_json("Payload", task.payload)
    if task.result is not None:
        print_json("Result", task.result)


def _fields(task: Task) -> list[tuple[str, str]]:
    fields = [
        ("type", printable(task.type)),
        ("queue", f"{printable(task.queue)}, {task.priority}"),
        ("run at", whole_time(task.run_at)),
    ]
    if task.first_run_at is not None:
        fields.append(("first run at", whole_time(task.first_run_at)))
    if task.next_run_at is not None and not _is_same(task.next_run_at, task.run_at):
        fields.append(("next run at", whole_time(task.next_run_at)))
    if not task.is_final and task.attempts_left is not None:
        fields.append(("attempts left", _attempts_left(task)))
    fields.append(("created at", whole_time(task.created_at)))
    if task.expires_at is not None:
        fields.append(("expires at", whole_time(task.expires_at)))
    if task.ended_at is not None:
        because = f", {printable(task.end_reason)}" if task.end_reason else ""
        fields.append(("ended at", f"{whole_time(task.ended_at)}{because}"))
    if task.dead_reason is not None:
        fields.append(("dead", f"{_reason(task.dead_reason)}, {whole_time(task.died_at)}"))
    if isinstance(task.target, dict):
        fields.append(("target", printable(f"{task.target.get('method')} {task.target.get('url')}")))
    if task.requires:
        fields.append(("requires", printable(", ".join(task.requires))))
    if task.labels:
        fields.append(("labels", printable(" ".join(f"{name}={value}" for name, value in task.labels.items()))))
    if task.idempotency_key is not None:
        fields.append(("idempotency key", printable(task.idempotency_key)))
    if task.concurrency_key is not None:
        fields.append(("concurrency key", printable(task.concurrency_key)))
    if task.rate_key is not None:
        fields.append(("rate key", printable(task.rate_key)))
    if task.sla is not None:
        met = {True: "met", False: "missed", None: "open"}[task.sla_met]
        fields.append(("sla", f"{span(task.sla)}, {met}"))
    if task.delivery != "at_least_once":
        fields.append(("delivery", task.delivery))
    return fields


def _is_same(wake: datetime, run_at: datetime | None) -> bool:
    """A wake has whole milliseconds. The time from which it was made may be more precise."""
    return run_at is not None and abs(wake - run_at) < timedelta(milliseconds=1)


def _attempts_left(task: Task) -> str:
    most = task.retry.get("max_attempts") if isinstance(task.retry, dict) else None
    return str(task.attempts_left) if most is None else f"{task.attempts_left} of {most}"


def _reason(code: str) -> str:
    """Say why it is dead. A code of a newer server is shown unchanged."""
    return REASONS.get(code, printable(code))


def attempt_row(attempt: Attempt) -> Sequence[str]:
    began = attempt.started_at or attempt.picked_at
    took = span((attempt.completed_at - began).total_seconds()) if attempt.completed_at and began else ""
    return (
        str(attempt.number),
        attempt.outcome or "running",
        local_time(attempt.picked_at),
        local_time(attempt.started_at) if attempt.started_at is not None else "-",
        took,
        "" if attempt.status is None else str(attempt.status),
        attempt.worker or "",
        _error(attempt.error),
    )


def _error(error: AttemptError | None) -> str:
    if error is None:
        return ""
    return f"{error.message} ({error.kind})" if error.kind == "permanent" else error.message


def _print_trace(attempt: Attempt) -> None:
    """Return the parts of the error other than its message: from our SDK a traceback, from other workers any JSON."""
    detail = None if attempt.error is None else attempt.error.detail
    if isinstance(detail, str):
        print_text(f"Traceback of attempt {attempt.number}", detail)
    elif detail is not None:
        print_json(f"Error of attempt {attempt.number}", detail)


def print_explanation(found: Explanation) -> None:
    print_line(f"{paint('Task ' + found.id, 'bold')}  {paint_state(found.state)}")
    fields = [("due at", whole_time(found.due_at))]
    for reason in found.waiting_for:
        fields.append(("because", printable(reason.detail)))
        if reason.until is not None:
            # On a separate line, because the reason may end with another time.
            fields.append(("until", whole_time(reason.until)))
    if found.position is not None:
        fields.append(("before it", f"{found.position} in its lane"))
    fields.append(("to free it", printable(found.what_would_free_it)))
    print_fields(fields)
