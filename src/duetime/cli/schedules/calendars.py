"""`duetime calendars`: named sets of dates that schedules exclude."""

import argparse

from duetime.cli.actions import Action, Command, Given, Subparsers, list_all, named, tell, tell_of
from duetime.cli.output import Column, counted, paint, print_line, printable
from duetime.cli.schedules.fields import WrongField, canonical_dates
from duetime.cli.schedules.files import read_calendar
from duetime.cli.schedules.options import read_named
from duetime.cli.schedules.show import entry_words
from duetime.errors import UsageError
from duetime.sdk.calls.schedules import CALENDARS, put_calendar
from duetime.sdk.shapes.schedules import Calendar


def add_parser(subparsers: Subparsers) -> None:
    name = named()
    Command(
        "calendars",
        "named sets of dates that schedules leave out",
        'Calendars: named sets of dates that schedules leave out by {"calendar": NAME}.',
        (
            Action(
                "list",
                "list them",
                list_all(
                    lambda _, limit, cursor: CALENDARS.list(limit=limit, cursor=cursor),
                    _COLUMNS,
                    _row,
                    empty="There is no calendar.",
                    is_object=True,
                ),
                description="List calendars.",
            ),
            Action("show", "show what is in one", tell(lambda given: CALENDARS.get(given.name), _say), (name,)),
            Action("put", "create or replace one", _put, (_add_put_options, name)),
            Action(
                "delete",
                "delete one that no schedule uses",
                tell_of(
                    lambda given: CALENDARS.delete(given.name),
                    lambda _, given: print_line(f"Deleted calendar {printable(given.name)}."),
                ),
                (name,),
            ),
        ),
    ).add_to(subparsers)


_COLUMNS = (Column("NAME", shrinks=True), Column("ENTRIES"), Column("FIRST ONES", shrinks=True))
_SHOWN = 4


def _add_put_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--date", action="append", metavar="DAY", help="2030-12-24, or from..to; may be repeated")
    parser.add_argument("--file", metavar="FILE", help='the entries as JSON, YAML or TOML; "-" is standard input')


def _row(calendar: Calendar) -> tuple[str, str, str]:
    more = ", …" if len(calendar.dates) > _SHOWN else ""
    return calendar.name, f"{len(calendar.dates):,}", entry_words(calendar.dates[:_SHOWN]) + more


def _say(calendar: Calendar) -> None:
    heading = f"Calendar {printable(calendar.name)}"
    print_line(f"{paint(heading, 'bold')}  {_entries(len(calendar.dates))}")
    for entry in calendar.dates:
        print_line(f"  {printable(entry_words([entry]))}")


def _put(given: Given) -> int:
    if (given.file is None) == (not given.date):
        raise UsageError("say what is in it: --date, as often as needed, or --file; one of the two")
    dates = read_calendar(*read_named(given.file)) if given.file is not None else _dates(given.date)
    said = f"Calendar {printable(given.name)} has {_entries(len(dates))}."
    return tell(lambda _: put_calendar(given.name, dates), lambda _: print_line(said))(given)


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


def _entries(number: int) -> str:
    return counted(number, "entry").replace("entrys", "entries")
