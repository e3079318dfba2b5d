"""One poll of a worker, and all that may end it before it has an answer."""

import asyncio

from duetime.admin.keys import Caller
from duetime.errors import Unauthorized


class LeasePoll:
    """A question that waits for its answer, and may be ended before."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self.is_ended = False
        self.is_left = False
        #: Its key has ended, or allows something else: it gets no task.
        self.is_void = False
        self._has_key = True

    def begin(self) -> None:
        """It waits in the task that calls this."""
        self._task = asyncio.current_task()

    def end(self) -> None:
        if self._task is not None and not self.is_ended:
            self.is_ended = True
            self._task.cancel()

    def judge(self, caller: Caller | None) -> None:
        """Its key is not what it was when it began."""
        self.is_void = True
        self._has_key = self._has_key and caller is not None
        self.end()

    def check(self) -> None:
        """Raise if its key has ended; one whose key changed is answered empty, and judged when it asks again."""
        if not self._has_key:
            raise Unauthorized("the API key was revoked or has expired while this call waited")

    def leave(self, _: object) -> None:
        """The client has gone."""
        if self._task is not None:
            self.is_left = True
            self.end()

    def close(self) -> None:
        """It has its answer, or was ended; from here on the task does other things."""
        if self.is_ended and self._task is not None:
            self._task.uncancel()
        self._task = None
