"""`duetime schedules`: what fires when; look at it, set it, steer it."""

import argparse
import time
from collections.abc import Callable
from typing import cast

import msgspec

from duetime.cli import arguments as words
from duetime.cli import schedule_calls as calls
from duetime.cli import schedule_options as options
from duetime.cli.connect import Refused, add_connection_options, add_json_option, fetch, talk
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
from duetime.cli.paging import Paged, add_page_options, print_list
from duetime.cli.schedule_calls import Backfill, Run, Schedule
from duetime.cli.schedule_show import (
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
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call

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

Action = Callable[[Client, argparse.Namespace], int]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from duetime.cli import schedule_apply, schedule_import

    schedules = subparsers.add_parser(
        "schedules",
        help="what fires when: look at it, set it, steer it, apply files of it",
        description="Schedules: what fires when.",
        allow_abbrev=False,
    )
    schedules.set_defaults(run=lambda _: show_help(schedules))
    actions = schedules.add_subparsers(metavar="ACTION", parser_class=type(schedules))
    _add_looking(actions)
    _add_setting(actions)
    _add_steering(actions)
    _add_backfills(actions)
    schedule_apply.add_parser(actions)
    schedule_import.add_parser(actions)


def _add_looking(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    listing = actions.add_parser("list", help="list schedules", description="List schedules.", allow_abbrev=False)
    group = listing.add_argument_group("choose schedules by")
    group.add_argument("--state", choices=_STATES, metavar="STATE", help=", ".join(_STATES))
    group.add_argument("--origin", choices=_ORIGINS, metavar="ORIGIN", help=", ".join(_ORIGINS))
    group.add_argument("--source", metavar="NAME", help="the set of files or the program they belong to")
    group.add_argument("--prefix", metavar="TEXT", help="how their names begin")
    add_page_options(listing)
    _runs_with(listing, _list)

    _runs_with(_named(actions, "show", "show a schedule with its next fires"), _show)

    runs = _named(actions, "runs", "list what a schedule fired, skipped and missed", is_paged=True)
    _runs_with(runs, _runs)

    preview = actions.add_parser(
        "preview",
        help="say when a schedule will fire, or one that is not stored yet",
        description="Say when a schedule will fire: a stored one by its name, or what the options describe.",
        allow_abbrev=False,
    )
    preview.add_argument("name", nargs="?", metavar="NAME")
    options.add_spec_options(preview)
    preview.add_argument("-n", "--count", type=words.count, default=_FIRES, metavar="N", help=f"so many ({_FIRES})")
    preview.add_argument("--from", dest="from_", type=words.instant, metavar="TIME", help="from then on (now)")
    _finish(preview)
    preview.set_defaults(run=_preview)


def _add_setting(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    put = actions.add_parser(
        "put",
        help="create or replace a schedule",
        description="Create or replace a schedule. What is not given has its default, also where it was set before.",
        epilog=_PUT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    put.add_argument("name", type=words.name, metavar="NAME")
    options.add_definition_options(put)
    put.add_argument("--file", metavar="FILE", help='the definition as JSON, YAML or TOML; "-" is standard input')
    put.add_argument("--version", type=int, metavar="N", help="replace only this version; 0: only create")
    put.add_argument("--force", action="store_true", help="also one that belongs to a file or a program")
    _finish(put)
    put.set_defaults(run=_put)

    delete = _named(actions, "delete", "delete a schedule")
    delete.add_argument(
        "--tasks",
        choices=["cancel", "keep"],
        metavar="cancel|keep",
        help="what becomes of its tasks that are not over yet",
    )
    delete.add_argument("--version", type=int, metavar="N", help="only if it is this version")
    _runs_with(delete, _delete)


def _add_steering(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for verb, meaning in (("pause", "let a schedule fire no more"), ("resume", "let a paused schedule fire again")):
        parser = _named(actions, verb, meaning)
        parser.add_argument("--note", metavar="TEXT", help="why, for whoever looks at it")
        parser.set_defaults(verb=verb)
        _runs_with(parser, _steer)

    trigger = _named(actions, "trigger", "fire a schedule once, now")
    trigger.add_argument("--as-of", type=words.instant, metavar="TIME", help="as if it were then")
    _runs_with(trigger, _trigger)


def _add_backfills(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    backfill = _named(actions, "backfill", "fire for every time that lies in a span")
    backfill.add_argument("--from", dest="from_", type=words.instant, required=True, metavar="TIME")
    backfill.add_argument("--to", type=words.instant, required=True, metavar="TIME")
    backfill.add_argument("--rate", type=words.rate, metavar="N", help="tasks a second (10)")
    backfill.add_argument("--wait", action="store_true", help="show how far it is until it is done")
    _runs_with(backfill, _backfill)

    _runs_with(_named(actions, "backfills", "list the backfills of a schedule"), _backfills)

    cancel = _named(actions, "backfill-cancel", "stop a backfill where it is")
    cancel.add_argument("id", metavar="ID", help="as `duetime schedules backfills` lists it")
    _runs_with(cancel, _cancel_backfill)


def _named(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", verb: str, meaning: str, *, is_paged: bool = False
) -> argparse.ArgumentParser:
    sentence = meaning[0].upper() + meaning[1:] + "."
    parser = actions.add_parser(verb, help=meaning, description=sentence, allow_abbrev=False)
    parser.add_argument("name", type=words.name, metavar="NAME")
    if is_paged:
        add_page_options(parser)
    else:
        _finish(parser)
    return parser


def _finish(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    add_connection_options(parser)


def _runs_with(parser: argparse.ArgumentParser, action: Action) -> None:
    parser.set_defaults(run=lambda given: talk(given, lambda client: action(client, given)))


def show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _list(client: Client, arguments: argparse.Namespace) -> int:
    wanted = {name: getattr(arguments, name) for name in ("state", "origin", "source", "prefix")}

    def page(limit: int | None, cursor: str | None) -> Call[Paged[Schedule]]:
        return cast(Call[Paged[Schedule]], calls.list_schedules(wanted, limit, cursor))

    return print_list(client, arguments, page, Table(SCHEDULE_COLUMNS), schedule_row, "schedule")


def _show(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(calls.ask(calls.schedule_path(arguments.name)))
    if arguments.json:
        print_raw(body)
    else:
        print_schedule(msgspec.json.decode(body, type=Schedule), msgspec.json.decode(body, type=dict[str, object]))
    return 0


def _runs(client: Client, arguments: argparse.Namespace) -> int:
    def page(limit: int | None, cursor: str | None) -> Call[Paged[Run]]:
        return cast(Call[Paged[Run]], calls.list_runs(arguments.name, limit, cursor))

    return print_list(client, arguments, page, Table(RUN_COLUMNS), run_row, "run")


def _preview(arguments: argparse.Namespace) -> int:
    given = options.given_options(arguments)
    if arguments.name is None and not options.spec_of(arguments):
        raise UsageError("preview what? give the NAME of a schedule, or --cron, --every or --rrule")
    if arguments.name is not None and given:
        raise UsageError(f"{given[0]} is for a schedule that is not stored: leave it out, or leave out NAME")
    span = {"from": arguments.from_, "count": arguments.count}
    if arguments.name is not None:
        call = calls.ask(calls.schedule_path(arguments.name, "preview"), span)
    else:
        call = calls.post("/v1/schedules/preview", {**options.timing_of(arguments), **span})
    return talk(arguments, lambda client: _print_preview(client, arguments, call))


def _print_preview(client: Client, arguments: argparse.Namespace, call: Call[bytes]) -> int:
    body = client.send(call)
    if arguments.json:
        print_raw(body)
        return 0
    preview = msgspec.json.decode(body, type=calls.Preview)
    if preview.words:
        print_line(printable(preview.words))
    if preview.fires:
        print_fires(preview.fires)
    else:
        print_note("It does not fire any more.")
    return 0


def _put(arguments: argparse.Namespace) -> int:
    body = options.definition_of(arguments)
    if arguments.version is not None:
        body["version"] = arguments.version
    if arguments.force:
        body["force"] = True
    return talk(
        arguments, lambda client: _send(client, arguments, calls.put(calls.schedule_path(arguments.name), body))
    )


def _steer(client: Client, arguments: argparse.Namespace) -> int:
    path = calls.schedule_path(arguments.name, arguments.verb)
    return _send(client, arguments, calls.post(path, {"note": arguments.note}))


def _send(client: Client, arguments: argparse.Namespace, call: Call[bytes]) -> int:
    """A change that is answered with the schedule: say what it is now."""
    body = client.send(call)
    if arguments.json:
        print_raw(body)
        return 0
    schedule = msgspec.json.decode(body, type=Schedule)
    fires = schedule.next_fires if schedule.state == "active" else []
    due = f", next fire {whole_time(fires[0].at)}" if fires else ""
    print_line(f"{printable(schedule.name)}  {paint_state(schedule.state)}, version {schedule.version}{due}")
    return 0


def _delete(client: Client, arguments: argparse.Namespace) -> int:
    fields = {"tasks": arguments.tasks, "version": arguments.version}
    path = calls.ask(calls.schedule_path(arguments.name), fields).path
    body = client.send(Call("DELETE", path, bytes))
    if arguments.json:
        print_raw(body)
        return 0
    cancelled = msgspec.json.decode(body, type=calls.Deleted).cancelled
    said = f"; cancelled {counted(cancelled, 'task')} of it" if cancelled else ""
    print_line(f"Deleted schedule {printable(arguments.name)}{said}.")
    return 0


def _trigger(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(calls.post(calls.schedule_path(arguments.name, "trigger"), {"as_of": arguments.as_of}))
    if arguments.json:
        print_raw(body)
        return 0
    made = msgspec.json.decode(body, type=calls.Triggered)
    when = f", as of {whole_time(made.fire_time)}" if arguments.as_of is not None else ""
    print_line(f"{made.task or '-'}  {printable(arguments.name)}{when}")
    return 0


def _backfill(client: Client, arguments: argparse.Namespace) -> int:
    if arguments.from_ >= arguments.to:
        raise UsageError("--from must be before --to")
    fields = {"from": arguments.from_, "to": arguments.to, "rate": arguments.rate}
    body = client.send(calls.post(calls.schedule_path(arguments.name, "backfill"), fields))
    backfill = msgspec.json.decode(body, type=Backfill)
    if arguments.wait:
        body, backfill = _wait(client, arguments.name, backfill)
    if arguments.json:
        print_raw(body)
    elif arguments.wait:
        said = counted(backfill.created_count, "task")
        print_line(f"Backfill {backfill.id}  {paint_state(backfill.state)}, {said} made.")
    else:
        print_line(f"Backfill {backfill.id}  {paint_state(backfill.state)}")
    return 0 if backfill.state != "cancelled" else 1


def _wait(client: Client, name: str, backfill: Backfill) -> tuple[bytes, Backfill]:
    """Look until it is over; Ctrl-C leaves it running."""
    progress = Progress()
    path = calls.schedule_path(name, "backfills", backfill.id)
    try:
        while True:
            body = fetch(client, calls.ask(path))
            backfill = msgspec.json.decode(body, type=Backfill)
            if backfill.state != "running":
                return body, backfill
            made = counted(backfill.created_count, "task")
            waits = f", waits: {printable(backfill.waits_for)}" if backfill.waits_for else ""
            progress.say(f"{share_done(backfill):.0%}, {made} made{waits}; Ctrl-C leaves it running")
            time.sleep(_LOOK_SECONDS)
    finally:
        progress.clear()


def _backfills(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(calls.ask(calls.schedule_path(arguments.name, "backfills")))
    if arguments.json:
        print_raw(body)
        return 0
    found = msgspec.json.decode(body, type=calls.Backfills).items
    if not found:
        print_note(f"Schedule {printable(arguments.name)} has no backfill.")
        return 0
    Table(BACKFILL_COLUMNS).add([backfill_row(each) for each in found])
    return 0


def _cancel_backfill(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(calls.post(calls.schedule_path(arguments.name, "backfills", arguments.id, "cancel")))
    if arguments.json:
        print_raw(body)
        return 0
    backfill = msgspec.json.decode(body, type=Backfill)
    print_line(
        f"Backfill {backfill.id}  {paint_state(backfill.state)}, {counted(backfill.created_count, 'task')} made."
    )
    if backfill.state == "done":
        raise Refused("it was done already")
    return 0
