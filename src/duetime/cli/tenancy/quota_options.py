"""The options of quotas, which tenants and tiers share."""

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any

from duetime.cli.arguments import count, duration
from duetime.errors import UsageError
from duetime.model.quotas import UNLIMITED

_BREAKER = ("breaker_failure_rate", "breaker_window", "breaker_probe_every", "breaker_min_attempts")
_HELD = ("max_schedules", "max_types", "max_keys", "max_calendars", "max_calendar_bytes")
_BYTES = ("submit_bytes_rate", "submit_bytes_burst")
_QUOTAS = ("submit_rate", "submit_burst", *_BYTES, "max_waiting", "max_running", "rate", "burst", *_HELD, *_BREAKER)
#: What a user types for the value that means no limit.
_UNLIMITED = "unlimited"


def quota_words(quotas: Mapping[str, float | None], is_meant: Callable[[str], bool] = lambda _: True) -> str:
    """Those of them that are set and meant, as one types them."""
    given = {name: quotas.get(name) for name in _QUOTAS if is_meant(name)}
    return " ".join(f"{name}={_word(name, value)}" for name, value in given.items() if value is not None)


def add_quota_options(parser: argparse.ArgumentParser, *others: str) -> None:
    """Add options for weight and quotas, and `--unset` for any of them and of `others`."""
    parser.add_argument("--weight", type=count, metavar="N", help="its share beside the others' (1)")
    group = parser.add_argument_group(
        "quotas", f"R and N may be '{_UNLIMITED}', except of bursts, types, calendars and the breaker"
    )
    group.add_argument("--submit-rate", type=_number, metavar="R", help="tasks that may be submitted in a second")
    group.add_argument("--submit-burst", type=_whole, metavar="N", help="tasks that may be submitted at once")
    group.add_argument(
        "--submit-bytes-rate", type=_number, metavar="R", help="bytes of payloads that may be submitted in a second"
    )
    group.add_argument(
        "--submit-bytes-burst", type=_whole, metavar="N", help="bytes of payloads that may be submitted at once"
    )
    group.add_argument("--max-waiting", type=_whole, metavar="N", help="tasks that may wait")
    group.add_argument("--max-running", type=_whole, metavar="N", help="attempts that run at once")
    group.add_argument("--rate", type=_number, metavar="R", help="attempts that start in a second")
    group.add_argument("--burst", type=_whole, metavar="N", help="attempts that may start at once")
    held = parser.add_argument_group("what it may have")
    held.add_argument("--max-schedules", type=_whole, metavar="N", help="schedules")
    held.add_argument("--max-types", type=_whole, metavar="N", help="registered types")
    held.add_argument("--max-keys", type=_whole, metavar="N", help="valid API keys")
    held.add_argument("--max-calendars", type=_whole, metavar="N", help="calendars")
    held.add_argument("--max-calendar-bytes", type=_whole, metavar="N", help="bytes of all its calendars")
    breaker = parser.add_argument_group("its breaker")
    breaker.add_argument(
        "--breaker-failure-rate",
        type=_positive,
        metavar="R",
        help="more than this share must fail; 1: it never stops",
    )
    breaker.add_argument(
        "--breaker-window", type=duration, metavar="DURATION", help='for how long they must fail, like 300 or "5m"'
    )
    breaker.add_argument(
        "--breaker-probe-every", type=duration, metavar="DURATION", help='how often a task is tried, like 60 or "1m"'
    )
    breaker.add_argument("--breaker-min-attempts", type=_whole, metavar="N", help="with fewer it is not stopped")
    known = ["weight", *others, *(name.replace("_", "-") for name in _QUOTAS), "quotas"]
    parser.add_argument(
        "--unset",
        action="append",
        default=[],
        choices=known,
        metavar="NAME",
        help=f"take a value away; may be given several times: {', '.join(known)}",
    )


def read_quota_options(arguments: argparse.Namespace, *others: str) -> dict[str, Any]:
    """Return the fields of the request. An unset value is null."""
    fields: dict[str, Any] = {}
    quotas: dict[str, Any] = {}
    unset = {name.replace("-", "_") for name in arguments.unset}
    for name in ("weight", *others, *_QUOTAS):
        place = quotas if name in _QUOTAS else fields
        value = getattr(arguments, name)
        if value == _UNLIMITED:
            if name not in UNLIMITED:
                raise UsageError(f"--{name.replace('_', '-')} cannot be {_UNLIMITED}; write a number")
            value = UNLIMITED[name]
        if value is not None and (name in unset or (name in _QUOTAS and "quotas" in unset)):
            raise UsageError(f"--{name.replace('_', '-')} is both set and unset")
        if name in unset or value is not None:
            place[name] = value
    if "quotas" in unset:
        fields["quotas"] = None
    elif quotas:
        fields["quotas"] = quotas
    return fields


def _word(name: str, value: float) -> str:
    return _UNLIMITED if value >= UNLIMITED.get(name, math.inf) else f"{value:,}".removesuffix(".0")


def _whole(text: str) -> int | str:
    if text == _UNLIMITED:
        return text
    if not text.isascii() or not text.isdigit() or len(text) > 13:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0 on")
    return int(text)


def _number(text: str) -> float | str:
    if text == _UNLIMITED:
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e13:
        raise argparse.ArgumentTypeError(f"'{text}' is not a rate: write how many a second")
    return value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number that is more than 0")
    return value
