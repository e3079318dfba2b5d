"""The holders' own logs: one line for each start, which outlives a kill -9 of who wrote it.

A line is one write to a file that is only appended to, so processes may share
a file, and what was written before a kill stays.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Start:
    """A holder began to run an attempt."""

    task: str
    number: int
    holder: str
    at_ns: int

    @property
    def attempt(self) -> tuple[str, int]:
        return self.task, self.number


class Journal:
    """Written by a worker or a target."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, task: str, number: int, holder: str) -> None:
        os.write(self._file, f"{task} {number} {holder} {time.time_ns()}\n".encode())


class Reader:
    """Reads journals as they grow."""

    def __init__(self) -> None:
        self._places: dict[Path, int] = {}
        self.starts: list[Start] = []
        self.tasks: set[str] = set()

    def read(self, *files: Path) -> None:
        for file in files:
            if not file.exists():
                continue
            with file.open("rb") as stream:
                stream.seek(self._places.get(file, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._places[file] = self._places.get(file, 0) + len(whole)
            for line in whole.decode().splitlines():
                task, number, holder, at_ns = line.split()
                self.starts.append(Start(task, int(number), holder, int(at_ns)))
                self.tasks.add(task)

    def attempts(self, task: str) -> list[tuple[int, str]]:
        return [(start.number, start.holder) for start in self.starts if start.task == task]
