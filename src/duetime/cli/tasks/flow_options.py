"""The options of `duetime submit` that make one task unique or debounced.

Rules for all tasks of a type (throttle, rate limit) have no option: they are
registered once, with `duetime types put`.
"""

import argparse

from duetime.cli import arguments as words
from duetime.errors import UsageError

_UNIQUE = ("unique", "unique_key", "unique_state", "unique_period")
_DEBOUNCE = ("debounce_key", "debounce_period", "debounce_timeout")


def add_flow_options(parser: argparse.ArgumentParser) -> None:
    unique = parser.add_argument_group("unique (while one is there, it is given back)")
    # None where absent, as all other options.
    unique.add_argument("--unique", action="store_const", const=True, help="one of the same type and payload at a time")
    unique.add_argument("--unique-key", metavar="KEY", help="one of the same type and key, whatever its payload")
    unique.add_argument(
        "--unique-state",
        choices=words.STATES,
        action="append",
        metavar="STATE",
        help="in which it counts (all that are not over); may be repeated",
    )
    unique.add_argument("--unique-period", type=words.duration, metavar="TIME", help="counts so long in any case")
    debounce = parser.add_argument_group("debounce (of a rush of submissions the last one runs)")
    debounce.add_argument("--debounce-key", metavar="KEY", help="those of the same type and key are one rush")
    debounce.add_argument("--debounce-period", type=words.duration, metavar="TIME", help="it runs so long after them")
    debounce.add_argument(
        "--debounce-timeout", type=words.duration, metavar="TIME", help="and so long after the first at the latest"
    )


def read_flow(arguments: argparse.Namespace) -> dict[str, object]:
    """Return `unique` or `debounce` in the format of the API, if it was requested."""
    unique, debounce = _first_given(arguments, _UNIQUE), _first_given(arguments, _DEBOUNCE)
    if unique and debounce:
        raise UsageError(f"{unique} and {debounce}: a task is unique or debounced, not both")
    if unique:
        asked = {
            "key": arguments.unique_key,
            "states": arguments.unique_state,
            "period": arguments.unique_period,
        }
        if arguments.unique and arguments.unique_key is not None:
            raise UsageError("--unique goes by the payload and --unique-key by the key: give one of them")
        return {"unique": {name: value for name, value in asked.items() if value is not None}}
    if not debounce:
        return {}
    _check_debounce(arguments, debounce)
    asked = {
        "key": arguments.debounce_key,
        "period": arguments.debounce_period,
        "timeout": arguments.debounce_timeout,
    }
    return {"debounce": {name: value for name, value in asked.items() if value is not None}}


def _check_debounce(arguments: argparse.Namespace, given: str) -> None:
    for name in ("debounce_key", "debounce_period"):
        if getattr(arguments, name) is None:
            raise UsageError(f"{given} needs {_option(name)} as well")
    timeout = arguments.debounce_timeout
    if timeout is not None and timeout < arguments.debounce_period:
        raise UsageError("--debounce-timeout must not be less than --debounce-period")
    for name in ("delay", "run_at"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"{_option(name)}: a debounced task runs when its --debounce-period is over; leave it out")


def _first_given(arguments: argparse.Namespace, names: tuple[str, ...]) -> str | None:
    return next((_option(name) for name in names if getattr(arguments, name) is not None), None)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
