"""`duetime submit`: one task from the command line, or many from a file."""

import argparse
import sys
import time
from dataclasses import dataclass, field

from duetime.cli import arguments as words
from duetime.cli.actions import Action, Subparsers
from duetime.cli.connect import Refused, ask, talk
from duetime.cli.output import paint_state, print_line, print_raw, printable, whole_time
from duetime.cli.tasks.batches import submit_file
from duetime.cli.tasks.flow_options import add_flow_options, read_flow
from duetime.cli.tasks.show import print_task
from duetime.errors import UsageError
from duetime.sdk.calls import tasks as calls
from duetime.sdk.calls.call import Answer, ApiCall, without_none
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes.tasks import Task

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]
_WHEN_OPTIONS = ("delay", "run_at", "expires_at")
_HOW_OPTIONS = (
    *("queue", "priority", "requires", "timeout", "delivery", "sla", "idempotency_key", "idempotency_ttl"),
    *("concurrency_key", "rate_key"),
)
_TARGET_OPTIONS = ("method", "header", "secret_header", "target_timeout", "retry_on")
_EXAMPLES = """\
examples:
  duetime submit email.send '{"to": "ada@example.com"}' --delay 5m
  duetime submit report --target https://example.com/hook --header 'X-Team: blue' --run-at '2030-01-31 09:00'
  duetime submit resize - --wait 30s < photo.json
  duetime submit sync '{"account": 7}' --unique-key account-7
  duetime submit --file tasks.ndjson --queue nightly

A file holds tasks as the API takes them: one JSON object a line, or one JSON array ("-" reads standard input).
TYPE and options given beside it stand in for what a line leaves out.

A task that fails is tried again: 20 attempts, with waits that double from 1s to 1h, about 8 hours in all.

Exit code: 0 all accepted (with --wait: succeeded), 1 something was refused or failed, 2 wrong usage.
"""


def add_parser(subparsers: Subparsers) -> None:
    Action(
        "submit",
        "submit a task, or a file of tasks",
        run,
        (_add_options,),
        "Submit a task, or a file of tasks.",
        "the task as the server's JSON; for a file one line for each task",
        epilog=_EXAMPLES,
    ).add_to(subparsers)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task_type", nargs="?", metavar="TYPE", help="what kind of work it is")
    parser.add_argument("payload", nargs="?", metavar="PAYLOAD", help='JSON; "-" reads it from standard input')
    parser.add_argument("--file", metavar="FILE", help='many tasks: NDJSON or a JSON array; "-" is standard input')
    when = parser.add_argument_group("when")
    when.add_argument("--delay", type=words.duration, metavar="TIME", help='from now: "90", "5m", "1h30m", "2d"')
    when.add_argument("--run-at", type=words.instant, metavar="TIME", help="RFC 3339, or local time without a zone")
    when.add_argument("--expires-at", type=words.instant, metavar="TIME", help="not to be started from this time on")
    where = parser.add_argument_group("where")
    where.add_argument("--queue", metavar="QUEUE", help="(default)")
    where.add_argument("--priority", choices=words.PRIORITIES, metavar="CLASS", help=", ".join(words.PRIORITIES))
    where.add_argument("--requires", action="append", metavar="TAG", help="a worker must have it; may be repeated")
    where.add_argument("--target", metavar="URL", help="an HTTP endpoint that does the work, in place of a worker")
    where.add_argument("--method", choices=_METHODS, metavar="METHOD", help="how to call it (POST)")
    words.add_header_options(where)
    where.add_argument("--target-timeout", type=words.duration, metavar="TIME", help="for one call of it")
    where.add_argument(
        "--retry-on", type=words.count, action="append", metavar="STATUS", help="4xx to try again all the same"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--timeout", type=words.duration, metavar="TIME", help="for one attempt")
    words.add_retry_options(how)
    how.add_argument(
        "--delivery", choices=["at_least_once", "at_most_once"], metavar="PROMISE", help="at_least_once, at_most_once"
    )
    how.add_argument("--sla", type=words.duration, metavar="TIME", help="to succeed within, counted from its time")
    how.add_argument("--idempotency-key", metavar="KEY", help="the same key gives the first task back")
    how.add_argument("--idempotency-ttl", type=words.duration, metavar="TIME", help="how long the key is kept (1d)")
    how.add_argument("--concurrency-key", metavar="KEY", help="tasks of the same key share the limit set for it")
    how.add_argument("--rate-key", metavar="KEY", help="tasks of the same key share the rate set for it")
    how.add_argument("--label", type=words.pair, action="append", metavar="NAME=VALUE", help="may be repeated")
    add_flow_options(parser)
    parser.add_argument("--wait", type=words.duration, metavar="TIME", help="wait so long for the task to be over")


@dataclass(frozen=True)
class _Submit(ApiCall[tuple[bytes, Task]]):
    """Remembers whether the task is new or existed already."""

    statuses: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, fields: dict[str, object]) -> "_Submit":
        call = calls.submit(fields)
        return cls(call.method, call.path, lambda body: (body, call.read_body(body)), call.body)

    def read(self, answer: Answer) -> tuple[bytes, Task]:
        self.statuses.append(answer.status)
        return super().read(answer)

    @property
    def is_new(self) -> bool:
        return self.statuses[-1] == 202


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    fields = _fields(arguments)
    if arguments.file is not None:
        return submit_file(arguments, fields)
    if arguments.payload is not None:
        given = arguments.payload
        text = sys.stdin.buffer.read() if given == "-" else given.encode("utf-8", "surrogateescape")
        fields["payload"] = words.json_text("the payload", text)
    return talk(arguments, lambda client: _submit(client, _Submit.of(fields), arguments))


