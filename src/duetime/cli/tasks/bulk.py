"""Verbs by filter: ask first, then continue step by step until nothing is left."""

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from duetime.cli.arguments import filter_of, words_of
from duetime.cli.output import Progress, counted, print_note
from duetime.errors import UsageError
from duetime.sdk.calls.tasks import Filter
from duetime.sdk.errors import SearchIncomplete
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.tasks import BulkResult

T = TypeVar("T")

_COUNT_UP_TO = 200
_COUNT_PAGES = 10

#: One step from a cursor. None: from the start.
Step = Callable[[str | None], BulkResult]
#: How many tasks match, and whether that is all.
Count = Callable[[], tuple[int, bool]]


def add_bulk_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all of them, where nothing else chooses")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def chosen(arguments: argparse.Namespace, noun: str) -> Filter | None:
    """Return None if ids are given, else the filter, which is empty only with --all."""
    wanted = filter_of(arguments)
    if arguments.ids:
        if wanted or arguments.all:
            raise UsageError("give ids, or options that choose, not both")
        return None
    if not wanted and not arguments.all:
        raise UsageError(f"say which {noun}s: give ids, or choose them (--type, --queue, …), or --all for every one")
    return wanted


def is_confirmed(arguments: argparse.Namespace, what: str, wanted: Filter, noun: str, count: Count) -> bool:
    """Ask whether to continue. With --json, which programs use, nothing is asked."""
    if arguments.yes or arguments.json:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"this would {what} {noun}s by filter and there is nobody to ask: add --yes")
    number, is_all = count()
    if number == 0 and is_all:
        return True
    words = f" ({words_of(wanted)})" if wanted else ", every one there is"
    amount = counted(number, noun) if is_all else f"{number:,} or more {noun}s"
    sys.stderr.write(f"This will {what} {amount}{words}. Go on? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def count_some(found: Iterator[Page[T]]) -> tuple[int, bool]:
    """Count matching tasks in the first few pages. Return the count and whether that is all."""
    number = 0
    for page in islice(found, _COUNT_PAGES):
        number += len(page.items)
        if page.next is None:
            return number, True
        if number >= _COUNT_UP_TO:
            break
    return number, False


def run_steps(step: Step, changed_of: Callable[[BulkResult], int], doing: str) -> tuple[int, int]:
    """Do all steps. Return how many tasks matched and how many were changed."""
    progress = Progress()
    matched = changed = 0
    cursor: str | None = None
    try:
        while True:
            try:
                result = step(cursor)
            except SearchIncomplete as error:
                cursor = error.next
                progress.say(f"{doing}: {changed:,} of {matched:,} so far, looking on")
                continue
            matched += result.matched
            changed += changed_of(result)
            cursor = result.next
            if cursor is None:
                return matched, changed
            progress.say(f"{doing}: {changed:,} of {matched:,} so far")
    except BaseException:
        progress.clear()
        if matched:
            print_note(f"{doing}: stopped after {changed:,} of the {matched:,} looked at")
        raise
    finally:
        progress.clear()
