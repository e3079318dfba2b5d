"""Several node processes on one port: start them, give them connections, restart them, stop them.

Only this process listens.  Each connection goes to the next process in turn, as
an open descriptor, so the load is spread evenly however few connections there
are; while a process is being restarted the others get all connections, and when none
is ready they wait in the port's own queue.  The processes find each other and
share the shards through the database; this one knows nothing of that.
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterable

import msgspec
import structlog

from duetime.child import READY, STOPPING, Order
from duetime.config import Config
from duetime.database.migrate import bring_up_to_date
from duetime.errors import UsageError
from duetime.listening import BACKLOG, listen, url_of
from duetime.service import Background
from duetime.telemetry import Sparing

log = structlog.get_logger()
START_SECONDS = 60.0
#: A stop waits for calls, and then for the database; it is cut off this long after its deadline.
_STOP_GRACE_SECONDS = 30.0
_LEAST_BACKOFF_SECONDS, _MOST_BACKOFF_SECONDS = 0.1, 5.0
#: A process that lived this long did not fail at its start.
_SOUND_SECONDS = 30.0


class _Child:
    """One node process, from its start to its end."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self.name = name
        self.process = process
        self.channel = channel
        self.is_ready = False
        self.is_stopping = False


class Processes:
    def __init__(self, config: Config, database_url: str, listener: socket.socket) -> None:
        self._config = config
        self._database_url = database_url
        self._listener = listener
        self._name = config.node_name or socket.gethostname()
        self._cluster = f"{self._name} {secrets.token_hex(8)}"
        self._secret = secrets.token_bytes(32)
        self._children: dict[int, _Child] = {}
        self._turn = 0
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._accepting = Background("accept connections", self._accept_for_ever)

    @classmethod
    async def open(cls, config: Config, database_url: str) -> "Processes":
        """Bind the port and migrate, once for all processes."""
        listener = listen(config.host, config.port)
        try:
            await bring_up_to_date(database_url)
        except BaseException:
            listener.close()
            raise
        return cls(config, database_url, listener)

    @property
    def url(self) -> str:
        return url_of(self._listener)

    async def start(self) -> None:
        """Start all processes; returns when every one of them is ready."""
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        places = range(1, self._config.processes + 1)
        self._tasks = [asyncio.create_task(self._keep(place), name=f"process {place}") for place in places]
        try:
            async with asyncio.timeout(START_SECONDS):
                while sum(child.is_ready for child in self._children.values()) < self._config.processes:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            await self.stop()
            raise UsageError(f"the node processes were not ready within {START_SECONDS:.0f} s; see the log") from error
        self._accepting.start()

    async def stop(self) -> None:
        """Stop all processes at once, each as a node stops; then close the port."""
        self._is_stopping = True
        # A second signal would end a process at once that is stopping already.
        self._signal(signal.SIGTERM, [child for child in self._children.values() if not child.is_stopping])
        if self._tasks:
            limit = self._config.shutdown_seconds + _STOP_GRACE_SECONDS
            _, late = await asyncio.wait(self._tasks, timeout=limit)
            if late:
                log.error("node processes do not stop and are killed", processes=len(late))
                self._signal(signal.SIGKILL, self._children.values())
                await asyncio.wait(late, timeout=5.0)
        self._accepting.cancel()
        await self._accepting.ended()
        self._listener.close()

    def _signal(self, number: signal.Signals, children: Iterable[_Child]) -> None:
        for child in children:
            if child.process.returncode is None:
                child.process.send_signal(number)

    # Keeping them

    async def _keep(self, place: int) -> None:
        """Start the process, and restart it whenever it ends."""
        delay = _LEAST_BACKOFF_SECONDS
        while not self._is_stopping:
            started_at = time.monotonic()
            try:
                child = await self._spawn(place)
            except OSError as error:
                log.error("a node process cannot be started", place=place, error=str(error))
            else:
                code = await child.process.wait()
                self._forget(place, child)
                if self._is_stopping:
                    return
                log.warning("a node process ended and is started again", process=child.name, status=code)
            if time.monotonic() - started_at > _SOUND_SECONDS:
                delay = _LEAST_BACKOFF_SECONDS
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MOST_BACKOFF_SECONDS)

    async def _spawn(self, place: int) -> _Child:
        ours, theirs = socket.socketpair()
        name = f"{self._name}-{place}"
        config = msgspec.structs.replace(self._config, node_name=name)
        order = Order(config, self._database_url, self._cluster, self._secret, theirs.fileno())
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # A file of the current folder must not replace a module.
                "-P",
                "-m",
                "duetime.child",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C in the terminal reaches only this process, which then stops the others in order.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        child = self._children[place] = _Child(name, process, ours)
        if self._is_stopping:
            process.send_signal(signal.SIGTERM)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hear, child)
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(order))
            await process.stdin.drain()
            process.stdin.close()
        except OSError:
            # It ended at once; the code that waits for it sees that.
            pass
        return child

    def _hear(self, child: _Child) -> None:
        try:
            said = child.channel.recv(16)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            asyncio.get_running_loop().remove_reader(child.channel.fileno())
            child.is_ready = False
        if READY in said:
            child.is_ready = True
        if STOPPING in said:
            child.is_stopping = True
        self._changed.set()

    def _forget(self, place: int, child: _Child) -> None:
        child.is_ready = False
        asyncio.get_running_loop().remove_reader(child.channel.fileno())
        child.channel.close()
        if self._children.get(place) is child:
            del self._children[place]
        self._changed.set()

    # Connections

    async def _accept_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        not_accepted = Sparing(1, seconds=60.0)
        while True:
            # Until a process can serve it, a connection is best left in the queue.
            while not self._takers():
                self._changed.clear()
                await self._changed.wait()
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                if (left_out := not_accepted.take()) is not None:
                    text = os.strerror(error.errno or 0)
                    log.warning("a connection cannot be accepted", error=text, left_out=left_out)
                await asyncio.sleep(0.1)
                continue
            with connection:
                while not self._hand_over(connection):
                    await asyncio.sleep(0.01)

    def _takers(self) -> list[_Child]:
        """The processes that are ready; if all are about to stop, these, because they still answer with an error."""
        ready = [child for child in self._children.values() if child.is_ready]
        return [child for child in ready if not child.is_stopping] or ready

    def _hand_over(self, connection: socket.socket) -> bool:
        takers = self._takers()
        for _ in takers:
            self._turn += 1
            child = takers[self._turn % len(takers)]
            try:
                socket.send_fds(child.channel, [b"c"], [connection.fileno()])
                return True
            except OSError:
                # Its queue is full of connections that it has not taken yet, or it has just ended.
                continue
        return False
