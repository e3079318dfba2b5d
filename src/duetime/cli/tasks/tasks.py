"""`duetime tasks`: read and control tasks, one by one or by filter."""

import argparse
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from duetime.cli import arguments as words
from duetime.cli.actions import Action, AddOptions, Command, Given, Subparsers, list_pages, sentence, with_client
from duetime.cli.connect import ask, sentence_of, talk
from duetime.cli.output import counted, paint_state, print_line, print_note, print_raw, whole_time
from duetime.cli.paging import pages
from duetime.cli.tasks import bulk
from duetime.cli.tasks.show import ATTEMPT_COLUMNS, TASK_COLUMNS, attempt_row, print_explanation, print_task, task_row
from duetime.errors import UsageError
from duetime.model.task import SHOWN_STATES, TaskState
from duetime.model.transitions import Move, sources_of
from duetime.sdk.calls import tasks as calls
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.calls.tasks import Filter, Verb
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import Conflict, NotFound
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.tasks import Attempt, BulkResult, Task

T = TypeVar("T")

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


#: The states in which each verb changes a task. Tasks in other states are not counted in the question.
_TAKEN_FROM: dict[Verb, frozenset[TaskState]] = {
    "cancel": sources_of(Move.CANCEL),
    "pause": sources_of(Move.PAUSE),
    "resume": sources_of(Move.RESUME),
    "run-now": sources_of(Move.RUN_NOW),
    "retry": sources_of(Move.REDRIVE) | {TaskState.RETRYING},
    "reschedule": sources_of(Move.RESCHEDULE),
}


def add_parser(subparsers: Subparsers) -> None:
    Command(
        "tasks",
        "look at tasks and steer them",
        "Look at tasks and steer them.",
        (
            Action(
                "list",
                "list tasks",
                list_pages(_list, TASK_COLUMNS, task_row, "task"),
                (lambda parser: words.add_filter_options(parser, has_state=True),),
                "List tasks.",
                is_paged=True,
            ),
            _look("get", "show tasks with their attempts", calls.get, _say_task, _add_traces),
            _look(
                "explain",
                "say why tasks are where they are, and what would free them",
                calls.explain,
                lambda found, _: print_explanation(found),
            ),
            Action(
                "attempts",
                "list the attempts of a task",
                list_pages(_attempts, ATTEMPT_COLUMNS, attempt_row, "attempt"),
                (lambda parser: parser.add_argument("id", type=words.task_id, metavar="ID"),),
                "List the attempts of a task, in order.",
                is_paged=True,
            ),
            *(_verb(verb, meaning) for verb, (meaning, _, _) in _VERBS.items()),
        ),
    ).add_to(subparsers)


def _look(
    name: str,
    meaning: str,
    call: Callable[[str], ApiCall[T]],
    say: Callable[[T, Given], None],
    *options: AddOptions,
) -> Action:
    return Action(
        name,
        meaning,
        with_client(lambda client, given: _each(client, given, call, say)),
        (lambda parser: parser.add_argument("ids", nargs="+", type=words.task_id, metavar="ID"), *options),
        sentence(meaning),
        "the server's JSON, a line for each task",
    )


def _verb(verb: Verb, meaning: str) -> Action:
    return Action(
        verb,
        meaning,
        lambda given: _steer(given, verb),
        (
            lambda parser: parser.add_argument("ids", nargs="*", type=words.task_id, metavar="ID"),
            *((_add_times,) if verb == "reschedule" else ()),
            lambda parser: words.add_filter_options(parser, has_state=True),
            bulk.add_bulk_options,
        ),
        f"{sentence(meaning)} By id, or by filter: then it asks first, and goes on until all tasks that fit are done.",
        "by id the server's JSON, a line for each task; by filter one object with the sums",
    )


def _add_traces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attempts", action="store_true", help="show the traceback of every attempt, not only of the last one"
    )


def _add_times(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-at", type=words.instant, metavar="TIME", help="RFC 3339, or local time")
    parser.add_argument("--delay", type=words.duration, metavar="TIME", help='from now: "5m", "1h30m"')


def _list(given: Given, limit: int, cursor: str | None) -> ApiCall[Page[Task]]:
    return calls.list_tasks(words.filter_of(given), limit=limit, cursor=cursor)


def _attempts(given: Given, limit: int, cursor: str | None) -> ApiCall[Page[Attempt]]:
    return calls.list_attempts(given.id, limit=limit, cursor=cursor)


def _say_task(task: Task, given: Given) -> None:
    print_task(task, has_all_traces=given.attempts)


def _each(
    client: Client,
    arguments: argparse.Namespace,
    make_call: Callable[[str], ApiCall[T]],
    say: Callable[[T, Given], None],
) -> int:
    """Send one call for each id. A refusal of one does not stop the others."""
    failures = 0
    for place, task in enumerate(arguments.ids):
        try:
            body, found = ask(client, make_call(task))
        except (NotFound, Conflict) as error:
            failures += 1
            text = sentence_of(error)
            print_note(f"duetime: {text if task in text else f'{task}: {text}'}")
            continue
        if arguments.json:
            print_raw(body)
            continue
        if place and say is not _say_state:
            print_line()
        say(found, arguments)
    return 1 if failures else 0


def _say_state(task: Task, _: Given) -> None:
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
                client, arguments, lambda task: calls.act(verb, task, run_at=run_at, delay=delay), _say_state
            ),
        )
    # One time for all steps, so that a task that was moved to it is not found again.
    moment = words.after(delay) if delay is not None else run_at
    return talk(arguments, lambda client: _steer_many(client, arguments, verb, wanted, moment))


def _steer_many(client: Client, arguments: argparse.Namespace, verb: Verb, wanted: Filter, run_at: str | None) -> int:
    _, what, done = _VERBS[verb]
    if not bulk.is_confirmed(arguments, what, wanted, "task", lambda: _count_takable(client, arguments, verb, wanted)):
        print_note("Nothing was done.")
        return 1

    def step(cursor: str | None) -> BulkResult:
        return client.send(calls.act_on_many(verb, wanted, limit=_STEP, cursor=cursor, run_at=run_at))

    matched, changed = bulk.run_steps(step, lambda result: result.changed, done)
    if arguments.json:
        print_line(msgspec.json.encode({"matched": matched, "changed": changed, "next": None}).decode())
    elif matched == 0:
        print_line("No task fits.")
    else:
        print_line(f"{done} {changed:,} of the {counted(matched, 'task')} that fit.")
    return 0


def _count_takable(client: Client, arguments: Given, verb: Verb, wanted: Filter) -> tuple[int, bool]:
    """Count the tasks in a state in which the verb changes them. Return the count and whether that is all."""
    total, is_whole = 0, True
    for state in SHOWN_STATES:
        if state in _TAKEN_FROM[verb] and wanted.get("state", state) == state:
            found, is_all = bulk.count_some(_pages_of(client, arguments, {**wanted, "state": state.value}))
            total, is_whole = total + found, is_whole and is_all
    return total, is_whole


def _pages_of(client: Client, arguments: Given, wanted: Filter) -> Iterator[Page[Task]]:
    return pages(client, arguments, lambda _, limit, cursor: calls.list_tasks(wanted, limit=limit, cursor=cursor))
