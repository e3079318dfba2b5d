"""A schedule's definition from the options of the command line, or from a file."""

import argparse
import sys
from pathlib import Path

from duetime.cli import arguments as words
from duetime.cli.schedules.fields import DELIVERIES, METHODS, MISFIRES, OVERLAPS
from duetime.cli.schedules.files import read_definition
from duetime.errors import UsageError
from duetime.sdk.calls.call import without_none

_SPEC_OPTIONS = ("cron", "every", "phase", "after", "rrule")
_HOW_OPTIONS = (
    *("timezone", "jitter", "start_at", "end_at", "max_fires", "overlap", "misfire"),
    *("misfire_threshold", "catchup_window", "catchup_rate", "pause_on_failure", "paused", "note"),
)
_TASK_OPTIONS = (
    "type",
    "queue",
    "priority",
    "timeout",
    "sla",
    "delivery",
    "requires",
    "expires_after",
    "concurrency_key",
    "rate_key",
)
_OTHER_OPTIONS = ("payload", "target", "method", "header", "secret_header", *words.RETRY_OPTIONS, "label")
_NEED_TARGET = ("method", "header", "secret_header")


def add_spec_options(parser: argparse.ArgumentParser) -> None:
    when = parser.add_argument_group("when it fires")
    when.add_argument(
        "--cron", action="append", metavar="'M H D M W'", help="a cron line of 5 to 7 fields; may be repeated"
    )
    when.add_argument("--every", type=words.duration, metavar="TIME", help='at equal distances: "15m"')
    when.add_argument("--phase", type=words.duration, metavar="TIME", help="moves --every from the full hour or day")
    when.add_argument("--after", type=words.duration, metavar="TIME", help="so long after the last one is over")
    when.add_argument("--rrule", action="append", metavar="RULE", help="a rule of iCalendar; may be repeated")
    when.add_argument("--timezone", metavar="ZONE", help="whose clock it goes by: Europe/Berlin (UTC)")
    when.add_argument("--jitter", type=words.duration, metavar="TIME", help="up to so much later, to spread them")
    when.add_argument("--start-at", type=words.instant, metavar="TIME", help="not before")
    when.add_argument("--end-at", type=words.instant, metavar="TIME", help="not from then on")
    when.add_argument("--max-fires", type=words.count, metavar="N", help="ends after so many")


def add_definition_options(parser: argparse.ArgumentParser) -> None:
    add_spec_options(parser)
    how = parser.add_argument_group("how")
    how.add_argument("--overlap", choices=OVERLAPS, metavar="RULE", help=f"{', '.join(OVERLAPS)} (skip)")
    how.add_argument("--misfire", choices=MISFIRES, metavar="RULE", help=f"{', '.join(MISFIRES)} (fire_latest)")
    how.add_argument(
        "--misfire-threshold", type=words.duration, metavar="TIME", help="how late it may be and is no misfire (10s)"
    )
    how.add_argument("--catchup-window", type=words.duration, metavar="TIME", help="how old a missed fire may be (1d)")
    how.add_argument("--catchup-rate", type=words.rate, metavar="N", help="missed fires a second (10)")
    how.add_argument(
        "--pause-on-failure", action="store_true", default=None, help="pause it when one of its tasks is given up"
    )
    how.add_argument("--paused", action="store_true", default=None, help="store it paused")
    how.add_argument("--note", metavar="TEXT", help="for whoever looks at it")
    task = parser.add_argument_group("the task of each fire")
    task.add_argument("--type", metavar="TYPE", help="what kind of work it is")
    task.add_argument("--payload", metavar="JSON", help='JSON; "-" reads it from standard input')
    task.add_argument("--queue", metavar="QUEUE", help="(default)")
    task.add_argument("--priority", choices=words.PRIORITIES, metavar="CLASS", help=", ".join(words.PRIORITIES))
    task.add_argument("--requires", action="append", metavar="TAG", help="a worker must have it; may be repeated")
    task.add_argument("--target", metavar="URL", help="an HTTP endpoint that does the work, in place of a worker")
    task.add_argument("--method", choices=METHODS, metavar="METHOD", help="how to call it (POST)")
    words.add_header_options(task)
    task.add_argument("--timeout", type=words.duration, metavar="TIME", help="for one attempt")
    words.add_retry_options(task)
    task.add_argument("--delivery", choices=DELIVERIES, metavar="PROMISE", help=", ".join(DELIVERIES))
    task.add_argument("--sla", type=words.duration, metavar="TIME", help="to succeed within, counted from its time")
    task.add_argument("--expires-after", type=words.duration, metavar="TIME", help="not to be started later than that")
    task.add_argument("--concurrency-key", metavar="KEY", help="tasks of the same key share the limit set for it")
    task.add_argument("--rate-key", metavar="KEY", help="tasks of the same key share the rate set for it")
    task.add_argument("--label", type=words.pair, action="append", metavar="NAME=VALUE", help="may be repeated")


def given_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options of the definition that were given, as they are written."""
    names = (*_SPEC_OPTIONS, *_HOW_OPTIONS, *_TASK_OPTIONS, *_OTHER_OPTIONS)
    return [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name, None) is not None]


def spec_of(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the given spec, which may be empty."""
    return without_none({name: _one(getattr(arguments, name)) for name in _SPEC_OPTIONS})


def timing_of(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the parts of the definition that decide when it fires, for a preview."""
    names = ("timezone", "jitter", "start_at", "end_at", "max_fires")
    return {"spec": spec_of(arguments), **without_none({name: getattr(arguments, name) for name in names})}


def definition_of(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the definition in the format of the API. Raises a UsageError that says what is missing."""
    given = given_options(arguments)
    if arguments.file is not None:
        if given:
            raise UsageError(f"{given[0]} and --file are two definitions: give one of them")
        return read_definition(*read_named(arguments.file))
    spec = spec_of(arguments)
    if not spec:
        raise UsageError("say when it fires: --cron, --every, --after or --rrule; or give --file")
    if arguments.type is None:
        raise UsageError("say what it starts: --type TYPE and --payload JSON; or give --file")
    return {
        "spec": spec,
        **without_none({name: getattr(arguments, name) for name in _HOW_OPTIONS}),
        "task": _task_of(arguments),
    }


def _task_of(arguments: argparse.Namespace) -> dict[str, object]:
    task = without_none({name: getattr(arguments, name) for name in _TASK_OPTIONS})
    if arguments.payload is not None:
        given = arguments.payload
        text = sys.stdin.buffer.read() if given == "-" else given.encode("utf-8", "surrogateescape")
        task["payload"] = words.json_text("the payload", text)
    if arguments.target is not None:
        task["target"] = without_none(
            {"url": arguments.target, "method": arguments.method, **words.headers_of(arguments)}
        )
    elif named := next((name for name in _NEED_TARGET if getattr(arguments, name) is not None), None):
        raise UsageError(f"--{named.replace('_', '-')} is for an HTTP endpoint: give --target URL as well")
    if retry := words.retry_of(arguments):
        task["retry"] = retry
    if arguments.label:
        task["labels"] = words.unique("--label", arguments.label)
    return task


def read_named(name: str) -> tuple[str, bytes]:
    """Return a file's name and content. "-" is standard input."""
    if name == "-":
        return "standard input", sys.stdin.buffer.read()
    try:
        return name, Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error


def _one(value: object) -> object:
    """One line is sent as a text, several as a list."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
