"""One of several node processes that share a port: started, watched and stopped by `supervise`.

    python -m duetime.child

It reads its settings from standard input, because they hold a password.  Over a
socket pair it reports its state and gets its connections.  Only the supervisor
holds the other end of that pair: when it closes, the supervisor is gone, and this
process ends by itself.
"""

import asyncio
import errno
import os
import socket
import sys
import threading

import msgspec
import structlog
import uvloop

from duetime.config import Config
from duetime.database.pool import Database
from duetime.errors import DuetimeError
from duetime.serve import Node, Sharing
from duetime.stopping import stop_when, watch_signals
from duetime.telemetry import set_up_logs

log = structlog.get_logger()
READY, STOPPING = b"r", b"s"
#: Without a supervisor, a stop is cut off when it takes this much longer than its own deadline.
_ORPHAN_SECONDS = 15.0


class Order(msgspec.Struct, frozen=True):
    """The settings that the supervisor sends to a process at its start."""

    config: Config
    database_url: str
    cluster: str
    secret: bytes
    #: This process's end of the socket pair.
    channel: int


class Channel:
    """The socket to the supervisor."""

    def __init__(self, channel: socket.socket, node: Node, signalled: asyncio.Event) -> None:
        self._channel = channel
        self._node = node
        self._signalled = signalled
        channel.setblocking(False)
        asyncio.get_running_loop().add_reader(channel.fileno(), self._read)

    def say(self, word: bytes) -> None:
        try:
            self._channel.send(word)
        except OSError:
            # The supervisor is gone; reading shows that too.
            return

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()

    def _read(self) -> None:
        try:
            # One byte for each connection: the descriptor that comes with a byte belongs to it.
            said, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            said, descriptors = b"", []
        if not said:
            self._orphaned()
            return
        for descriptor in descriptors:
            self._node.adopt(socket.socket(fileno=descriptor))
        if not descriptors:
            # The system drops a descriptor when this process has no room for it.
            self._node.connections.note_accept_error(os.strerror(errno.EMFILE))

    def _orphaned(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        if self._signalled.is_set():
            # A supervisor that ends before this process does not want to wait.
            os._exit(1)
        log.warning("the supervisor is gone")
        watchdog = threading.Timer(self._node.config.shutdown_seconds + _ORPHAN_SECONDS, os._exit, [1])
        watchdog.daemon = True
        watchdog.start()
        self._signalled.set()


async def run(order: Order) -> None:
    signalled = watch_signals()
    database = await Database.open(order.database_url, size=order.config.database_connections)
    node = Node(order.config, database, None, Sharing(order.cluster, order.secret))
    channel = Channel(socket.socket(fileno=order.channel), node, signalled)
    await node.start()
    channel.say(READY)
    await signalled.wait()
    channel.say(STOPPING)
    await stop_when(signalled, node)
    channel.close()


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    set_up_logs(order.config.log_format, order.config.log_level, order.config.node_name or "")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(order))
    except DuetimeError as error:
        log.error("the node process cannot run", error=error.detail)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
