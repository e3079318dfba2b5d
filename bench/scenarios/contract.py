"""What a scenario is: a question, the peers it applies to, and how one run is measured."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench.peers.base import Peer
from bench.results import Run
from bench.stage import Stage


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    runs: int = 3
    #: Small counts and one run, to see whether everything works.
    is_quick: bool = False
    #: Replaces each peer's own count.
    tasks: int | None = None

    def tasks_of(self, peer: Peer) -> int:
        """How many tasks make a run of drain and sustained."""
        return self.tasks or (max(500, peer.tasks // 20) if self.is_quick else peer.tasks)


@dataclass(frozen=True)
class Scenario:
    """One question. `measure` is called once for each run, on a server that is fresh and idle."""

    name: str
    #: One line, for `--list`.
    title: str
    #: The variants of the scenario for a peer: none if the peer cannot do it, one without a name if there is only one.
    variants: Callable[[Peer, Options], Sequence[str]]
    measure: Callable[[Stage, str, Options], Awaitable[Run]]
    #: A first estimate of how long one run takes, until real durations are known.
    seconds: Callable[[Peer, str, Options], float]
    #: Long scenarios are run fewer times than `options.runs`.
    most_runs: int | None = None

    def runs(self, options: Options) -> int:
        wanted = 1 if options.is_quick else options.runs
        return wanted if self.most_runs is None else min(wanted, self.most_runs)
