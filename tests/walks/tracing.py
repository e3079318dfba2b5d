"""Which functions of duetime one piece of work goes through, from real calls.

A tracer notes the functions that are called while a walk is made.  Loops that run beside it
(beats, clocks, looks) are noted too; they differ from time to time, so a walk is made several times,
and what all of them have in common is what belongs to it.
"""

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import duetime

PACKAGE = Path(duetime.__file__).parent
TIMES = 5
#: What a reader of a walk can skip: clocks, ids, counters, signals, how statements reach the server.
_BELOW = (
    "clock.py",
    "database/",
    "ids.py",
    "metrics.py",
    "sdk/",
    "service.py",
    "signals.py",
    "busy_wait.py",
    "long_work.py",
    "watchdog.py",
)


@dataclass(frozen=True)
class Step:
    """A function, and the file that it is in."""

    file: str
    function: str


@dataclass
class Trace:
    """The functions that were called, each once, in the order of their first calls."""

    steps: dict[Step, None] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        file = _file_of(frame)
        if file is None or file.startswith(_BELOW) or frame.f_code.co_name.startswith(("<", "__")):
            return
        caller = frame.f_back
        while caller is not None and (above := _file_of(caller)) is None:
            caller = caller.f_back
        if caller is None or above != file:
            self.steps.setdefault(Step(file, frame.f_code.co_qualname.replace(".<locals>", "")))


def _file_of(frame: FrameType) -> str | None:
    """The file of the package that a function is in; None: it is in none."""
    name = frame.f_code.co_filename
    return name.removeprefix(f"{PACKAGE}/") if name.startswith(f"{PACKAGE}/") else None


@dataclass
class Walk:
    """What several traces of the same work have in common, and what any of them has."""

    name: str
    steps: list[Step]
    possible: set[Step]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(step.file for step in self.steps))

    def table(self) -> str:
        """One row for each folder, in the order of the first visits, with its modules in that order."""
        folders: dict[str, list[str]] = {}
        for file in self.files:
            folder, _, name = file.rpartition("/")
            folders.setdefault(folder or "duetime", []).append(name.removesuffix(".py"))
        lines = [f"**{self.name}**: {len(self.steps)} calls through {len(self.files)} files", ""]
        lines += ["| folder | modules |", "| --- | --- |"]
        lines += [f"| {folder} | {', '.join(names)} |" for folder, names in folders.items()]
        return "\n".join(lines)

    def list_calls(self) -> str:
        calls = [f"  {step.file}: {step.function}" for step in self.steps]
        return "\n".join([f"{self.name}: {len(self.steps)} calls through {len(self.files)} files", *calls])


async def trace(name: str, prepare: Callable[[], Awaitable[Callable[[], Awaitable[None]]]]) -> Walk:
    """Make a walk several times; what `prepare` does beforehand is not part of it."""
    traces = []
    for _ in range(TIMES + 1):
        walk = await prepare()
        each = Trace()
        with each.recording():
            await walk()
        traces.append(each.steps)
    # The first time is not like the others: lanes are made, connections opened.
    del traces[0]
    common = set.intersection(*(set(steps) for steps in traces))
    return Walk(name, [step for step in traces[0] if step in common], set.union(*(set(steps) for steps in traces)))
