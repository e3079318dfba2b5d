"""Claimed tasks that no holder will run: released, or ended because their time to begin was over."""

from collections.abc import Sequence

import structlog

from duetime.errors import Unavailable
from duetime.lifecycle.tasks.onward import Claimed, End, Onward
from duetime.model.attempt import Ended
from duetime.model.task import LeasedTask, Outcome, Waiting

log = structlog.get_logger()


class Returns:
    def __init__(self, onward: Onward) -> None:
        self._onward = onward

    async def give_back(self, tasks: Sequence[LeasedTask], delay_seconds: float = 0.0) -> None:
        """Release tasks that were claimed and never handed out: they wait again, and it uses up no attempt."""
        await self._end(tasks, Ended(Outcome.RELEASED, retry_after=delay_seconds, is_certain=True))

    async def take_back(self, unwanted: Sequence[LeasedTask], late: Sequence[LeasedTask] = ()) -> None:
        """The same, with tasks that expired before they were handed out; no error if the database is away."""
        try:
            if late:
                await self._end(late, Ended(Outcome.EXPIRED))
            if unwanted:
                await self.give_back(unwanted)
        except Unavailable as error:
            # Their holders do not name them, so two beats release them.
            log.warning("claims could not be given back", error=str(error))

    async def _end(self, tasks: Sequence[LeasedTask], ended: Ended) -> None:
        await self._onward.move(
            [(_claimed(task), End(task.id, task.number, ended, never_began=True)) for task in tasks]
        )


def _claimed(task: LeasedTask) -> Claimed:
    waiting = Waiting(task.number, task.failures, task.crashes, task.releases)
    return Claimed(task.lane, task.id, task.number, task.holder, waiting, task.options, task.picked_at)
