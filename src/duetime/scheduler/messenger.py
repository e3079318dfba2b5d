"""Typed messages between the nodes that share the shards, over the connections of the mesh.

The part that serves its type answers a request.  A message that cannot be understood,
because its tag is unknown or its form is another, is dropped: the caller gets no answer,
and one log line a minute reports it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from duetime.cluster.contract import Member
from duetime.cluster.line import UNREADABLE
from duetime.cluster.mesh import Ending, Mesh, PeerGone
from duetime.errors import Unavailable
from duetime.scheduler.messages import Reply, Request, decode_reply, decode_request, encode
from duetime.signals import Signal
from duetime.telemetry import Sparing

log = structlog.get_logger()
Asked = TypeVar("Asked", bound=Request)
Wanted = TypeVar("Wanted", bound=Reply)
_LOG_EVERY_SECONDS = 60.0
_MOST_LOGGED = 200


class Messenger:
    def __init__(self, name: str, secret: bytes) -> None:
        self.name = name
        #: Sent when another node has opened a connection to this one.
        self.called = Signal[[]]()
        #: Sent when the connection to a node is closed, or cannot be opened.
        self.lost = Signal[Member]()
        #: Sent with a reply that no call waits for any more.
        self.came_late = Signal[Reply]()
        self._mesh = Mesh(name, secret, self._handle, self._undelivered, on_called=self.called, on_lost=self.lost)
        self._served: dict[type[object], Callable[[Request], Awaitable[Reply]]] = {}
        self._dropped = Sparing(1, seconds=_LOG_EVERY_SECONDS)

    def serve(self, kind: type[Asked], answer: Callable[[Asked], Awaitable[Reply]]) -> None:
        """Set the function that answers requests of this type."""

        async def serve(request: Request) -> Reply:
            assert isinstance(request, kind)
            return await answer(request)

        self._served[kind] = serve

    # Connections

    async def listen(self, incarnation: int) -> Member:
        """Accept connections, under this incarnation."""
        member = Member(self.name, incarnation, await self._mesh.listen())
        self._mesh.be(incarnation)
        return member

    def meet(self, members: Sequence[Member]) -> None:
        """Keep connections to these nodes and to no others."""
        self._mesh.meet(members)

    def part(self, member: Member) -> None:
        self._mesh.part(member)

    def others(self) -> list[Member]:
        return [peer.member for peer in self._mesh.peers()]

    async def close(self) -> None:
        await self._mesh.close()

    # Messages

    async def ask(
        self, node: str, request: Request, wanted: type[Wanted], timeout: float, calls: set[Ending] | None = None
    ) -> Wanted | None:
        """Ask another node; None if there is no reply."""
        try:
            answer = await self._mesh.peer(node).call(type(request).__name__, encode(request), timeout, calls)
        except PeerGone:
            return None
        if answer is None:
            return None
        try:
            reply = decode_reply(answer)
        except UNREADABLE as error:
            self._drop(f"a reply to {type(request).__name__}: {error}")
            return None
        if not isinstance(reply, wanted):
            self._drop(f"a {type(reply).__name__} in reply to {type(request).__name__}")
            return None
        return reply

    async def ask_all(self, request: Request, wanted: type[Wanted], timeout: float) -> list[Wanted]:
        """Ask all other nodes; returns the replies of those that answer."""
        replies = await asyncio.gather(*(self.ask(member.name, request, wanted, timeout) for member in self.others()))
        return [reply for reply in replies if reply is not None]

    async def _handle(self, verb: str, body: bytes) -> bytes:
        try:
            request = decode_request(body)
        except UNREADABLE as error:
            self._drop(f"a request: {error}")
            raise Unavailable("a message that this node does not understand") from error
        served = self._served.get(type(request))
        if served is None:
            self._drop(f"nobody here answers a {type(request).__name__}")
            raise Unavailable(f"nobody here answers a {type(request).__name__}")
        return encode(await served(request))

    def _undelivered(self, verb: str, body: bytes) -> None:
        try:
            reply = decode_reply(body)
        except UNREADABLE as error:
            self._drop(f"a late reply: {error}")
            return
        self.came_late(reply)

    def _drop(self, what: str) -> None:
        if (left_out := self._dropped.take()) is not None:
            log.warning(
                "a message of another node cannot be understood and is dropped",
                message=what[:_MOST_LOGGED],
                left_out=left_out,
            )
