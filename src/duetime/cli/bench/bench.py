"""`duetime bench`: measure an installation the way a user's program uses it, and say what limits it.

It talks to the server over HTTP and with the SDK, like every other program, in a
separate queue; see `bench_phases` for the load and `bench_limits` for the sentences.
"""

import argparse
import asyncio
import signal

import msgspec

from duetime.cli import arguments as words
from duetime.cli.bench.limits import Limit, Setting, judge
from duetime.cli.bench.machine import Cpu
from duetime.cli.bench.phases import Bench, Phase
from duetime.cli.bench.worker import loop_factory
from duetime.cli.connect import add_connection_options, add_json_option, complaint, find_server
from duetime.cli.output import Column, Progress, Table, counted, paint, print_line, print_note
from duetime.errors import UsageError
from duetime.sdk.errors import Forbidden, SdkError

DEFAULT_SECONDS = 60.0
MOST_SECONDS = 3600.0
MOST_WORKERS = 64
_TITLES = {
    "round_trip": "round trip of an empty request",
    "one_by_one": "submit one by one",
    "twenty_at_a_time": "submit 20 at a time",
    "bulk": "submit in bulk",
    "drain": "drain a backlog",
    "sustained": "sustained, submit and run",
    "start_after_submit": "start after submission",
    "start_after_run_at": "start after run_at",
}
_NOTES = """\
It uses a queue of its own (duetime-bench-…), so its workers get none of your tasks, and yours none of its own unless
they take from all queues; but it is load: up to some hundred thousand small tasks. What has not run at the end is
cancelled; what has run stays in the history until its retention is over. The key must be allowed to submit and to work.

Exit code: 0 measured, 1 the server refused or did not answer, 2 wrong usage or a key that may not, 130 Ctrl-C.
"""


class Report(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    url: str
    queue: str
    workers: int
    seconds: float
    cores: int
    is_local: bool
    phases: list[Phase]
    limits: list[Limit]
    #: Tasks that had not run at the end.
    cancelled: int


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure an installation, and say what limits it",
        description="Measure an installation in about a minute, and say what limits it.",
        epilog=_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--seconds", type=words.duration, default=DEFAULT_SECONDS, metavar="TIME", help="how long in all, about (60)"
    )
    parser.add_argument("--workers", type=words.count, default=2, metavar="N", help="worker processes to start (2)")
    add_json_option(parser, "one JSON object: phases, limits, and where it was measured")
    add_connection_options(parser, has_tenant=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds: give 1 to {MOST_SECONDS:,.0f}; a minute is enough")
    if arguments.workers > MOST_WORKERS:
        raise UsageError(f"--workers: at most {MOST_WORKERS} can be started here")
    url, key = find_server(arguments)
    progress = Progress()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            report = runner.run(_measure(arguments, url, key, progress))
    except Forbidden as error:
        raise UsageError(
            f"this key may not do what is measured ({error.detail}): give one that may submit and work, such as an "
            "admin key"
        ) from error
    except SdkError as error:
        raise complaint(error, url) from error
    except asyncio.CancelledError:
        # Only a SIGTERM cancels it; Ctrl-C is a KeyboardInterrupt.
        return 128 + signal.SIGTERM
    finally:
        progress.clear()
    _show(report, arguments.json)
    return 0


async def _measure(arguments: argparse.Namespace, url: str, key: str, progress: Progress) -> Report:
    loop, this_task = asyncio.get_running_loop(), asyncio.current_task()
    assert this_task is not None
    bench = Bench(url, key, workers=arguments.workers, seconds=arguments.seconds, say=progress.say)
    began_at = loop.time()
    # A SIGTERM leaves nothing behind either.
    loop.add_signal_handler(signal.SIGTERM, this_task.cancel)
    try:
        await bench.run()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    setting = Setting(bench.machine.cores, arguments.workers, bench.machine.is_local)
    return Report(
        url=url,
        queue=bench.queue,
        workers=arguments.workers,
        seconds=loop.time() - began_at,
        cores=bench.machine.cores,
        is_local=bench.machine.is_local,
        phases=bench.phases,
        limits=judge(bench.phases, setting),
        cancelled=bench.cancelled,
    )


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        print_line(msgspec.json.encode(report).decode())
        return
    table = Table([Column("MEASURED"), Column("A SECOND"), Column("P50"), Column("P99"), Column("CORES IN USE")])
    table.add([_row(phase) for phase in report.phases])
    print_line()
    print_line(paint("What limits it", "bold"))
    for title, sentence in _grouped(report.limits):
        print_line(f"  {title}: {sentence}")
    if report.cancelled:
        print_note(f"{counted(report.cancelled, 'task')} had not run and were cancelled.")


def _row(phase: Phase) -> list[str]:
    return [
        _TITLES[phase.name],
        "-" if phase.rate is None else f"{phase.rate:,.0f}",
        "-" if phase.p50_ms is None else f"{phase.p50_ms:,.1f} ms",
        "-" if phase.p99_ms is None else f"{phase.p99_ms:,.1f} ms",
        _cores(phase.cpu),
    ]


def _cores(cpu: Cpu) -> str:
    parts = [
        ("this program", cpu.bench),
        ("workers", cpu.workers),
        ("node", cpu.node),
        ("PostgreSQL", cpu.postgres),
        ("machine", cpu.machine),
        ("taken by the host", cpu.stolen),
    ]
    return ", ".join(f"{name} {spent:.2f}" for name, spent in parts if spent is not None and spent >= 0.005)


def _grouped(limits: list[Limit]) -> list[tuple[str, str]]:
    """Group the kinds of use for which the same sentence holds."""
    titles: dict[str, list[str]] = {}
    for limit in limits:
        titles.setdefault(limit.sentence, []).append(_TITLES[limit.of])
    return [(", ".join(of), sentence) for sentence, of in titles.items()]
