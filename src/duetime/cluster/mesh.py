"""Calls between the nodes of one cluster: short messages over TCP, each with one answer.

Every node listens on a port of its own and keeps one line open to each other node,
for its own calls.  Both ends prove that they know the cluster's secret before
anything else is sent, because any program on the machine could connect to a port.  A
line that has proved nothing may send little, has little time, and there may be only
a few of them.  A caller can end a call, and gets its answer all the same: what was
done until then.  When a line breaks, its calls fail at once and the other end stops
working on them.
"""

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import structlog

from duetime.cluster.contract import Member
from duetime.cluster.line import UNREADABLE, Answer, Call, Challenge, End, Line, Proof, Welcome
from duetime.errors import Unavailable
from duetime.service import Background

log = structlog.get_logger()
HANDSHAKE_SECONDS = 5.0
#: The most lines that have proved nothing yet; above that the oldest is closed. A node proves itself within a moment.
MAX_GREETING = 64
_LEAST_BACKOFF_SECONDS, _MOST_BACKOFF_SECONDS = 0.05, 1.0

#: (verb, body) → the answer.
Handler = Callable[[str, bytes], Awaitable[bytes]]
#: Called with an answer that no caller received: (verb, answer).
Undelivered = Callable[[str, bytes], None]


class PeerGone(Unavailable):
    """The other node cannot be reached; whether it did what it was asked is unknown."""


class Peer:
    """This node's line to one other node, kept open, and its calls on it."""

    def __init__(self, mesh: "Mesh", member: Member) -> None:
        self._mesh = mesh
        self.member = member
        self._line: Line | None = None
        self._numbers = 0
        self._calls: dict[int, tuple[str, asyncio.Future[bytes | None]]] = {}
        self._is_closed = False
        self._opened = asyncio.Event()
        self._lost = asyncio.Event()
        self._keeping = Background("line to another node", self._keep_open)
        self._keeping.start()

    async def call(self, verb: str, body: bytes, timeout: float, calls: "set[Ending] | None" = None) -> bytes | None:
        """Return the answer; None if the other node failed, or the call was ended first. Raise `PeerGone`.

        A call whose caller is cancelled is ended too; its answer then goes to `undelivered`.
        """
        try:
            async with asyncio.timeout(timeout):
                if self._line is None:
                    await self._opened.wait()
                line = self._line
                if line is None or self._is_closed:
                    raise PeerGone(f"node {self.member.name} cannot be reached")
                self._numbers += 1
                number = self._numbers
                answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
                self._calls[number] = (verb, answer)
                line.send(Call(number, verb, body))
                ending = Ending(line, number)
                if calls is not None:
                    calls.add(ending)
                try:
                    return await asyncio.shield(answer)
                except asyncio.CancelledError:
                    # Cancelled by the caller or the time limit: the answer is still to come, and nobody waits for it.
                    if answer.done() and not answer.cancelled() and answer.exception() is None:
                        self._deliver_late(verb, answer.result())
                    elif not answer.done():
                        answer.cancel()
                        ending.end()
                    raise
                finally:
                    if calls is not None:
                        calls.discard(ending)
        except TimeoutError as error:
            raise PeerGone(f"node {self.member.name} did not answer within {timeout:.1f} s") from error

    def close(self) -> None:
        """Close the line: calls fail, and the other end stops working on them."""
        self._is_closed = True
        self._opened.set()
        self._keeping.cancel()
        if self._line is not None:
            self._line.close()
        self._fail_calls()

    async def _keep_open(self) -> None:
        delay = _LEAST_BACKOFF_SECONDS
        while True:
            try:
                line = await self._connect()
            except PeerGone as error:
                log.info("node cannot be reached", peer=self.member.name, error=str(error))
                self._mesh.peer_lost(self.member)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MOST_BACKOFF_SECONDS)
                continue
            delay = _LEAST_BACKOFF_SECONDS
            self._line = line
            self._opened.set()
            await self._lost.wait()
            self._mesh.peer_lost(self.member)

    async def _connect(self) -> Line:
        host, _, port = self.member.address.rpartition(":")
        welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        nonce = secrets.token_bytes(16)
        self._lost.clear()

        def on_frame(line: Line, message: object) -> None:
            match message:
                case Challenge(theirs) if theirs and not line.nonce:
                    line.nonce = theirs
                    proof = self._mesh.prove(b"caller", theirs, nonce, self.member.incarnation)
                    line.send(Proof(self._mesh.name, self.member.incarnation, nonce, proof))
                case Welcome(proof) if line.nonce and not line.is_trusted:
                    wanted = self._mesh.prove(b"called", nonce, line.nonce, self.member.incarnation)
                    if not hmac.compare_digest(proof, wanted):
                        line.close()
                        return
                    line.trust()
                    if not welcomed.done():
                        welcomed.set_result(None)
                case Answer(number, body) if line.is_trusted:
                    self._answered(number, body)
                case _:
                    line.break_off(f"a {type(message).__name__} is out of place")

        def on_lost(line: Line) -> None:
            if not welcomed.done():
                welcomed.set_exception(ConnectionResetError("the line was closed"))
            if self._line is line:
                self._line = None
                self._opened.clear()
                self._fail_calls()
            self._lost.set()

        line: Line | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                _, line = await asyncio.get_running_loop().create_connection(
                    lambda: Line(on_frame, on_lost), host, int(port)
                )
                await welcomed
        except (OSError, TimeoutError) as error:
            welcomed.cancel()
            if line is not None:
                line.close()
            raise PeerGone(str(error) or type(error).__name__) from error
        except asyncio.CancelledError:
            if line is not None:
                line.close()
            raise
        return line

    def _answered(self, number: int, body: bytes | None) -> None:
        verb, answer = self._calls.pop(number, ("", None))
        if answer is None:
            return
        if answer.done():
            self._deliver_late(verb, body)
        else:
            answer.set_result(body)

    def _deliver_late(self, verb: str, body: bytes | None) -> None:
        if body is None:
            return
        try:
            self._mesh.undelivered(verb, body)
        except UNREADABLE as error:
            log.warning("answer of another node cannot be read", verb=verb, peer=self.member.name, error=str(error))

    def _fail_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for _, answer in calls.values():
            if not answer.done():
                answer.set_exception(PeerGone(f"the line to node {self.member.name} broke"))
                # The waiting caller may be gone.
                answer.exception()


