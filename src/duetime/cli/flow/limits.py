"""`duetime limits`: what tasks with the same key may do together; and the options that say limits."""

import argparse

from duetime.cli import arguments as words
from duetime.cli.actions import Action, Command, Given, Subparsers, delete, list_all, named, tell
from duetime.cli.output import Column, local_time, print_line, print_note
from duetime.errors import UsageError
from duetime.model.limits import MAX_RATE, MAX_RUNNING, MIN_RATE
from duetime.sdk.calls.administration import LIMITS
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.shapes.flow import KeyLimit, Limits


def add_parser(subparsers: Subparsers) -> None:
    key = named("the key, or a pattern that ends in *", "KEY")
    Command(
        "limits",
        "limits of keys that tasks name",
        "Limits of keys that tasks name as concurrency_key or rate_key.",
        (
            Action(
                "list",
                "list the limits of keys",
                list_all(lambda _, limit, cursor: LIMITS.list(limit=limit, cursor=cursor), _COLUMNS, _row),
            ),
            Action("show", "show the limit of a key", tell(lambda given: LIMITS.get(given.name), _say), (key,)),
            Action("put", "limit a key, or each key that a pattern fits", tell(_put, _say), (add_limit_options, key)),
            Action(
                "delete",
                "lift the limit of a key",
                delete(lambda given: LIMITS.delete(given.name), "Lifted the limit of {}."),
                (key,),
            ),
        ),
    ).add_to(subparsers)


_COLUMNS = (Column("KEY"), Column("MAX RUNNING"), Column("RATE"), Column("BURST"), Column("CHANGED"))


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-running", type=_room, metavar="N", help="attempts that run at once; 0: none starts")
    parser.add_argument("--rate", type=_rate, metavar="N", help="attempts that start in a second, from 0.001 on")
    parser.add_argument(
        "--burst", type=words.count, metavar="N", help="attempts that start at once after a rest (rate)"
    )
    parser.add_argument("--strict", action="store_true", help="keep --max-running even while two nodes feed the tenant")


def read_limits(arguments: argparse.Namespace) -> Limits:
    """Return the given limits, which may be empty."""
    if arguments.burst is not None and arguments.rate is None:
        raise UsageError("--burst goes with --rate: give both")
    if arguments.strict and arguments.max_running is None:
        raise UsageError("--strict goes with --max-running: give both")
    return Limits(
        max_running=arguments.max_running, rate=arguments.rate, burst=arguments.burst, strict=arguments.strict
    )


def limit_words(limits: Limits | KeyLimit) -> tuple[str, str, str]:
    """Show limits as cells of a table: how many at once, how fast, and how many after a quiet time."""
    running = "-" if limits.max_running is None else f"{limits.max_running:,}{' strict' if limits.strict else ''}"
    rate = "-" if limits.rate is None else f"{limits.rate:g}/s"
    return running, rate, "-" if limits.burst is None else f"{limits.burst:,}"


def _room(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MAX_RUNNING:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to {MAX_RUNNING:,}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        raise argparse.ArgumentTypeError(f"'{text}' is not a rate: write attempts a second, from {MIN_RATE} on")
    return rate


def _row(limit: KeyLimit) -> tuple[str, ...]:
    return limit.name, *limit_words(limit), local_time(limit.updated_at)


def _put(given: Given) -> ApiCall[KeyLimit]:
    limits = read_limits(given)
    if limits == Limits():
        raise UsageError("give --max-running, --rate, or both; `duetime limits delete` lifts a limit")
    return LIMITS.put(given.name, limits)


def _say(limit: KeyLimit) -> None:
    running, rate, burst = limit_words(limit)
    print_line(f"Key {limit.name}: max running {running}, rate {rate}, burst {burst}.")
    for note in limit.notes:
        print_note(note)
