"""`duetime schedules`: read, set and control schedules."""

import argparse
import time
from typing import Literal

import msgspec

from duetime.cli import arguments as words
from duetime.cli.actions import (
    Action,
    AddOptions,
    Command,
    Given,
    RunAction,
    Subparsers,
    list_pages,
    named,
    sentence,
    tell,
    tell_of,
    with_client,
)
from duetime.cli.connect import Refused, ask
from duetime.cli.output import (
    Progress,
    Table,
    counted,
    paint_state,
    print_line,
    print_note,
    print_raw,
    printable,
    whole_time,
)
from duetime.cli.schedules import options
from duetime.cli.schedules.show import (
    BACKFILL_COLUMNS,
    RUN_COLUMNS,
    SCHEDULE_COLUMNS,
    backfill_row,
    print_fires,
    print_schedule,
    run_row,
    schedule_row,
    share_done,
)
from duetime.errors import UsageError
from duetime.sdk.calls import schedules as calls
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.calls.schedules import SCHEDULES
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.schedules import Backfill, DeletedSchedule, Preview, Run, Schedule, Triggered

_STATES = ["active", "paused", "ended"]
_ORIGINS = ["api", "file", "code"]
_LOOK_SECONDS = 0.5
_FIRES = 10
_PUT_EXAMPLES = """\
examples:
  duetime schedules put nightly --cron '0 2 * * *' --timezone Europe/Berlin --type report --payload '{"day": 1}'
  duetime schedules put poll --every 15m --jitter 30s --type http --target https://example.com/hook
  duetime schedules put nightly --file nightly.yaml
"""


def add_parser(subparsers: Subparsers) -> None:
    # Their modules need this one's neighbours, and YAML.
    from duetime.cli.schedules.apply import APPLY
    from duetime.cli.schedules.importing import IMPORT

    Command(
        "schedules",
        "what fires when: look at it, set it, steer it, apply files of it",
        "Schedules: what fires when.",
        (*_LOOKING, *_SETTING, *_STEERING, *_BACKFILLS, APPLY, IMPORT),
    ).add_to(subparsers)


def _named(verb: str, meaning: str, run: RunAction, *options: AddOptions, is_paged: bool = False) -> Action:
    return Action(verb, meaning, run, (named(), *options), sentence(meaning), is_paged=is_paged)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("choose schedules by")
    group.add_argument("--state", choices=_STATES, metavar="STATE", help=", ".join(_STATES))
    group.add_argument("--origin", choices=_ORIGINS, metavar="ORIGIN", help=", ".join(_ORIGINS))
    group.add_argument("--source", metavar="NAME", help="the set of files or the program they belong to")
    group.add_argument("--prefix", metavar="TEXT", help="how their names begin")


def _add_preview_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME")
    options.add_spec_options(parser)
    parser.add_argument("-n", "--count", type=words.count, default=_FIRES, metavar="N", help=f"so many ({_FIRES})")
    parser.add_argument("--from", dest="from_", type=words.instant, metavar="TIME", help="from then on (now)")


def _add_put_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=words.name, metavar="NAME")
    options.add_definition_options(parser)
    parser.add_argument("--file", metavar="FILE", help='the definition as JSON, YAML or TOML; "-" is standard input')
    parser.add_argument("--version", type=int, metavar="N", help="replace only this version; 0: only create")
    parser.add_argument("--force", action="store_true", help="also one that belongs to a file or a program")


def _add_delete_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks",
        choices=["cancel", "keep"],
        metavar="cancel|keep",
        help="what becomes of its tasks that are not over yet",
    )
    parser.add_argument("--version", type=int, metavar="N", help="only if it is this version")


def _add_note(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--note", metavar="TEXT", help="why, for whoever looks at it")


def _add_as_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--as-of", type=words.instant, metavar="TIME", help="as if it were then")


def _add_backfill_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="from_", type=words.instant, required=True, metavar="TIME")
    parser.add_argument("--to", type=words.instant, required=True, metavar="TIME")
    parser.add_argument("--rate", type=words.rate, metavar="N", help="tasks a second (10)")
    parser.add_argument("--wait", action="store_true", help="show how far it is until it is done")


def _list(given: Given, limit: int, cursor: str | None) -> ApiCall[Page[Schedule]]:
    wanted = {name: getattr(given, name) for name in ("state", "origin", "source", "prefix")}
    return SCHEDULES.list(limit=limit, cursor=cursor, **wanted)


def _runs(given: Given, limit: int, cursor: str | None) -> ApiCall[Page[Run]]:
    return calls.schedule_runs(given.name, limit=limit, cursor=cursor)


def _show(client: Client, given: Given) -> int:
    body, schedule = ask(client, SCHEDULES.get(given.name))
    if given.json:
        print_raw(body)
    else:
        print_schedule(schedule, msgspec.json.decode(body, type=dict[str, object]))
    return 0


def _preview(given: Given) -> int:
    named = options.given_options(given)
    if given.name is None and not options.spec_of(given):
        raise UsageError("preview what? give the NAME of a schedule, or --cron, --every or --rrule")
    if given.name is not None and named:
        raise UsageError(f"{named[0]} is for a schedule that is not stored: leave it out, or leave out NAME")
    definition = {} if given.name is not None else options.timing_of(given)
    call = calls.preview_schedule(given.name, definition, count=given.count, from_=given.from_)
    return tell(lambda _: call, _say_preview)(given)