class Ending:
    """A running call that can be ended."""

    def __init__(self, line: Line, number: int) -> None:
        self._line = line
        self._number = number

    def end(self) -> None:
        """Ask for the answer now, whatever has been done."""
        self._line.send(End(self._number))


class Mesh:
    """One node's end of all lines."""

    def __init__(
        self,
        name: str,
        secret: bytes,
        handle: Handler,
        undelivered: Undelivered,
        *,
        on_called: Callable[[], None],
        on_lost: Callable[[Member], None],
    ) -> None:
        self.name = name
        self._secret = secret
        self._handle = handle
        #: Called with answers that came when nobody waited for them any more.
        self.undelivered = undelivered
        self._on_called = on_called
        self.peer_lost = on_lost
        self._peers: dict[str, Peer] = {}
        self._server: asyncio.Server | None = None
        self._incarnation: int | None = None
        self._working: dict[Line, dict[int, asyncio.Task[None]]] = {}
        #: Lines that have proved nothing yet, and the timer that closes each of them.
        self._greeting: dict[Line, asyncio.TimerHandle] = {}

    async def listen(self, host: str = "127.0.0.1") -> str:
        """Listen on a free port. Return the address for the other nodes."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._welcome, host, 0)
        bound_host, port = self._server.sockets[0].getsockname()[:2]
        return f"{bound_host}:{port}"

    def be(self, incarnation: int) -> None:
        """Set this node's own incarnation: calls for another one are refused."""
        self._incarnation = incarnation

    def meet(self, members: Iterable[Member]) -> None:
        """Keep lines to these nodes and to no others."""
        wanted = {member.name: member for member in members if member.name != self.name}
        for name, peer in list(self._peers.items()):
            if wanted.get(name) != peer.member:
                del self._peers[name]
                peer.close()
        for name, member in wanted.items():
            if name not in self._peers:
                self._peers[name] = Peer(self, member)

    def part(self, member: Member) -> None:
        """Keep no line to this node any more: calls to it fail at once."""
        peer = self._peers.get(member.name)
        if peer is not None and peer.member == member:
            del self._peers[member.name]
            peer.close()

    def peer(self, name: str) -> Peer:
        found = self._peers.get(name)
        if found is None:
            raise PeerGone(f"node {name} is gone")
        return found

    def peers(self) -> list[Peer]:
        return list(self._peers.values())

    async def close(self) -> None:
        self.meet(())
        if self._server is not None:
            self._server.close()
        tasks = [task for tasks in self._working.values() for task in tasks.values()]
        for line in [*self._greeting, *self._working]:
            line.close()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        if self._server is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 5.0)

    def prove(self, role: bytes, asked: bytes, own: bytes, incarnation: int) -> bytes:
        """Compute a proof of the secret for this greeting: neither end can reuse the proof of the other."""
        said = f"duetime {role.decode()} {asked.hex()} {own.hex()} {incarnation}"
        return hmac.digest(self._secret, said.encode(), "sha256")

    # Incoming calls

    def _welcome(self) -> asyncio.Protocol:
        return Line(self._called, self._let_go, self._challenge)

    def _challenge(self, line: Line) -> None:
        if len(self._greeting) >= MAX_GREETING:
            oldest = next(iter(self._greeting))
            self._greeting.pop(oldest).cancel()
            oldest.close()
        line.nonce = secrets.token_bytes(16)
        self._greeting[line] = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, line.close)
        line.send(Challenge(line.nonce))

    def _called(self, line: Line, message: object) -> None:
        match message:
            case Proof(_, wanted, nonce, proof) if not line.is_trusted:
                right = self.prove(b"caller", line.nonce, nonce, wanted)
                if wanted != self._incarnation or not hmac.compare_digest(proof, right):
                    line.close()
                    return
                line.trust()
                self._greeting.pop(line).cancel()
                self._working[line] = {}
                line.send(Welcome(self.prove(b"called", nonce, line.nonce, wanted)))
                self._on_called()
            case Call(number, verb, body) if line.is_trusted and number not in self._working[line]:
                work = asyncio.create_task(self._work(line, number, verb, body), name=f"call {verb}")
                self._working[line][number] = work
            case End(number) if line.is_trusted:
                found = self._working[line].get(number)
                if found is not None:
                    # Cancel only after it has begun, or there would be no answer.
                    asyncio.get_running_loop().call_soon(found.cancel)
            case _:
                line.break_off(f"a {type(message).__name__} is out of place")

    async def _work(self, line: Line, number: int, verb: str, body: bytes) -> None:
        answer: bytes | None = None
        try:
            answer = await self._handle(verb, body)
        except asyncio.CancelledError:
            # The caller ended it and gets an empty answer; the handler undoes what was done.
            pass
        except Unavailable as error:
            log.info("call of another node failed", verb=verb, error=str(error))
        except UNREADABLE as error:
            log.warning("call of another node cannot be read", verb=verb, error=str(error))
        except Exception:
            log.exception("call of another node failed", verb=verb)
        finally:
            self._working.get(line, {}).pop(number, None)
        if not line.send(Answer(number, answer)) and answer is not None:
            self.undelivered(verb, answer)

    def _let_go(self, line: Line) -> None:
        if (closing := self._greeting.pop(line, None)) is not None:
            closing.cancel()
        for work in self._working.pop(line, {}).values():
            work.cancel()
