"""The connections of a process: how many there may be, for each peer and in total, and which one to close.

A connection costs a file and some kilobytes, and anybody can open one without a
key.  So beyond a limit, of the process or of one peer, the connection that has been
idle for the longest is closed to make room: it has no request under way, and
clients open a new one when they need it.  Only if none is idle is the new one
refused.  Other modules limit what is under way: requests by the time in which
they have to arrive, long polls by their number.

Loopback and trusted proxies have no limit of their own: everybody may be behind one
such address, and a program that runs on this machine can do harm without connections.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from duetime import metrics
from duetime.api.server.bounds import MAX_POLLS, MAX_POLLS_PER_TENANT, OpenPolls
from duetime.api.server.peers import Client, Peer, Peers
from duetime.config import Config
from duetime.errors import DuetimeError, TooManyConnections
from duetime.files import read_limit, room_for_connections
from duetime.telemetry import Sparing

log = structlog.get_logger()

#: More would only cost memory: 7 KB each, before the client has sent anything.
MOST_CONNECTIONS = 20_000
#: A tenant may have as many long polls at one node, and all its workers may have one address.
MOST_PER_PEER = 2_000
RETRY_SECONDS = 5.0
_LOG_EVERY_SECONDS = 60.0
#: A scan of all connections collects this share of them, so that a flood of new ones does not cause a scan each time.
_SHARE_OF_A_LOOK = 64
_LOOK_AGAIN_SECONDS = 0.1


class Connection(Protocol):
    """The HTTP protocol of one connection."""

    client: Client

    def idle_since(self) -> float | None:
        """The loop's time since which it is idle; None: a request is under way."""

    def evict(self) -> None:
        """Close it: it is idle, and another connection needs the room."""

    def refuse(self, error: DuetimeError) -> None:
        """Send the error and close it, although it has sent no request yet."""


