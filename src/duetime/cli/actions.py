"""Commands as tables: the actions of a noun, their arguments and requests, and how their answers are shown.

An action names its API call and how to show the answer.  What all actions share
(help, the server and the key, --json, lists of many pages) is done here, once.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec

from duetime.cli.arguments import name as right_name
from duetime.cli.connect import JSON_MEANING, add_connection_options, add_json_option, ask, talk
from duetime.cli.output import Column, Table, print_line, print_note, print_raw
from duetime.cli.paging import ListCall, add_page_options, pages, print_list, raw_pages
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes.answers import Page

T = TypeVar("T")

Given = argparse.Namespace
RunAction = Callable[[Given], int]
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
AddOptions = Callable[[argparse.ArgumentParser], object]


@dataclass(frozen=True)
class Action:
    """One verb of a noun, or a command without a noun."""

    name: str
    help: str
    run: RunAction
    options: Sequence[AddOptions] = ()
    description: str | None = None
    json_meaning: str = JSON_MEANING
    #: A list with many pages. It reads as many pages as the user wants.
    is_paged: bool = False
    #: False: the action defines --json, --url and so on itself or does not have them.
    is_remote: bool = True
    has_tenant: bool = True
    epilog: str | None = None

    def add_to(self, subparsers: Subparsers) -> None:
        formatter = argparse.HelpFormatter if self.epilog is None else argparse.RawDescriptionHelpFormatter
        parser = subparsers.add_parser(
            self.name,
            help=self.help,
            description=self.description,
            epilog=self.epilog,
            formatter_class=formatter,
            allow_abbrev=False,
        )
        for add in self.options:
            add(parser)
        if self.is_paged:
            add_page_options(parser)
        elif self.is_remote:
            add_json_option(parser, self.json_meaning)
            add_connection_options(parser, has_tenant=self.has_tenant)
        parser.set_defaults(run=self.run)


@dataclass(frozen=True)
class Command:
    """A noun with its actions. Without an action it shows its help."""

    name: str
    help: str
    description: str
    actions: "Sequence[Action | Command]"
    metavar: str = "ACTION"

    def add_to(self, subparsers: Subparsers) -> None:
        parser = subparsers.add_parser(self.name, help=self.help, description=self.description, allow_abbrev=False)
        parser.set_defaults(run=lambda _: _show_help(parser))
        actions = parser.add_subparsers(metavar=self.metavar, parser_class=type(parser))
        for action in self.actions:
            action.add_to(actions)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def sentence(meaning: str) -> str:
    """Make a description of a help text."""
    return meaning[0].upper() + meaning[1:] + "."


def named(meaning: str | None = None, metavar: str = "NAME") -> AddOptions:
    """Return the name of the affected thing."""
    return lambda parser: parser.add_argument("name", type=right_name, metavar=metavar, help=meaning)


def with_client(action: Callable[[Client, Given], int]) -> RunAction:
    return lambda given: talk(given, lambda client: action(client, given))


def tell(call: Callable[[Given], ApiCall[T]], say: Callable[[T], object]) -> RunAction:
    """Send one call and show its answer; with --json the answer as it was sent."""
    return tell_of(call, lambda found, _: say(found))


def tell_of(call: Callable[[Given], ApiCall[T]], say: Callable[[T, Given], object]) -> RunAction:
    """Do the same if the output depends on the arguments too."""

    def run(client: Client, given: Given) -> int:
        body, found = ask(client, call(given))
        if given.json:
            print_raw(body)
        else:
            say(found, given)
        return 0

    return with_client(run)


def delete(call: Callable[[Given], ApiCall[None]], done: str) -> RunAction:
    """Delete the named thing. `done` is the output, with the name at its {}."""

    def run(client: Client, given: Given) -> int:
        client.send(call(given))
        print_line(msgspec.json.encode({"deleted": given.name}).decode() if given.json else done.format(given.name))
        return 0

    return with_client(run)


def list_all(
    call: ListCall[T],
    columns: Sequence[Column],
    row: Callable[[T], Sequence[str]],
    *,
    empty: str = "",
    is_object: bool = False,
    most: Callable[[Given], int | None] = lambda _: None,
) -> RunAction:
    """Show a short list as a whole; as JSON one line for each item, or one object with all of them."""

    def run(client: Client, given: Given) -> int:
        if given.json:
            raw = (item for page in raw_pages(client, given, call, most(given)) for item in page.items)
            if is_object:
                print_raw(msgspec.json.encode(Page(items=list(raw))))
            else:
                for item in raw:
                    print_raw(bytes(item))
            return 0
        found = [item for page in pages(client, given, call, most(given)) for item in page.items]
        if empty and not found:
            print_note(empty)
        else:
            Table(columns).add([row(item) for item in found])
        return 0

    return with_client(run)


def list_pages(call: ListCall[T], columns: Sequence[Column], row: Callable[[T], Sequence[str]], noun: str) -> RunAction:
    """Show a list that may be long: as many pages as the user asks for."""
    return with_client(lambda client, given: print_list(client, given, call, Table(columns), row, noun))
