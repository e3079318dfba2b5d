"""`duetime queues`: which there are, whether they run, and their limits."""

import argparse

from duetime.cli import arguments as words
from duetime.cli.actions import Action, Command, Given, RunAction, Subparsers, delete, list_all, named, tell
from duetime.cli.flow.limits import add_limit_options, limit_words, read_limits
from duetime.cli.output import Column, print_line, print_note
from duetime.config import MAX_SILENCE_SECONDS, MIN_SILENCE_SECONDS
from duetime.errors import UsageError
from duetime.sdk.calls.administration import QUEUES
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.shapes.flow import Limits, Queue


def add_parser(subparsers: Subparsers) -> None:
    name = named("the queue's name")
    Command(
        "queues",
        "queues: pause, resume, limit",
        "Queues: which there are, whether they run, and their limits.",
        (
            Action(
                "list",
                "list the queues",
                list_all(lambda _, limit, cursor: QUEUES.list(limit=limit, cursor=cursor), _COLUMNS, _row),
            ),
            Action("show", "show a queue", tell(lambda given: QUEUES.get(given.name), _say), (name,)),
            Action(
                "put",
                "set all limits of a queue, or how long its workers may be silent",
                tell(_put, _say),
                (add_limit_options, _add_put_options, name),
            ),
            Action("pause", "let nothing of a queue start; nothing is lost", _steer("paused"), (name,)),
            Action("resume", "let a paused queue go on", _steer("active"), (name,)),
            Action(
                "delete",
                "forget a queue's state and limits, not its tasks",
                delete(lambda given: QUEUES.delete(given.name), "Forgot the state and limits of queue {}."),
                (name,),
            ),
        ),
    ).add_to(subparsers)


_COLUMNS = tuple(
    Column(name) for name in ("NAME", "STATE", "MAX RUNNING", "RATE", "BURST", "MAX SILENCE", "KINDS", "CLASSES")
)


def _add_put_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-silence",
        type=_silence,
        metavar="DURATION",
        help="how long its workers may be silent before they count as dead, 6s to 10m; or default",
    )
    parser.add_argument("--unlimited", action="store_true", help="lift all limits; a paused queue stays paused")


def _silence(text: str) -> float:
    """Seconds; 0 stands for the default."""
    if text == "default":
        return 0.0
    seconds = words.duration(text)
    if not MIN_SILENCE_SECONDS <= seconds <= MAX_SILENCE_SECONDS:
        raise argparse.ArgumentTypeError(f"'{text}' is not between 6s and 10m; 'default' takes it back")
    return seconds


def _put(given: Given) -> ApiCall[Queue]:
    limits = read_limits(given)
    is_empty = limits == Limits()
    fields: dict[str, object] = {}
    if given.max_silence is not None:
        fields["max_silence"] = given.max_silence or None
    if is_empty != given.unlimited and not (is_empty and fields):
        raise UsageError("give --max-running, --rate, or both; --unlimited to lift all limits; or --max-silence")
    if not is_empty or given.unlimited:
        fields["limits"] = limits
    return QUEUES.put(given.name, fields)


def _steer(state: str) -> RunAction:
    return tell(lambda given: QUEUES.put(given.name, {"state": state}), _say)


def _row(queue: Queue) -> tuple[str, ...]:
    return (
        queue.name,
        queue.state,
        *limit_words(queue.limits),
        "-" if queue.max_silence is None else words.spoken(queue.max_silence),
        ",".join(queue.kinds),
        ",".join(queue.classes),
    )


def _say(queue: Queue) -> None:
    running, rate, burst = limit_words(queue.limits)
    silence = "" if queue.max_silence is None else f", max silence {words.spoken(queue.max_silence)}"
    print_line(f"Queue {queue.name}: {queue.state}, max running {running}, rate {rate}, burst {burst}{silence}.")
    for note in queue.notes:
        print_note(note)
