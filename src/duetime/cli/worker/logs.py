"""The log of `duetime worker`: lines for people or JSON for programs, on standard error.

Levels below info are ours alone: `--verbose` shows each step of the worker, not those of the libraries that the
handlers use.  What a line says came from handlers and from outside, so it is made printable, and is bounded.
"""

import argparse
import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime

from duetime.errors import UsageError
from duetime.sdk.worker.handlers import bounded

FORMATS = ("console", "json")
LEVELS = ("debug", "info", "warning", "error")
#: The most characters of a line and of a traceback. The middle of longer ones is left out.
MAX_TEXT_BYTES = 16 * 1024

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}


def add_log_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the log, on standard error")
    group.add_argument(
        "--log-format",
        choices=(*FORMATS, "text"),
        metavar="FORMAT",
        help="console (or text) for people, json for programs (DUETIME_LOG_FORMAT, else console)",
    )
    group.add_argument(
        "--log-level",
        choices=LEVELS,
        metavar="LEVEL",
        help=f"{', '.join(LEVELS)} (DUETIME_LOG_LEVEL, else info: a line for each attempt; a worker that runs "
        "thousands of tasks a second is quicker with warning)",
    )
    group.add_argument("--verbose", action="store_true", help="the same as --log-level debug: each start as well")


def set_up_logs(arguments: argparse.Namespace) -> None:
    """Configure the standard logging of this process, before the user's module is imported."""
    format = arguments.log_format or _setting("DUETIME_LOG_FORMAT", (*FORMATS, "text"))
    word = "debug" if arguments.verbose else arguments.log_level or _setting("DUETIME_LOG_LEVEL", LEVELS) or "info"
    level = logging.getLevelNamesMapping()[word.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else LineFormatter())
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler])
    logging.getLogger("duetime").setLevel(level)


def _setting(name: str, words: tuple[str, ...]) -> str | None:
    value = os.environ.get(name, "").strip().lower()
    if value and value not in words:
        raise UsageError(f"{name}: '{value}' is none of {', '.join(words)}")
    return value or None


class LineFormatter(logging.Formatter):
    """Format time, level and message, and a traceback below. Only the first line begins like this."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_clean(record.getMessage())]
        if record.exc_info:
            parts.append(_clean(_trace_of(record.exc_info)))
        elif isinstance(written := getattr(record, "exception", None), str):
            parts.append(_clean(written.rstrip("\n")))
        if record.stack_info:
            parts.append(_clean(record.stack_info))
        text = "\n".join(parts).replace("\n", "\n  ")
        return f"{_time_of(record)} {record.levelname:<7} {text}"


class JsonFormatter(logging.Formatter):
    """Format one object per line, with the names of the server's log: timestamp, level, event, and extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": _time_of(record),
            "level": record.levelname.lower(),
            "event": bounded(record.getMessage(), MAX_TEXT_BYTES),
            "logger": record.name,
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = _trace_of(record.exc_info)
        if record.stack_info:
            line["stack"] = bounded(record.stack_info, MAX_TEXT_BYTES)
        return json.dumps(line, default=repr)


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace_of(exc_info: object) -> str:
    if not isinstance(exc_info, tuple) or exc_info[1] is None:
        return ""
    try:
        text = "".join(traceback.format_exception(*exc_info))
    except Exception as broken:
        text = f"(the traceback cannot be written: {type(broken).__qualname__})"
    return bounded(text.rstrip("\n"), MAX_TEXT_BYTES)


def _clean(text: str) -> str:
    """Shorten the text and remove characters that control a terminal. Its lines stay lines."""
    text = bounded(text, MAX_TEXT_BYTES)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)
