"""A peer: another job system to compare duetime with, and how it is installed and run.

Each peer has a folder of its own, `.bench/peers/NAME`, with its virtual
environment or its node_modules, in the versions named by `packages`, and a copy
of its program.  An installation that exists and fits is used again.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.processes import BenchError, run_program
from bench.servers import find_program

_PROGRAMS = Path(__file__).parent / "programs"
_ROOT = Path(__file__).parents[2]
_INSTALL_SECONDS = 600.0


@dataclass(frozen=True)
class Peer:
    """What the scenarios know about a job system; the rest is in its program."""

    name: str
    language: Literal["python", "node", "duetime"]
    #: Pinned: "graphile-worker@0.16.6", "pgqueuer==0.26.1".
    packages: tuple[str, ...]
    server: Literal["postgres", "redis", "duetime"]
    #: A file in `programs/`.
    program: str
    #: Which of "one", "twenty", "bulk" its API offers.
    modes: tuple[str, ...]
    #: How many tasks make a run of a few seconds.
    tasks: int
    #: Worker processes: one or two, whichever makes it faster.
    workers: int
    #: Each setting, and that its own documentation recommends it.
    tuning: str
    #: For a peer on Redis: whether Redis syncs its log before it answers, as PostgreSQL does, or once a second.
    is_synced: bool = False
    #: Whether it can run a task at a time in the future.
    has_future: bool = True
    #: Variables in its program's environment besides the servers' addresses.
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def best_mode(self) -> str:
        """Its fastest way to submit many."""
        return next(mode for mode in ("bulk", "twenty", "one") if mode in self.modes)

    @property
    def versions(self) -> dict[str, str]:
        """The pinned versions of its packages."""
        separator = "==" if self.language == "python" else "@"
        parts = [package.rpartition(separator) for package in self.packages]
        return {name.split("[")[0]: version for name, _, version in parts}


@dataclass(frozen=True)
class Installation:
    """How to run an installed peer's program: `command` and a word, in `folder`."""

    command: Sequence[str | Path]
    folder: Path


async def install(peer: Peer, root: Path, say: Callable[[str], None]) -> Installation:
    """Install what is missing under `root`, and copy the program. Return how it is run."""
    if peer.language == "duetime":
        # duetime is the version checked out here, in the environment that runs this.
        return Installation([sys.executable, "-m", f"bench.peers.programs.{Path(peer.program).stem}"], _ROOT)
    folder = root / peer.name
    wanted = json.dumps([*peer.packages, sys.version if peer.language == "python" else ""])
    mark = folder / ".installed"
    if not mark.exists() or mark.read_text() != wanted:
        say(f"installing {', '.join(peer.packages)}")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            await (_install_python if peer.language == "python" else _install_node)(peer, folder)
        except BenchError as error:
            raise BenchError(f"{peer.name} cannot be installed: {error}") from error
        mark.write_text(wanted)
    if peer.language == "python":
        # It is in a package, so that a program named like the library that it drives does not hide the library.
        (folder / "programs").mkdir(exist_ok=True)
        for name in ("__init__.py", "common.py", peer.program):
            shutil.copyfile(_PROGRAMS / name, folder / "programs" / name)
        return Installation([folder / "venv/bin/python", "-m", f"programs.{Path(peer.program).stem}"], folder)
    for name in ("common.mjs", peer.program):
        shutil.copyfile(_PROGRAMS / name, folder / name)
    # The newest version that npm has, because some peers need a newer one than many systems have.
    return Installation([folder / "node_modules/.bin/node", folder / peer.program], folder)


async def _install_python(peer: Peer, folder: Path) -> None:
    # An environment for other versions is made anew.
    options = ["--clear"] if (folder / ".installed").exists() else []
    make = [sys.executable, "-m", "venv", *options, str(folder / "venv")]
    await run_program("venv", make, folder=folder, seconds=_INSTALL_SECONDS)
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    await run_program("pip", [*pip, "install", *peer.packages], folder=folder, seconds=_INSTALL_SECONDS)


async def _install_node(peer: Peer, folder: Path) -> None:
    npm = str(await find_program("npm", "nodejs npm", folder))
    options = ["--prefix", str(folder), "--no-save", "--no-package-lock", "--no-audit", "--no-fund"]
    await run_program("npm", [npm, "install", *options, *peer.packages], folder=folder, seconds=_INSTALL_SECONDS)
