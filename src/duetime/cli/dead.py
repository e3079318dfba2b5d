"""`duetime dead`: list dead letters, give them another chance, or drop them."""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Literal, cast

import msgspec

from duetime.cli import arguments as words
from duetime.cli import bulk
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import Progress, Table, counted, print_line, print_note, span
from duetime.cli.paging import PAGE, Paged, add_page_options, print_list
from duetime.cli.show import DEAD_COLUMNS, dead_row
from duetime.sdk import wire
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes import BulkResult, DeadLetter
from duetime.sdk.wire import Call, Filter

Action = Literal["redrive", "drop"]
_STEP = 1_000
#: The most that one call takes: the server spreads what it gets in one call at the rate.
_STEP_AT_A_RATE = 10_000
_DONE = {"redrive": "Redrove", "drop": "Dropped"}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    dead = subparsers.add_parser(
        "dead",
        help="dead letters: list, redrive, drop",
        description="Dead letters: tasks whose attempts are used up or whose failure is permanent.",
        allow_abbrev=False,
    )
    dead.set_defaults(run=lambda _: _show_help(dead))
    actions = dead.add_subparsers(metavar="ACTION", parser_class=type(dead))

    listing = actions.add_parser("list", help="list them", description="List dead letters.", allow_abbrev=False)
    words.add_filter_options(listing, has_state=False)
    add_page_options(listing)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    meanings: dict[Action, str] = {
        "redrive": "give them new attempts, at once or at a rate",
        "drop": "throw them away: they count as cancelled",
    }
    for action, meaning in meanings.items():
        parser = actions.add_parser(
            action,
            help=meaning,
            description=f"Dead letters: {meaning}. By id, or by filter: then it asks first.",
            allow_abbrev=False,
        )
        parser.add_argument("ids", nargs="*", type=words.task_id, metavar="ID")
        if action == "redrive":
            parser.add_argument("--rate", type=words.rate, metavar="N", help="tasks a second (all at once)")
        words.add_filter_options(parser, has_state=False)
        bulk.add_bulk_options(parser)
        add_json_option(parser, "one object with the sums of the server's answers")
        add_connection_options(parser)
        parser.set_defaults(run=lambda given, action=action: _act(given, action))


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _list(client: Client, arguments: argparse.Namespace) -> int:
    wanted = words.filter_of(arguments)

    def page(limit: int | None, cursor: str | None) -> Call[Paged[DeadLetter]]:
        return cast(Call[Paged[DeadLetter]], wire.list_dead(wanted, limit=limit, cursor=cursor))

    return print_list(client, arguments, page, Table(DEAD_COLUMNS), dead_row, "dead letter")


def _act(arguments: argparse.Namespace, action: Action) -> int:
    wanted = bulk.chosen(arguments, "dead letter")
    rate = getattr(arguments, "rate", None)
    size = _STEP_AT_A_RATE if rate is not None else _STEP
    if wanted is None:
        return talk(arguments, lambda client: _act_on_ids(client, arguments, action, _Pace(rate), size))
    return talk(arguments, lambda client: _act_on_many(client, arguments, action, wanted, _Pace(rate), size))


class _Pace:
    """Keeps the rate from one call to the next: a call spreads its own tasks, and the next waits for their end."""

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


def _act_on_ids(client: Client, arguments: argparse.Namespace, action: Action, pace: _Pace, size: int) -> int:
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
    client: Client, arguments: argparse.Namespace, action: Action, wanted: Filter, pace: _Pace, size: int
) -> int:
    def count() -> tuple[int, bool]:
        return bulk.count_some(lambda cursor: _count_page(client, wanted, cursor))

    if not bulk.is_confirmed(arguments, action, wanted, "dead letter", count):
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
    action: Action,
    wanted: Filter,
    rate: float | None,
    size: int,
    *,
    ids: Sequence[str] | None = None,
    cursor: str | None = None,
) -> BulkResult:
    everything = ids is None and not wanted
    call = wire.act_on_dead(action, ids, wanted, everything=everything, rate=rate, limit=size, cursor=cursor)
    return client.send(call)


def _count_page(client: Client, wanted: Filter, cursor: str | None) -> tuple[int, str | None]:
    page = client.send(wire.list_dead(wanted, limit=PAGE, cursor=cursor))
    return len(page.items), page.next


def _changed(action: Action) -> Callable[[BulkResult], int]:
    return (lambda result: result.redriven) if action == "redrive" else (lambda result: result.dropped)


def _sum_up(arguments: argparse.Namespace, action: Action, matched: int, changed: int) -> None:
    if arguments.json:
        name = {"redrive": "redriven", "drop": "dropped"}[action]
        print_line(msgspec.json.encode({"matched": matched, name: changed, "next": None}).decode())
    elif matched == 0:
        print_line("No dead letter fits.")
    else:
        print_line(f"{_DONE[action]} {changed:,} of {counted(matched, 'dead letter')}.")
