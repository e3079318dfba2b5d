"""`duetime calendars`: named sets of dates that schedules leave out."""

import argparse

import msgspec

from duetime.cli import arguments as words
from duetime.cli import schedule_calls as calls
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import Column, Table, counted, paint, print_line, print_note, print_raw, printable
from duetime.cli.paging import fetch_all
from duetime.cli.schedule_fields import WrongField, canonical_dates
from duetime.cli.schedule_files import read_calendar
from duetime.cli.schedule_options import read_named
from duetime.cli.schedule_show import entry_words
from duetime.errors import UsageError
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call

_COLUMNS = (Column("NAME", shrinks=True), Column("ENTRIES"), Column("FIRST ONES", shrinks=True))
_SHOWN = 4


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    calendars = subparsers.add_parser(
        "calendars",
        help="named sets of dates that schedules leave out",
        description='Calendars: named sets of dates that schedules leave out by {"calendar": NAME}.',
        allow_abbrev=False,
    )
    calendars.set_defaults(run=lambda _: _show_help(calendars))
    actions = calendars.add_subparsers(metavar="ACTION", parser_class=type(calendars))

    listing = actions.add_parser("list", help="list them", description="List calendars.", allow_abbrev=False)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    show = actions.add_parser("show", help="show what is in one", allow_abbrev=False)
    show.set_defaults(run=lambda given: talk(given, lambda client: _show(client, given)))

    put = actions.add_parser("put", help="create or replace one", allow_abbrev=False)
    put.add_argument("--date", action="append", metavar="DAY", help="2030-12-24, or from..to; may be repeated")
    put.add_argument("--file", metavar="FILE", help='the entries as JSON, YAML or TOML; "-" is standard input')
    put.set_defaults(run=_put)

    delete = actions.add_parser("delete", help="delete one that no schedule uses", allow_abbrev=False)
    delete.set_defaults(run=lambda given: talk(given, lambda client: _delete(client, given)))

    for parser in (listing, show, put, delete):
        if parser is not listing:
            parser.add_argument("name", type=words.name, metavar="NAME")
        add_json_option(parser)
        add_connection_options(parser)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _list(client: Client, arguments: argparse.Namespace) -> int:
    body = fetch_all(client, "/v1/calendars")
    if arguments.json:
        print_raw(body)
        return 0
    found = msgspec.json.decode(body, type=calls.Calendars).items
    if not found:
        print_note("There is no calendar.")
        return 0
    Table(_COLUMNS).add([_row(each) for each in found])
    return 0


def _row(calendar: calls.Calendar) -> tuple[str, str, str]:
    more = ", …" if len(calendar.dates) > _SHOWN else ""
    return calendar.name, f"{len(calendar.dates):,}", entry_words(calendar.dates[:_SHOWN]) + more


def _show(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(calls.ask(calls.calendar_path(arguments.name)))
    if arguments.json:
        print_raw(body)
        return 0
    calendar = msgspec.json.decode(body, type=calls.Calendar)
    heading = f"Calendar {printable(calendar.name or arguments.name)}"
    print_line(f"{paint(heading, 'bold')}  {_entries(len(calendar.dates))}")
    for entry in calendar.dates:
        print_line(f"  {printable(entry_words([entry]))}")
    return 0


def _put(arguments: argparse.Namespace) -> int:
    if (arguments.file is None) == (not arguments.date):
        raise UsageError("say what is in it: --date, as often as needed, or --file; one of the two")
    dates = read_calendar(*read_named(arguments.file)) if arguments.file is not None else _dates(arguments.date)
    return talk(arguments, lambda client: _send(client, arguments, dates))


def _dates(given: list[str]) -> list[object]:
    dates: list[object] = []
    for text in given:
        start, dots, end = text.partition("..")
        dates.append({"from": start, "to": end} if dots else text)
    try:
        canonical_dates(dates)
    except WrongField as wrong:
        place = wrong.path[1] if len(wrong.path) > 1 else 0
        raise UsageError(
            f"--date: '{given[place] if isinstance(place, int) else given[0]}' is not a day such as 2030-12-24, "
            "nor two of them as 2030-12-24..2030-12-31"
        ) from wrong
    return dates


def _send(client: Client, arguments: argparse.Namespace, dates: list[object]) -> int:
    body = client.send(calls.put(calls.calendar_path(arguments.name), {"dates": dates}))
    if arguments.json:
        print_raw(body)
    else:
        print_line(f"Calendar {printable(arguments.name)} has {_entries(len(dates))}.")
    return 0


def _delete(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(Call("DELETE", calls.calendar_path(arguments.name), bytes))
    if arguments.json:
        print_raw(body)
    else:
        print_line(f"Deleted calendar {printable(arguments.name)}.")
    return 0


def _entries(number: int) -> str:
    return counted(number, "entry").replace("entrys", "entries")
