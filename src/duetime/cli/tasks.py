"""`duetime tasks`: look at tasks and steer them, one by one or by filter."""

import argparse
from collections.abc import Callable
from typing import Any, cast

import msgspec

from duetime.cli import arguments as words
from duetime.cli import bulk
from duetime.cli.connect import add_connection_options, add_json_option, fetch, sentence_of, talk
from duetime.cli.output import Table, counted, paint_state, print_line, print_note, print_raw, whole_time
from duetime.cli.paging import PAGE, Paged, add_page_options, print_list
from duetime.cli.show import ATTEMPT_COLUMNS, TASK_COLUMNS, attempt_row, print_explanation, print_task, task_row
from duetime.errors import UsageError
from duetime.model.task import SHOWN_STATES, TaskState
from duetime.model.transitions import Move, sources_of
from duetime.sdk import wire
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import Conflict, NotFound
from duetime.sdk.shapes import Attempt, BulkResult, Explanation, Task
from duetime.sdk.wire import Call, Filter, Verb

_STEP = 1_000

#: Verb → (help, "this will …", what was done).
_VERBS: dict[Verb, tuple[str, str, str]] = {
    "cancel": ("cancel tasks, also running ones", "cancel", "Cancelled"),
    "pause": ("keep waiting tasks back until they are resumed", "pause", "Paused"),
    "resume": ("let paused tasks go on", "resume", "Resumed"),
    "run-now": ("make waiting or paused tasks due at once", "run now", "Made due"),
    "retry": ("give dead letters new attempts; try again now what waits for its next one", "retry", "Retried"),
    "reschedule": ("give waiting or paused tasks another time", "reschedule", "Rescheduled"),
}


