"""HTTP on a connection whose client reads its answers as fast or as slowly as it likes: the node holds one answer.

While part of an answer is unsent, nothing more is read from the client, and
requests that it has sent already wait.  `Unsent` counts the unsent bytes and
limits how long they may stay.
"""

import asyncio
from typing import cast

from duetime.api.server.strict import StrictProtocol
from duetime.api.server.unsent import NOBODY, Unsent

#: The scope's key for the connection, if the server is ours.
LINE = "duetime.line"


class TakingProtocol(StrictProtocol):
    """A strict protocol that goes on only when the client has read what was sent."""

    #: The tenant of the present or last request (the fast path does not set it), and the length of its answer.
    tenant = NOBODY
    answer_bytes = 0
    _unsent: Unsent | None = None
    #: An answer is complete, and what follows it waits until the client has read it.
    _is_held = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        super().connection_made(transport)
        self._unsent = getattr(self.app, "unsent", None)
        # The system calls `pause_writing` when it does not take all of an answer, and `resume_writing` when it has.
        transport.set_write_buffer_limits(0)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._unsent is not None:
            self._unsent.discard(self)
        super().connection_lost(exc)

    def unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def cut_off(self) -> None:
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()
        if self._unsent is not None:
            self._unsent.add(self, self.tenant or self.app.express.tenant_of(self.headers or []))

    def resume_writing(self) -> None:
        if self._unsent is not None:
            self._unsent.discard(self)
        super().resume_writing()
        if self._is_held:
            self._is_held = False
            self.on_response_complete()
        elif not self.pipeline and self._refusal is None:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        if self.flow.write_paused:
            self._is_held = True
        else:
            super().on_response_complete()

    def _start_cycle(self, method: bytes) -> None:
        super()._start_cycle(method)
        cast(dict[str, object], self.scope)[LINE] = self
