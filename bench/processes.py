"""Child processes of the benchmark: each in a session of its own, and none outlives the benchmark.

A child's output goes to files, so that it never waits for a reader, and its
CPU time is taken when it ends.  However it ends, its whole session is ended
with it; on Linux it also ends when the benchmark is killed.  Start children from the
main thread: they end with the thread that started them.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from duetime.database import launch

_POLL_SECONDS = 0.02
_TAIL_CHARACTERS = 500


class BenchError(Exception):
    """Something does not work; the message tells a person what to do."""


@dataclass(frozen=True)
class Ended:
    """What a child left: its standard output, the time of its last output, and its CPU time."""

    output: str
    written_at: float
    cpu_seconds: float


def following(program: str) -> list[str]:
    """How to start a program, by its absolute path, so that it ends when the benchmark is killed."""
    who = [str(os.getpid()), str(os.geteuid()), str(os.getegid())]
    return [sys.executable, "-I", "-S", launch.__file__, *who, program]


class Child:
    """One running child; `name` also names the files of its output."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self._output, self._errors = folder / f"{name}.out", folder / f"{name}.err"
        program = shutil.which(command[0])
        if program is None:
            raise BenchError(f"there is no program {command[0]}")
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                # The path is not resolved: the python of a virtual environment is a link that must stay one.
                [*following(os.path.abspath(program)), *map(str, command[1:])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                cwd=cwd,
                start_new_session=True,
            )
        self._cpu_seconds = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        if self._process.returncode is None:
            # Popen does not do this, because it would throw the CPU time away.
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._cpu_seconds = usage.ru_utime + usage.ru_stime
                self._end_session()
        return self._process.returncode

    async def wait(self, seconds: float) -> Ended:
        """Wait until it ends well; any other end is a BenchError with the last part of its output."""
        deadline = time.monotonic() + seconds
        try:
            while (code := self.poll()) is None:
                if time.monotonic() > deadline:
                    raise BenchError(f"{self.name} did not end within {seconds:.0f} s{self.tail()}")
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self.kill()
        if code != 0:
            raise self.failure()
        return Ended(self.output, self._output.stat().st_mtime, self._cpu_seconds)

    async def wait_for_line(self, line: str, seconds: float) -> None:
        """Wait until it has printed this line."""
        deadline = time.monotonic() + seconds
        while line not in self.output.splitlines():
            if self.poll() is not None:
                raise self.failure()
            if time.monotonic() > deadline:
                raise BenchError(f'{self.name} did not say "{line}" within {seconds:.0f} s{self.tail()}')
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self, seconds: float = 10.0) -> None:
        """Ask it to end, and kill it if it does not."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        try:
            while self.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it at once, with its whole session."""
        if self._process.returncode is None:
            self._end_session()
            self._process.wait()

    def failure(self) -> BenchError:
        return BenchError(f"{self.name} ended with code {self.poll()}{self.tail()}")

    def tail(self) -> str:
        """What its output says about its end, to be put after a sentence: its last error, or else its last line."""
        said = self._errors.read_text(errors="replace").strip() or self.output.strip()
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return f": {(errors or lines)[-1][:_TAIL_CHARACTERS]}" if lines else ""

    def _end_session(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


async def run_program(
    name: str,
    command: Sequence[str | Path],
    *,
    folder: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run a program until it ends well, within the time."""
    return await Child(name, command, folder=folder, environment=environment, cwd=cwd).wait(seconds)