def _say_preview(preview: Preview) -> None:
    if preview.words:
        print_line(printable(preview.words))
    if preview.fires:
        print_fires(preview.fires)
    else:
        print_note("It does not fire any more.")


def _put(given: Given) -> int:
    body = options.definition_of(given)
    if given.version is not None:
        body["version"] = given.version
    if given.force:
        body["force"] = True
    return tell(lambda _: SCHEDULES.put(given.name, body), _say)(given)


def _steer(verb: Literal["pause", "resume"]) -> RunAction:
    return tell(lambda given: calls.steer_schedule(verb, given.name, given.note), _say)


def _say(schedule: Schedule) -> None:
    """What a schedule is after a change."""
    fires = schedule.next_fires or [] if schedule.state == "active" else []
    due = f", next fire {whole_time(fires[0].at)}" if fires else ""
    print_line(f"{printable(schedule.name)}  {paint_state(schedule.state)}, version {schedule.version}{due}")


def _say_deleted(deleted: DeletedSchedule, given: Given) -> None:
    said = f"; cancelled {counted(deleted.cancelled, 'task')} of it" if deleted.cancelled else ""
    print_line(f"Deleted schedule {printable(given.name)}{said}.")


def _say_triggered(made: Triggered, given: Given) -> None:
    when = f", as of {whole_time(made.fire_time)}" if given.as_of is not None else ""
    print_line(f"{made.task or '-'}  {printable(given.name)}{when}")


def _backfill(client: Client, given: Given) -> int:
    if given.from_ >= given.to:
        raise UsageError("--from must be before --to")
    body, backfill = ask(client, calls.backfill_schedule(given.name, given.from_, given.to, given.rate))
    if given.wait:
        body, backfill = _wait(client, given.name, backfill)
    if given.json:
        print_raw(body)
    elif given.wait:
        _say_made(backfill)
    else:
        print_line(f"Backfill {backfill.id}  {paint_state(backfill.state)}")
    return 0 if backfill.state != "cancelled" else 1


def _wait(client: Client, name: str, backfill: Backfill) -> tuple[bytes, Backfill]:
    """Read it until it is over. Ctrl-C leaves it running."""
    progress = Progress()
    try:
        while True:
            body, backfill = ask(client, calls.get_backfill(name, backfill.id))
            if backfill.state != "running":
                return body, backfill
            made = counted(backfill.created_count, "task")
            waits = f", waits: {printable(backfill.waits_for)}" if backfill.waits_for else ""
            progress.say(f"{share_done(backfill):.0%}, {made} made{waits}; Ctrl-C leaves it running")
            time.sleep(_LOOK_SECONDS)
    finally:
        progress.clear()


def _say_made(backfill: Backfill) -> None:
    said = counted(backfill.created_count, "task")
    print_line(f"Backfill {backfill.id}  {paint_state(backfill.state)}, {said} made.")


def _say_backfills(page: Page[Backfill], given: Given) -> None:
    if not page.items:
        print_note(f"Schedule {printable(given.name)} has no backfill.")
    else:
        Table(BACKFILL_COLUMNS).add([backfill_row(each) for each in page.items])


def _say_cancelled(backfill: Backfill) -> None:
    _say_made(backfill)
    if backfill.state == "done":
        raise Refused("it was done already")


_LOOKING = (
    Action(
        "list",
        "list schedules",
        list_pages(_list, SCHEDULE_COLUMNS, schedule_row, "schedule"),
        (_add_filters,),
        "List schedules.",
        is_paged=True,
    ),
    _named("show", "show a schedule with its next fires", with_client(_show)),
    _named(
        "runs",
        "list what a schedule fired, skipped and missed",
        list_pages(_runs, RUN_COLUMNS, run_row, "run"),
        is_paged=True,
    ),
    Action(
        "preview",
        "say when a schedule will fire, or one that is not stored yet",
        _preview,
        (_add_preview_options,),
        "Say when a schedule will fire: a stored one by its name, or what the options describe.",
    ),
)
_SETTING = (
    Action(
        "put",
        "create or replace a schedule",
        _put,
        (_add_put_options,),
        "Create or replace a schedule. What is not given has its default, also where it was set before.",
        epilog=_PUT_EXAMPLES,
    ),
    _named(
        "delete",
        "delete a schedule",
        tell_of(lambda given: calls.delete_schedule(given.name, given.tasks, given.version), _say_deleted),
        _add_delete_options,
    ),
)
_STEERING = (
    _named("pause", "let a schedule fire no more", _steer("pause"), _add_note),
    _named("resume", "let a paused schedule fire again", _steer("resume"), _add_note),
    _named(
        "trigger",
        "fire a schedule once, now",
        tell_of(lambda given: calls.trigger_schedule(given.name, given.as_of), _say_triggered),
        _add_as_of,
    ),
)
_BACKFILLS = (
    _named("backfill", "fire for every time that lies in a span", with_client(_backfill), _add_backfill_options),
    _named(
        "backfills",
        "list the backfills of a schedule",
        tell_of(lambda given: calls.list_backfills(given.name), _say_backfills),
    ),
    _named(
        "backfill-cancel",
        "stop a backfill where it is",
        tell(lambda given: calls.cancel_backfill(given.name, given.id), _say_cancelled),
        lambda parser: parser.add_argument("id", metavar="ID", help="as `duetime schedules backfills` lists it"),
    ),
)
