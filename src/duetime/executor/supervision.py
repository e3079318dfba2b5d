"""The executor of a node: a new one replaces one that breaks, and what the broken one held lapses.

An executor may outlive the parts that started it: when the database has failed over,
its calls go on, and are reported to the parts that follow.
"""

import asyncio
from collections.abc import Callable

from duetime.executor.executor import Executor
from duetime.service import Background

#: The loops of an executor that has stopped end within this.
_END_SECONDS = 5.0


class ExecutorSupervisor:
    def __init__(self, make: Callable[[], Executor]) -> None:
        self._make = make
        self._executor = make()
        self._running: asyncio.Task[None] | None = None
        self._is_retired = False
        self._background = Background("executor", self._run)

    @property
    def trouble(self) -> str | None:
        return self._background.trouble

    async def start(self) -> None:
        self._background.start()

    async def stop(self, deadline_seconds: float) -> None:
        """Let calls end within the deadline, and release the rest."""
        if not self._is_retired:
            await self._executor.stop(deadline_seconds)
            await self._background.stop(_END_SECONDS)

    def retire(self) -> tuple[Executor, asyncio.Task[None]] | None:
        """The executor, whose calls go on without these parts; None if there is none."""
        self._is_retired = True
        self._executor.retire()
        self._background.cancel()
        return None if self._running is None or self._running.done() else (self._executor, self._running)

    def forget_secrets(self) -> None:
        """Forget the signing secrets, so that they are read again: one was rotated."""
        self._executor.forget_secrets()

    async def _run(self) -> None:
        if self._running is not None:
            self._executor = self._make()
        self._running = asyncio.create_task(self._executor.run(), name="executor")
        # The executor outlives these parts when the database fails over.
        await asyncio.shield(self._running)
