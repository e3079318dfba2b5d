"""Parse words of the command line into values, and the options that select tasks.

Errors are reported here before anything is sent.
"""

import argparse
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from duetime.errors import UsageError
from duetime.model.duration import format_duration, parse_duration
from duetime.model.task import SHOWN_STATES, PriorityClass
from duetime.sdk.calls.call import without_none
from duetime.sdk.calls.tasks import Filter

PRIORITIES = [each.word for each in PriorityClass]
RETRY_OPTIONS = ("max_attempts", "min_backoff", "max_backoff", "max_doublings", "max_retry_duration", "max_crashes")
STATES = [state.value for state in SHOWN_STATES]
_RIGHT_TIME = "is not a time such as 2030-01-31T12:00:00Z or '2030-01-31 12:00' (local)"


def add_database_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database-url", metavar="URL", help="the PostgreSQL database (DUETIME_DATABASE_URL)")
    parser.add_argument("--data", metavar="DIR", help="data folder of `duetime up`, running or not (.duetime)")


def duration(text: str) -> float:
    """Seconds, from "90", "5m" or "1h30m"."""
    try:
        seconds = parse_duration(float(text) if _is_number(text) else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a duration: {error}") from error
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is negative")
    return seconds


def spoken(seconds: float) -> str:
    return format_duration(seconds)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def instant(text: str) -> str:
    """A time as the API takes it; without a zone it is this machine's local time."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"'{text}' {_RIGHT_TIME}") from error


def after(seconds: float) -> str:
    """Return the time at this distance from now, in the format of the API."""
    try:
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    except OverflowError as error:
        raise UsageError("--delay: that is beyond the calendar") from error


def task_id(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a task id; one looks like 0199a3c4-6f00-8123-9abc-def000000101"
        ) from error


def name(text: str) -> str:
    """Check a part of a path: an empty one would give another path."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def pair(text: str) -> tuple[str, str]:
    """A label as name=value."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not a label: write name=value")
    return name, value


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"'{text}' is not a header: write 'Name: value'")
    return name.strip(), value.strip()


def headers_of(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the fields of the target that --header and --secret-header set."""
    plain = unique("--header", arguments.header)
    secret = unique("--secret-header", arguments.secret_header)
    if twice := next((name for name in secret if name in plain), None):
        raise UsageError(f"the header {twice} stands in --header and in --secret-header: give it once")
    fields: dict[str, object] = {"headers": {**plain, **secret}} if plain or secret else {}
    return fields | ({"secret_headers": list(secret)} if secret else {})


def add_header_options(parser: "argparse._ArgumentGroup") -> None:
    parser.add_argument("--header", type=header, action="append", metavar="'NAME: VALUE'", help="sent to it")
    parser.add_argument(
        "--secret-header",
        type=header,
        action="append",
        metavar="'NAME: VALUE'",
        help="the same, kept secret; Authorization, Cookie, X-Api-Key and the like are that anyway",
    )


def add_retry_options(parser: "argparse._ArgumentGroup") -> None:
    parser.add_argument("--max-attempts", type=count, metavar="N", help="all attempts, the first one included (20)")
    parser.add_argument("--min-backoff", type=duration, metavar="TIME", help="wait before the second attempt (1s)")
    parser.add_argument("--max-backoff", type=duration, metavar="TIME", help="longest wait between attempts (1h)")
    parser.add_argument("--max-doublings", type=int, metavar="N", help="how often the wait doubles (16)")
    parser.add_argument(
        "--max-retry-duration", type=duration, metavar="TIME", help="for all attempts together (no limit)"
    )
    parser.add_argument("--max-crashes", type=count, metavar="N", help="attempts that may die with their worker (3)")


def retry_of(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the retry policy, with only the given fields."""
    return without_none({name: getattr(arguments, name) for name in RETRY_OPTIONS})


def count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 on")
    return int(text)


def rate(text: str) -> float:
    """Parse a rate in tasks per second."""
    if not _is_number(text) or not 0.01 <= float(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a rate: write tasks a second, from 0.01 on")
    return float(text)


def unique(option: str, pairs: Sequence[tuple[str, str]] | None) -> dict[str, str]:
    """Return pairs as a mapping. The same name with two values is an error."""
    found: dict[str, str] = {}
    for name, value in pairs or ():
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option}: {name} is given two values")
    return found


def json_text(what: str, text: bytes) -> msgspec.Raw:
    """Check JSON and return it as it was written."""
    try:
        text.decode("utf-8")
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "" if text.lstrip()[:1] in (b"{", b"[", b'"') else """; quote it for the shell: '{"name": "Ada"}'"""
        raise UsageError(f"{what} is not JSON ({error}){hint}") from error
    return msgspec.Raw(text.strip())


def add_filter_options(parser: argparse.ArgumentParser, *, has_state: bool) -> None:
    group = parser.add_argument_group("choose tasks by")
    if has_state:
        group.add_argument("--state", choices=STATES, metavar="STATE", help=", ".join(STATES))
    group.add_argument("--type", metavar="TYPE", help="what kind of work it is")
    group.add_argument("--queue", metavar="QUEUE")
    group.add_argument("--priority", choices=PRIORITIES, metavar="CLASS", help=", ".join(PRIORITIES))
    group.add_argument(
        "--label", type=pair, action="append", metavar="NAME=VALUE", help="may be given several times; all must hold"
    )
    group.add_argument("--from", dest="from_", type=instant, metavar="TIME", help="due at or after this time")
    group.add_argument("--to", type=instant, metavar="TIME", help="due before this time")
    group.add_argument("--schedule", metavar="NAME", help="made by this schedule")


def filter_of(arguments: argparse.Namespace) -> Filter:
    """Return the given filter, which may be empty."""
    found: Filter = {}
    if getattr(arguments, "state", None):
        found["state"] = arguments.state
    if arguments.type is not None:
        found["type"] = arguments.type
    if arguments.queue is not None:
        found["queue"] = arguments.queue
    if arguments.priority is not None:
        found["priority"] = arguments.priority
    if arguments.label:
        found["labels"] = unique("--label", arguments.label)
    if arguments.from_ is not None:
        found["from_"] = arguments.from_
    if arguments.to is not None:
        found["to"] = arguments.to
    if arguments.schedule is not None:
        found["schedule"] = arguments.schedule
    return found


def words_of(wanted: Filter) -> str:
    """Describe the filter for people."""
    said = [f"{name} {wanted[name]}" for name in ("state", "type", "queue", "priority", "schedule") if name in wanted]
    said += [f"label {name}={value}" for name, value in (wanted.get("labels") or {}).items()]
    said += [f"due from {wanted['from_']}"] if "from_" in wanted else []
    said += [f"due before {wanted['to']}"] if "to" in wanted else []
    return ", ".join(said)
