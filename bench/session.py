"""One session of measuring: install the peers, make all the runs, and keep the results.

Results are saved at the end however it ends, so that an interrupted session keeps
those of the scenarios that it reached.  Nothing that was started outlives it.
"""

import asyncio
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.peers.base import Installation, Peer, install
from bench.plan import Durations, Record, carry_out, make_steps, say, tell_time
from bench.processes import BenchError
from bench.results import Machine, PeerFacts, Results, read_commit
from bench.scenarios.contract import Options, Scenario
from bench.stage import Hall

ROOT = Path(__file__).parents[1]
WORKPLACE = ROOT / ".bench"


class Session:
    def __init__(
        self,
        scenarios: Sequence[Scenario],
        peers: Sequence[Peer],
        options: Options,
        arguments: list[str],
        output: Path,
    ) -> None:
        self._steps = make_steps(scenarios, peers, options)
        self._peers = [peer for peer in peers if any(step.peer is peer for step in self._steps)]
        self._options = options
        self._arguments = arguments
        self._output = output
        self._began_at = datetime.now(UTC)
        self._installations: dict[str, Installation] = {}
        self._not_installed: dict[str, str] = {}
        self._record = Record(self._steps)
        self._commit = read_commit(ROOT)

    async def run(self) -> Results:
        """Measure everything; Ctrl-C and SIGTERM stop it."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        folder = _make_run_folder()
        hall = Hall(folder)
        durations = Durations(WORKPLACE / "durations.json", self._options)
        try:
            await self._install()
            steps = [step for step in self._steps if step.peer.name in self._installations]
            say(f"{len(steps)} runs, about {tell_time(sum(map(durations.estimate, steps)))}")
            await carry_out(steps, hall, self._installations, self._options, durations, self._record)
        finally:
            try:
                await hall.close()
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                results = self._gather(hall.versions)
                file = self._output / f"{self._began_at:%Y%m%dT%H%M%SZ}.json"
                results.save(file)
                say(f"results: {file}")
        return results

    async def _install(self) -> None:
        for peer in self._peers:
            try:
                self._installations[peer.name] = await install(peer, WORKPLACE / "peers", say)
            except BenchError as error:
                say(f"    failed: {error}")
                self._not_installed[peer.name] = str(error)
        for step in self._steps:
            if step.peer.name in self._not_installed:
                self._record.fail(step, self._not_installed[step.peer.name])

    def _gather(self, servers: dict[str, str]) -> Results:
        commit, is_dirty = self._commit
        return Results(
            began_at=_tell_instant(self._began_at),
            ended_at=_tell_instant(datetime.now(UTC)),
            arguments=self._arguments,
            is_quick=self._options.is_quick,
            machine=Machine.here(),
            versions={**servers, **self._versions()},
            commit=commit,
            is_dirty=is_dirty,
            peers=[self._facts(peer) for peer in self._peers],
            measurements=self._record.measurements(),
        )

    def _versions(self) -> dict[str, str]:
        versions = {"Python": platform.python_version(), "duetime": version("duetime")}
        versions |= {name: told for name, told in (("Node", _ask("node")), ("wrk", _ask("wrk"))) if told}
        for peer in self._peers:
            if peer.name in self._installations:
                versions |= peer.versions
        return versions

    def _facts(self, peer: Peer) -> PeerFacts:
        server = "redis" if peer.server == "redis" else "postgres"
        return PeerFacts(
            peer.name, server, list(peer.packages), peer.workers, peer.tuning, self._not_installed.get(peer.name, "")
        )


def _make_run_folder() -> Path:
    """A folder for the servers' data; folders of sessions that were killed are removed."""
    parent = WORKPLACE / "run"
    parent.mkdir(parents=True, exist_ok=True)
    for each in parent.iterdir():
        if each.name.isdigit() and not Path(f"/proc/{each.name}").exists():
            shutil.rmtree(each, ignore_errors=True)
    folder = parent / str(os.getpid())
    folder.mkdir()
    return folder


def _ask(program: str) -> str:
    """A program's version: the part of its output that looks like one; empty if the program does not exist."""
    if shutil.which(program) is None:
        return ""
    said = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=30)
    found = re.search(r"\d+\.\d+\.\d+", said.stdout + said.stderr)
    return found.group() if found else ""


def _tell_instant(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
