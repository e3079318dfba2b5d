"""Measure duetime and its peers on this machine: `python -m bench [SCENARIO …]`.

Without names it runs every scenario with every peer and then writes
docs/benchmarks.md anew.  It starts its own servers, installs the peers into
.bench/peers, leaves its results in .bench/results, and stops by itself.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from bench.peers import PEERS
from bench.plan import say, tell_run
from bench.results import Results, Run
from bench.scenarios import SCENARIOS
from bench.scenarios.contract import Options
from bench.session import ROOT, WORKPLACE, Session

T = TypeVar("T")


class UsageError(Exception):
    """Prints one sentence and exits with code 2."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}; see python -m bench --help")


def main(words: Sequence[str]) -> int:
    try:
        arguments = make_parser().parse_intermixed_args(words)
        scenarios = choose(arguments.scenarios, SCENARIOS, "scenario")
        # Everything is compared within one run, so duetime is always part of it.
        peers = choose(["duetime", *arguments.peers.split(",")] if arguments.peers else [], PEERS, "peer")
    except UsageError as error:
        say(f"bench: {error}")
        return 2
    if arguments.list:
        show_list()
        return 0
    options = Options(arguments.runs, arguments.quick, arguments.tasks)
    session = Session(scenarios, peers, options, list(words), arguments.output)
    try:
        results = asyncio.run(session.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("bench: stopped")
        return 130
    show_table(results)
    if not results.is_complete:
        say("bench: not everything went well, so docs/benchmarks.md stays as it was")
        return 1
    is_whole = not (arguments.scenarios or arguments.peers or arguments.quick or arguments.tasks)
    if is_whole and not arguments.no_report:
        from bench import report

        report.write(results, ROOT / "docs")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)} (all)")
    parser.add_argument("--peers", metavar="NAMES", help="beside duetime, separated by commas (all)")
    parser.add_argument("--runs", type=count, default=3, metavar="N", help="of each, for the median (3)")
    parser.add_argument("--tasks", type=count, metavar="N", help="in place of each peer's own count")
    parser.add_argument("--quick", action="store_true", help="small counts and one run, to see that everything works")
    parser.add_argument("--output", type=Path, default=WORKPLACE / "results", metavar="DIR", help="for the results")
    parser.add_argument("--no-report", action="store_true", help="do not write docs/benchmarks.md")
    parser.add_argument("--list", action="store_true", help="show the scenarios and the peers")
    return parser


def count(word: str) -> int:
    """A count of at least one."""
    number = int(word)
    if number < 1:
        raise ValueError
    return number


def choose(names: Sequence[str], known: Mapping[str, T], kind: str) -> list[T]:
    """The named ones, or all, in the order in which they are known."""
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f'there is no {kind} "{unknown[0]}"; there are {", ".join(known)}')
    return [each for name, each in known.items() if not names or name in names]


def show_list() -> None:
    print("scenarios")
    for scenario in SCENARIOS.values():
        print(f"  {scenario.name:16} {scenario.title}")
    print("peers")
    for peer in PEERS.values():
        print(f"  {peer.name:16} {', '.join(peer.packages) or 'as it is checked out here'}")


def show_table(results: Results) -> None:
    """All medians, scenario by scenario."""
    previous = ""
    for each in results.measurements:
        if each.scenario != previous:
            print(f"\n{each.scenario}")
        previous = each.scenario
        name = f"{each.peer} ({each.variant})" if each.variant else each.peer
        print(f"  {name:26} {each.error or tell_run(Run(each.figures, each.cpu))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