class Connections:
    """All connections of one process."""

    def __init__(
        self,
        peers: Peers,
        most: int = MOST_CONNECTIONS,
        most_per_peer: int | None = None,
        *,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._peers = peers
        self.most = most
        self.most_per_peer = most_per_peer or min(MOST_PER_PEER, max(1, most // 4))
        #: The loop's time, which connections use for `idle_since`.
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._all = _Pool()
        self._by_peer: dict[str, _Pool] = {}
        #: The peer that each connection counts against; None if its peer has no limit.
        self._group_of: dict[Connection, str | None] = {}
        self._noted = {what: Sparing(1, time.monotonic, _LOG_EVERY_SECONDS) for what in metrics.CLOSED}
        self._errors = Sparing(1, time.monotonic, _LOG_EVERY_SECONDS)

    @classmethod
    def of(cls, config: Config, peers: Peers) -> "Connections":
        """Make it from the settings and the limit of open files."""
        limit = read_limit()
        room = room_for_connections(limit, database=config.database_connections, calls=config.executor_calls)
        if config.max_connections is not None and config.max_connections > room:
            log.warning(
                "max_connections is more than the limit of open files has room for",
                max_connections=config.max_connections,
                open_files=limit,
                room=room,
            )
        return cls(peers, min(config.max_connections or MOST_CONNECTIONS, room), config.max_connections_per_peer)

    def __len__(self) -> int:
        return len(self._all.members)

    def bound_polls(self) -> OpenPolls:
        """Limits for long polls, which are never idle, that leave room for other calls and for other tenants."""
        return OpenPolls(min(MAX_POLLS, self.most * 3 // 4), min(MAX_POLLS_PER_TENANT, max(1, self.most // 4)))

    def add(self, connection: Connection) -> bool:
        """Make room for it; False: there is no room, and it was refused."""
        peer = self._peers.of_connection(connection.client)
        group = None if self._is_free(peer) else peer.group
        own = None if group is None else self._by_peer.get(group)
        count = len(self) if own is None else len(own.members)
        if own is not None and count >= self.most_per_peer and not self._evict("evicted_peer", own, group):
            self._refuse("refused_peer", connection, group, f"{count:,} connections come from {group} already")
            return False
        if len(self) >= self.most and not self._evict("evicted", self._all, None):
            self._refuse("refused", connection, group, f"{len(self):,} connections are open at this node already")
            return False
        self._group_of[connection] = group
        self._all.members.add(connection)
        if group is not None:
            self._by_peer.setdefault(group, _Pool()).members.add(connection)
        metrics.CONNECTIONS.set(len(self))
        return True

    def discard(self, connection: Connection) -> None:
        """Remove a connection that is closed or about to be."""
        self._all.members.discard(connection)
        group = self._group_of.pop(connection, None)
        if group is not None and (own := self._by_peer.get(group)) is not None:
            own.members.discard(connection)
            if not own.members:
                del self._by_peer[group]
        metrics.CONNECTIONS.set(len(self))

    def note_accept_error(self, error: str) -> None:
        """Close an idle connection because a waiting one could not be accepted, mostly for lack of files."""
        metrics.ACCEPT_ERRORS.inc()
        if (left_out := self._errors.take()) is not None:
            log.warning(
                "a connection cannot be accepted", error=error, connections=len(self), left_out=left_out, most=self.most
            )
        # Make room for the next ones, too: the listener pauses a little after each error.
        for _ in range(max(1, len(self) // _SHARE_OF_A_LOOK)):
            if not self._evict("evicted", self._all, None):
                return

    def note_unread(self, client: Client, unsent: int) -> None:
        """Note that a client was cut off because it did not read its answers."""
        self._note("unread", peer=self._peers.of_connection(client).group, unsent_bytes=unsent)

    def _is_free(self, peer: Peer) -> bool:
        return peer.address is None or peer.address.is_loopback or self._peers.is_trusted(peer)

    def _evict(self, what: str, among: "_Pool", group: str | None) -> bool:
        """Close the connection that has been idle for the longest, if any is idle."""
        connection = among.take_idle(self._now())
        if connection is None:
            return False
        self.discard(connection)
        connection.evict()
        self._note(what, peer=group)
        return True

    def _refuse(self, what: str, connection: Connection, group: str | None, detail: str) -> None:
        self._note(what, peer=group)
        connection.refuse(TooManyConnections(f"{detail}, and none of them is idle", retry_after=RETRY_SECONDS))

    def _note(self, what: str, **facts: object) -> None:
        metrics.CLOSED[what].inc()
        if (left_out := self._noted[what].take()) is not None:
            log.warning(_SENTENCES[what], **facts, connections=len(self), left_out=left_out)


_SENTENCES = {
    "evicted": "too many connections: the one that was idle for the longest is closed",
    "evicted_peer": "too many connections of a peer: its one that was idle for the longest is closed",
    "refused": "too many connections, and none is idle: a new one is refused",
    "refused_peer": "too many connections of a peer, and none is idle: a new one is refused",
    "unread": "a client does not read its answers: its connection is cut off",
}


class _Pool:
    """Connections from which one may be chosen to be closed."""

    __slots__ = ("_found", "_look_again_at", "members")

    def __init__(self) -> None:
        self.members: set[Connection] = set()
        #: The connections that the last scan found idle, and since when; the longest idle last.
        self._found: list[tuple[float, Connection]] = []
        self._look_again_at = 0.0

    def take_idle(self, now: float) -> Connection | None:
        """The connection that has been idle for the longest; None if none is idle."""
        # A connection that became idle after the scan is younger than all that it found and that are still idle.
        if (oldest := self._still_idle()) is not None:
            return oldest
        if now < self._look_again_at:
            return None
        self._look()
        oldest = self._still_idle()
        if oldest is None:
            self._look_again_at = now + _LOOK_AGAIN_SECONDS
        return oldest

    def _still_idle(self) -> Connection | None:
        while self._found:
            since, connection = self._found.pop()
            if connection in self.members and connection.idle_since() == since:
                return connection
        return None

    def _look(self) -> None:
        idle = ((since, each) for each in self.members if (since := each.idle_since()) is not None)
        most = max(1, len(self.members) // _SHARE_OF_A_LOOK)
        self._found = heapq.nsmallest(most, idle, key=lambda found: found[0])
        self._found.reverse()