def _check(arguments: argparse.Namespace) -> None:
    if arguments.delay is not None and arguments.run_at is not None:
        raise UsageError("--delay and --run-at are two times: give one of them")
    if arguments.target is None and any(getattr(arguments, name) is not None for name in _TARGET_OPTIONS):
        named = next(name for name in _TARGET_OPTIONS if getattr(arguments, name) is not None)
        raise UsageError(f"--{named.replace('_', '-')} is for an HTTP endpoint: give --target URL as well")
    if arguments.file is None:
        if arguments.task_type is None:
            raise UsageError("say what to submit: TYPE and its payload, or --file; see duetime submit --help")
        return
    for name in ("wait", "idempotency_key", "payload"):
        if getattr(arguments, name) is not None:
            shown = "PAYLOAD" if name == "payload" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{shown} is for one task and --file for many: give one of them")


def _fields(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the task in the format of the API, with only the given fields."""
    fields: dict[str, object] = {"type": arguments.task_type}
    fields |= {name: getattr(arguments, name) for name in (*_WHEN_OPTIONS, *_HOW_OPTIONS)}
    if arguments.label:
        fields["labels"] = words.unique("--label", arguments.label)
    if arguments.target is not None:
        target = {
            "url": arguments.target,
            "method": arguments.method,
            **words.headers_of(arguments),
            "timeout": arguments.target_timeout,
            "retry_on": arguments.retry_on,
        }
        fields["target"] = without_none(target)
    if retry := words.retry_of(arguments):
        fields["retry"] = retry
    fields |= read_flow(arguments)
    return without_none(fields)


def _submit(client: Client, call: _Submit, arguments: argparse.Namespace) -> int:
    answer, task = client.send(call)
    if arguments.wait is None:
        if arguments.json:
            print_raw(answer)
        else:
            due = "" if task.state == "ready" else f", due {whole_time(task.next_run_at or task.run_at)}"
            replaced = "" if task.replaces is None else f", replaces {task.replaces}"
            is_named = arguments.idempotency_key is not None or "unique" in read_flow(arguments)
            there = ", was there already" if is_named and not call.is_new else ""
            print_line(f"{task.id}  {printable(task.type)}  {paint_state(task.state)}{due}{replaced}{there}")
        return 0
    answer, task = _wait(client, task, arguments.wait)
    if arguments.json:
        print_raw(answer)
    else:
        print_task(task)
    if not task.is_final:
        raise Refused(f"task {task.id} is still {task.state} after {words.spoken(arguments.wait)}")
    return 0 if task.state == "succeeded" else 1


def _wait(client: Client, task: Task, seconds: float) -> tuple[bytes, Task]:
    """Read the task until it is over or the time has passed."""
    for pause in calls.looks(seconds):
        answer, task = ask(client, calls.get(task.id))
        if task.is_final:
            break
        time.sleep(pause)
    return answer, task
