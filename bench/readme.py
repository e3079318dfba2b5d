"""The figures in README.md, from the results that docs/benchmarks.md is made of.

They are between two marks, so that the report can write them anew and nobody has
to update them by hand.
"""

import re
from pathlib import Path

from bench.results import Results

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
_PEER = "graphile-worker"


def tell_figures(results: Results) -> str:
    """The sentence in README about speed; empty if it was not measured."""
    parts = []
    for scenario, what in (("sustained", "produced and run at once"), ("drain", "drained from a backlog")):
        ours, theirs = (results.figure("rate", scenario, peer) for peer in ("duetime", _PEER))
        if ours and theirs:
            parts.append(f"{ours:,.0f} tasks a second {what} ({ours / theirs:.2f} × {_PEER})")
    if not parts:
        return ""
    return f"{' and '.join(parts)} on {results.machine.cores} shared cores"


def update(file: Path, results: Results) -> None:
    """Write the figures into README; without them it stays as it is."""
    text = file.read_text("utf-8")
    if figures := tell_figures(results):
        file.write_text(re.sub(f"(?<={BEGIN}).*?(?={END})", figures, text, flags=re.DOTALL), "utf-8")
