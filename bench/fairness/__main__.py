"""`python -m bench.fairness [--only 1,3] [--quick] [--processes N] [--json] [--output DIR] [--add]`.

Runs the scenarios one after the other, prints the requirements and the figures, and
writes fairness.md with its plots: into docs after all seven in full, otherwise into
.bench, or into the given folder.  Exits with 1 if a requirement is not met.  Ctrl-C
and SIGTERM stop it and everything that it started.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench.fairness import caps, classes, crowd, hostile, noisy, paper, rates, weights
from bench.fairness.outcome import Options, Outcome

SCENARIOS: dict[int, tuple[str, Callable[[Options], Awaitable[Outcome]]]] = {
    1: ("noisy", noisy.run),
    2: ("weights", weights.run),
    3: ("classes", classes.run),
    4: ("rates", rates.run),
    5: ("caps", caps.run),
    6: ("crowd", crowd.run),
    7: ("hostile", hostile.run),
}
#: The longest that a scenario may take, whatever happens.
MOST_SECONDS = 1_800.0
_ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fairness", description="Measure what is promised about sharing."
    )
    parser.add_argument(
        "--only", type=_numbers, default=list(SCENARIOS), metavar="1,3", help="some of the seven scenarios"
    )
    parser.add_argument("--quick", action="store_true", help="shortened, to see that it works")
    parser.add_argument("--processes", type=int, metavar="N", help="node processes (1; 3 for the fifth)")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where fairness.md goes (docs, or .bench for a part)"
    )
    parser.add_argument("--add", action="store_true", help="put these into docs/fairness.md, beside what is there")
    given = parser.parse_args()
    if given.add and (given.quick or given.output):
        parser.error("--add goes without --quick and --output")
    is_whole = not given.quick and given.only == list(SCENARIOS)
    options = Options(given.quick, given.processes)
    try:
        outcomes = asyncio.run(run(given.only, options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return 130
    if given.add:
        paper.add(outcomes, _ROOT / "docs")
        _print(outcomes)
        return 0 if all(outcome.holds for outcome in outcomes) else 1
    paper.write(outcomes, given.output or _ROOT / ("docs" if is_whole else ".bench"), is_quick=given.quick)
    if given.json:
        print(json.dumps([_plain(outcome) for outcome in outcomes]))
    else:
        _print(outcomes)
    return 0 if all(outcome.holds for outcome in outcomes) else 1


def _numbers(text: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if not all(number in SCENARIOS for number in numbers):
        raise argparse.ArgumentTypeError("takes numbers from 1 to 7, such as 1,3")
    return numbers


async def run(numbers: Sequence[int], options: Options) -> list[Outcome]:
    """Run the scenarios one after the other; one that fails does not stop the others."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    outcomes = []
    for number in numbers:
        name, scenario = SCENARIOS[number]
        began = time.monotonic()
        print(f"{number} {name}", file=sys.stderr, flush=True)
        try:
            async with asyncio.timeout(MOST_SECONDS):
                outcome = await scenario(options)
        except Exception as error:
            # Otherwise hours of the other scenarios would be lost.
            outcome = Outcome(number, name, "", error=str(error) or type(error).__name__)
            print(f"    failed: {outcome.error}", file=sys.stderr, flush=True)
        print(f"    {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    return outcomes


def _plain(outcome: Outcome) -> dict[str, object]:
    figures = [
        {"name": each.name, "asked": each.asked, "value": each.value, "holds": each.holds} for each in outcome.figures
    ]
    return {"number": outcome.number, "title": outcome.title, "figures": figures, "error": outcome.error}


def _print(outcomes: Sequence[Outcome]) -> None:
    widest = max([len(figure.name) for outcome in outcomes for figure in outcome.figures], default=20)
    for outcome in outcomes:
        print(f"\n{outcome.number}. {outcome.title}")
        if outcome.error:
            print(f"   could not be measured: {outcome.error}")
        for figure in outcome.figures:
            print(f"   {figure.name:<{widest}}  {figure.asked:<32}  {figure.seen:>12}  {figure.verdict}")


if __name__ == "__main__":
    sys.exit(main())
