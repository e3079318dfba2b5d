"""Structured logs: console for people, JSON for programs."""

import logging
import sys
import time
from collections.abc import Callable

import structlog

from duetime.passwords import hide_passwords


class Sparing:
    """Lets a number of lines through in each period, and counts the others."""

    def __init__(self, lines: int = 5, monotonic: Callable[[], float] = time.monotonic, seconds: float = 1.0) -> None:
        self._lines = lines
        self._seconds = seconds
        self._monotonic = monotonic
        self._since = float("-inf")
        self._written = 0
        self._left_out = 0

    def take(self) -> int | None:
        """How many lines were left out before this one; None: leave this one out as well."""
        now = self._monotonic()
        if now - self._since >= self._seconds:
            self._since, self._written = now, 0
        if self._written >= self._lines:
            self._left_out += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def set_up_logs(format: str, level: str, node: str) -> None:
    """Configure structlog for this process; every line names the node."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "json":
        shared += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Plain tracebacks: pretty ones print every local variable, including payloads and keys.
        shared += [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    shared.append(_hide)
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # One write for each line: several processes write to one log, also where Python does not buffer.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(node=node)


def _hide(logger: object, method: str, line: object) -> str:
    """The line without passwords: an error's message may quote the address of a database."""
    return hide_passwords(str(line))
