"""One poll of a worker, and everything that may end it before it has an answer."""

import asyncio

from duetime.admin.keys import Caller
from duetime.errors import Unauthorized


class LeasePoll:
    """A poll that waits for its answer, and may be ended before."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self.is_ended = False
        self.is_left = False
        #: Its key has ended, or its rights have changed: it gets no task.
        self.is_void = False
        self._has_key = True

    def begin(self) -> None:
        """Note that the calling task waits for this poll."""
        self._task = asyncio.current_task()

    def end(self) -> None:
        if self._task is not None and not self.is_ended:
            self.is_ended = True
            self._task.cancel()

    def judge(self, caller: Caller | None) -> None:
        """Note that its key has changed since the poll began."""
        self.is_void = True
        self._has_key = self._has_key and caller is not None
        self.end()

    def check(self) -> None:
        """Raise if its key has ended. After a change of the key the answer is empty; the next poll checks the key."""
        if not self._has_key:
            raise Unauthorized("the API key was revoked or has expired while this call waited")

    def leave(self, _: object) -> None:
        """Note that the client is gone."""
        if self._task is not None:
            self.is_left = True
            self.end()

    def close(self) -> None:
        """Note that it was answered or ended: from here on the task does other work."""
        if self.is_ended and self._task is not None:
            self._task.uncancel()
        self._task = None
