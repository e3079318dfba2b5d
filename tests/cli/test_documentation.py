"""docs/cli.md knows every command and option that is about tasks, and --help tells of each."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime.cli.main import COMMANDS, make_parser

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
DESCRIBED = [
    "submit",
    "tasks",
    "dead",
    "outbox",
    "schedules",
    "calendars",
    "keys",
    "queues",
    "limits",
    "breakers",
    "cluster",
    "migrate",
    "doctor",
    "bench",
]


def parsers_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers_of(each)


def parser_of(command: str) -> argparse.ArgumentParser:
    (top,) = [each for each in make_parser(command)._actions if isinstance(each, argparse._SubParsersAction)]
    found: argparse.ArgumentParser = top.choices[command]
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_described(command: str) -> None:
    assert re.search(rf"\| `duetime {command}[ `]", PAGE)


@pytest.mark.parametrize("command", DESCRIBED)
def test_every_option_is_described(command: str) -> None:
    options = {
        option
        for parser in parsers_of(parser_of(command))
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }

    assert {option for option in options if not re.search(rf"{option}(?![\w-])", PAGE)} == set()


@pytest.mark.parametrize("command", DESCRIBED)
def test_help_can_be_shown_for_every_action(command: str) -> None:
    for parser in parsers_of(parser_of(command)):
        assert parser.format_help().startswith("usage: ")
