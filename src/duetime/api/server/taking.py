"""HTTP on a connection whose client takes its answers as fast or as slowly as it likes: the node holds one of them.

While something of an answer is left over, nothing more is read from the client,
and requests that it has sent already wait.  `Unsent` counts what is left over
and ends it.
"""

import asyncio
from typing import cast

from duetime.api.server.strict import StrictProtocol
from duetime.api.server.unsent import NOBODY, Unsent

#: The connection in a scope, if the server is ours.
LINE = "duetime.line"


class TakingProtocol(StrictProtocol):
    """Strict, and goes on when the client has taken what was sent."""

    #: Whose request is being answered, or was the last; the short way does not say.  How long its answer is.
    tenant = NOBODY
    answer_bytes = 0
    _unsent: Unsent | None = None
    #: An answer is complete, and what follows it waits until it is taken.
    _is_held = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        super().connection_made(transport)
        self._unsent = getattr(self.app, "unsent", None)
        # `pause_writing` when the system does not take all of an answer, `resume_writing` when it has.
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
