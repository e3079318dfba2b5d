"""One blocking HTTP/1.1 connection: the calling thread sends a request and reads its bounded answer.

Like `Connection`, it writes a request once and never again.  Nothing here takes a
lock or sends anything when it closes, so a forked process may close what it
inherited, and the connection of its parent goes on.
"""

import socket
import time

from duetime.http1.answers import AnswerReader
from duetime.http1.messages import Bounds

_PIECE_BYTES = 1 << 16


class BlockingConnection(AnswerReader):
    def __init__(self, sock: socket.socket, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._socket = sock
        #: Monotonic time until which it may be used again.
        self.usable_until = 0.0

    def exchange(self, request: bytes, deadline: float, *, is_head: bool = False) -> None:
        """Send a request and read its answer until a monotonic time; on an error raises ExchangeError and closes."""
        self.begin(is_head=is_head)
        try:
            self._send(request, deadline)
            self._receive(deadline)
        except BaseException:
            self.close()
            raise
        if self.problem is not None:
            self.close()
            raise self.problem

    def _send(self, request: bytes, deadline: float) -> None:
        try:
            self._socket.settimeout(seconds_until(deadline))
            self._socket.sendall(request)
        except TimeoutError:
            self.end_by_time()
        except OSError:
            # The server may have answered before it closed.
            self.is_broken = True

    def _receive(self, deadline: float) -> None:
        try:
            while self.is_waiting:
                self._socket.settimeout(seconds_until(deadline))
                data = self._socket.recv(_PIECE_BYTES)
                if data:
                    self.feed(data)
                else:
                    self.end_by_close(None)
        except TimeoutError:
            self.end_by_time()
        except OSError as error:
            self.end_by_close(error)

    def is_quiet(self) -> bool:
        """Whether a kept connection is still open and silent, as far as this machine knows."""
        try:
            self._socket.settimeout(0)
            # Also under TLS, whose own `recv` cannot peek.
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self.is_broken = True
        self._socket.close()
        # The parser holds our methods: without this the two keep each other alive.
        self._parser = None


def connect(host: str, port: int, until: float) -> socket.socket:
    """Connect a socket to one of a host's addresses until a monotonic time; raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem: OSError = OSError("the name has no address")
    for place, (family, _, _, _, address) in enumerate(found):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Each address gets a share of the time, so that a dead first one leaves time for the next.
            sock.settimeout(seconds_until(until) / (len(found) - place))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
    raise problem


def seconds_until(deadline: float) -> float:
    """The seconds left, for `settimeout`; raises TimeoutError when there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
