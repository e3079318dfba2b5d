"""`python -m bench [SCENARIO …]`: measure, print a table, stop by itself.

Every scenario starts a node of its own in a folder that is thrown away.
"""

import argparse
import asyncio
import sys

from bench import lag, throughput, waiting

SCENARIOS = {"lag": lag.measure, "throughput": throughput.measure, "waiting": waiting.measure}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)} (all)")
    parser.add_argument("--tasks", type=int, default=1_000_000, help="waiting tasks for `waiting` (1,000,000)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.scenarios if name not in SCENARIOS]:
        print(f"bench: there is no scenario {unknown[0]}; there are {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    for name in arguments.scenarios or SCENARIOS:
        print(f"== {name}", flush=True)
        asyncio.run(SCENARIOS[name](arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
