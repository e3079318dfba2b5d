"""`duetime dead`: list dead letters, give them another chance, or drop them."""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from duetime.cli import arguments as words
from duetime.cli.actions import Action, AddOptions, Command, Given, Subparsers, list_pages
from duetime.cli.connect import talk
from duetime.cli.output import Progress, counted, print_line, print_note, span
from duetime.cli.paging import pages
from duetime.cli.tasks import bulk
from duetime.cli.tasks.show import DEAD_COLUMNS, dead_row
from duetime.sdk.calls import tasks as calls
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.calls.tasks import Filter
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.tasks import BulkResult, DeadLetter

Verb = Literal["redrive", "drop"]
_STEP = 1_000
#: The most that one call takes. The server spreads the tasks of one call at the rate.
_STEP_AT_A_RATE = 10_000
_DONE = {"redrive": "Redrove", "drop": "Dropped"}


def add_parser(subparsers: Subparsers) -> None:
    Command(
        "dead",
        "dead letters: list, redrive, drop",
        "Dead letters: tasks whose attempts are used up or whose failure is permanent.",
        (
            Action(
                "list",
                "list them",
                list_pages(_page, DEAD_COLUMNS, dead_row, "dead letter"),
                (lambda parser: words.add_filter_options(parser, has_state=False),),
                "List dead letters.",
                is_paged=True,
            ),
            _action("redrive", "give them new attempts, at once or at a rate", _add_rate),
            _action("drop", "throw them away: they count as cancelled"),
        ),
    ).add_to(subparsers)


def _action(action: Verb, meaning: str, *options: AddOptions) -> Action:
    return Action(
        action,
        meaning,
        lambda given: _act(given, action),
        (
            lambda parser: parser.add_argument("ids", nargs="*", type=words.task_id, metavar="ID"),
            *options,
            lambda parser: words.add_filter_options(parser, has_state=False),
            bulk.add_bulk_options,
        ),
        f"Dead letters: {meaning}. By id, or by filter: then it asks first.",
        "one object with the sums of the server's answers",
    )


def _add_rate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=words.rate, metavar="N", help="tasks a second (all at once)")


def _page(given: Given, limit: int, cursor: str | None) -> ApiCall[Page[DeadLetter]]:
    return calls.list_dead(words.filter_of(given), limit=limit, cursor=cursor)


def _act(arguments: argparse.Namespace, action: Verb) -> int:
    wanted = bulk.chosen(arguments, "dead letter")
    rate = getattr(arguments, "rate", None)
    size = _STEP_AT_A_RATE if rate is not None else _STEP
    if wanted is None:
        return talk(arguments, lambda client: _act_on_ids(client, arguments, action, _Pace(rate), size))
    return talk(arguments, lambda client: _act_on_many(client, arguments, action, wanted, _Pace(rate), size))


class _Pace:
    """Keeps the rate between calls: a call spreads its own tasks, and the next call waits for their end."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._clear_at = 0.0

    def wait(self) -> None:
        left = self._clear_at - time.monotonic()
        if left <= 0:
            return
        progress = Progress()
        progress.say(f"the next ones in {span(left)}, to keep the rate; Ctrl-C stops here")
        time.sleep(left)
        progress.clear()

    def spent(self, number: int) -> None:
        if self.rate is not None:
            self._clear_at = time.monotonic() + number / self.rate


def _act_on_ids(client: Client, arguments: argparse.Namespace, action: Verb, pace: _Pace, size: int) -> int:
    ids = list(dict.fromkeys(arguments.ids))
    changed = 0
    for start in range(0, len(ids), size):
        pace.wait()
        result = _call(client, action, {}, pace.rate, size, ids=ids[start : start + size])
        changed += _changed(action)(result)
        pace.spent(_changed(action)(result))
    _sum_up(arguments, action, len(ids), changed)
    if changed < len(ids) and not arguments.json:
        print_note(f"{counted(len(ids) - changed, 'id')} named no dead letter.")
    return 0 if changed == len(ids) else 1


def _act_on_many(
    client: Client, arguments: argparse.Namespace, action: Verb, wanted: Filter, pace: _Pace, size: int
) -> int:
    if not bulk.is_confirmed(
        arguments, action, wanted, "dead letter", lambda: bulk.count_some(pages(client, arguments, _page))
    ):
        print_note("Nothing was done.")
        return 1

    def step(cursor: str | None) -> BulkResult:
        pace.wait()
        result = _call(client, action, wanted, pace.rate, size, cursor=cursor)
        pace.spent(_changed(action)(result))
        return result

    matched, changed = bulk.run_steps(step, _changed(action), _DONE[action])
    _sum_up(arguments, action, matched, changed)
    return 0


def _call(
    client: Client,
    action: Verb,
    wanted: Filter,
    rate: float | None,
    size: int,
    *,
    ids: Sequence[str] | None = None,
    cursor: str | None = None,
) -> BulkResult:
    everything = ids is None and not wanted
    call = calls.act_on_dead(action, ids, wanted, everything=everything, rate=rate, limit=size, cursor=cursor)
    return client.send(call)


def _changed(action: Verb) -> Callable[[BulkResult], int]:
    return (lambda result: result.redriven) if action == "redrive" else (lambda result: result.dropped)


def _sum_up(arguments: argparse.Namespace, action: Verb, matched: int, changed: int) -> None:
    if arguments.json:
        name = {"redrive": "redriven", "drop": "dropped"}[action]
        print_line(msgspec.json.encode({"matched": matched, name: changed, "next": None}).decode())
    elif matched == 0:
        print_line("No dead letter fits.")
    else:
        print_line(f"{_DONE[action]} {changed:,} of {counted(matched, 'dead letter')}.")