#: The states from which each takes a task; what is in another is not counted when it asks.
_TAKEN_FROM: dict[Verb, frozenset[TaskState]] = {
    "cancel": sources_of(Move.CANCEL),
    "pause": sources_of(Move.PAUSE),
    "resume": sources_of(Move.RESUME),
    "run-now": sources_of(Move.RUN_NOW),
    "retry": sources_of(Move.REDRIVE) | {TaskState.RETRYING},
    "reschedule": sources_of(Move.RESCHEDULE),
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tasks = subparsers.add_parser(
        "tasks", help="look at tasks and steer them", description="Look at tasks and steer them.", allow_abbrev=False
    )
    tasks.set_defaults(run=lambda _: _show_help(tasks))
    actions = tasks.add_subparsers(metavar="ACTION", parser_class=type(tasks))

    listing = actions.add_parser("list", help="list tasks", description="List tasks.", allow_abbrev=False)
    words.add_filter_options(listing, has_state=True)
    add_page_options(listing)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    for name, meaning, run in (
        ("get", "show tasks with their attempts", _get),
        ("explain", "say why tasks are where they are, and what would free them", _explain),
    ):
        parser = actions.add_parser(name, help=meaning, description=_sentence(meaning), allow_abbrev=False)
        parser.add_argument("ids", nargs="+", type=words.task_id, metavar="ID")
        if name == "get":
            parser.add_argument(
                "--attempts", action="store_true", help="show the traceback of every attempt, not only of the last one"
            )
        _finish(parser, "the server's JSON, a line for each task")
        parser.set_defaults(run=lambda given, run=run: talk(given, lambda client: run(client, given)))

    attempts = actions.add_parser(
        "attempts",
        help="list the attempts of a task",
        description="List the attempts of a task, in order.",
        allow_abbrev=False,
    )
    attempts.add_argument("id", type=words.task_id, metavar="ID")
    add_page_options(attempts)
    attempts.set_defaults(run=lambda given: talk(given, lambda client: _attempts(client, given)))

    for verb, (meaning, _, _) in _VERBS.items():
        parser = actions.add_parser(
            verb,
            help=meaning,
            description=f"{_sentence(meaning)} By id, or by filter: then it asks first, and goes on until all "
            "tasks that fit are done.",
            allow_abbrev=False,
        )
        parser.add_argument("ids", nargs="*", type=words.task_id, metavar="ID")
        if verb == "reschedule":
            parser.add_argument("--run-at", type=words.instant, metavar="TIME", help="RFC 3339, or local time")
            parser.add_argument("--delay", type=words.duration, metavar="TIME", help='from now: "5m", "1h30m"')
        words.add_filter_options(parser, has_state=True)
        bulk.add_bulk_options(parser)
        _finish(parser, "by id the server's JSON, a line for each task; by filter one object with the sums")
        parser.set_defaults(run=lambda given, verb=verb: _steer(given, verb))


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _sentence(meaning: str) -> str:
    return meaning[0].upper() + meaning[1:] + "."


def _finish(parser: argparse.ArgumentParser, json_meaning: str) -> None:
    add_json_option(parser, json_meaning)
    add_connection_options(parser)


def _list(client: Client, arguments: argparse.Namespace) -> int:
    wanted = words.filter_of(arguments)

    def page(limit: int | None, cursor: str | None) -> Call[Paged[Task]]:
        return cast(Call[Paged[Task]], wire.list_tasks(wanted, limit=limit, cursor=cursor))

    return print_list(client, arguments, page, Table(TASK_COLUMNS), task_row, "task")


def _get(client: Client, arguments: argparse.Namespace) -> int:
    def show(body: bytes) -> None:
        print_task(msgspec.json.decode(body, type=Task), has_all_traces=arguments.attempts)

    return _each(client, arguments, wire.get, show)


def _attempts(client: Client, arguments: argparse.Namespace) -> int:
    def page(limit: int | None, cursor: str | None) -> Call[Paged[Attempt]]:
        return cast(Call[Paged[Attempt]], wire.list_attempts(arguments.id, limit=limit, cursor=cursor))

    return print_list(client, arguments, page, Table(ATTEMPT_COLUMNS), attempt_row, "attempt")


def _explain(client: Client, arguments: argparse.Namespace) -> int:
    return _each(
        client, arguments, wire.explain, lambda body: print_explanation(msgspec.json.decode(body, type=Explanation))
    )


def _each(
    client: Client,
    arguments: argparse.Namespace,
    make_call: Callable[[str], Call[Any]],
    show: Callable[[bytes], None],
) -> int:
    """One call for each id; what is refused for one does not keep the others from it."""
    failures = 0
    for place, task in enumerate(arguments.ids):
        try:
            body = fetch(client, make_call(task))
        except (NotFound, Conflict) as error:
            failures += 1
            text = sentence_of(error)
            print_note(f"duetime: {text if task in text else f'{task}: {text}'}")
            continue
        if arguments.json:
            print_raw(body)
            continue
        if place and show is not _say_state:
            print_line()
        show(body)
    return 1 if failures else 0


def _say_state(body: bytes) -> None:
    task = msgspec.json.decode(body, type=Task)
    due = f", due {whole_time(task.next_run_at)}" if task.next_run_at is not None else ""
    print_line(f"{task.id}  {paint_state(task.state)}{due}")


def _steer(arguments: argparse.Namespace, verb: Verb) -> int:
    wanted = bulk.chosen(arguments, "task")
    run_at = delay = None
    if verb == "reschedule":
        run_at, delay = arguments.run_at, arguments.delay
        if (run_at is None) == (delay is None):
            raise UsageError("reschedule to when? give --run-at or --delay, one of the two")
    if wanted is None:
        return talk(
            arguments,
            lambda client: _each(
                client, arguments, lambda task: wire.act(verb, task, run_at=run_at, delay=delay), _say_state
            ),
        )
    # One time for all steps: a task that was moved to it is then not met again.
    moment = words.after(delay) if delay is not None else run_at
    return talk(arguments, lambda client: _steer_many(client, arguments, verb, wanted, moment))


def _steer_many(client: Client, arguments: argparse.Namespace, verb: Verb, wanted: Filter, run_at: str | None) -> int:
    _, what, done = _VERBS[verb]
    if not bulk.is_confirmed(arguments, what, wanted, "task", lambda: _count_takable(client, verb, wanted)):
        print_note("Nothing was done.")
        return 1

    def step(cursor: str | None) -> BulkResult:
        return client.send(wire.act_on_many(verb, wanted, limit=_STEP, cursor=cursor, run_at=run_at))

    matched, changed = bulk.run_steps(step, lambda result: result.changed, done)
    if arguments.json:
        print_line(msgspec.json.encode({"matched": matched, "changed": changed, "next": None}).decode())
    elif matched == 0:
        print_line("No task fits.")
    else:
        print_line(f"{done} {changed:,} of the {counted(matched, 'task')} that fit.")
    return 0


def _count_takable(client: Client, verb: Verb, wanted: Filter) -> tuple[int, bool]:
    """How many of the tasks are in a state that the verb takes them from, and whether that is all."""
    total, is_whole = 0, True
    for state in SHOWN_STATES:
        if state in _TAKEN_FROM[verb] and wanted.get("state", state) == state:
            found, is_all = bulk.count_some(_counter(client, {**wanted, "state": state.value}))
            total, is_whole = total + found, is_whole and is_all
    return total, is_whole


def _counter(client: Client, wanted: Filter) -> Callable[[str | None], tuple[int, str | None]]:
    def read(cursor: str | None) -> tuple[int, str | None]:
        page = client.list_page(limit=PAGE, cursor=cursor, **wanted)
        return len(page.items), page.next

    return read
