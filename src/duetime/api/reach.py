"""Which tasks a confined key reaches: those whose queue and type fit its patterns.

For a confined key all other tasks do not exist, just like the tasks of other tenants.
For a key without patterns this costs nothing.
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from duetime.admin.keys import Caller
from duetime.database.pool import Database
from duetime.errors import Conflict, DuetimeError, IdempotencyConflict
from duetime.ids import lane_of
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.batch import Submission, Submitted
from duetime.model.task import LaneKey
from duetime.views.tasks import lane_key, read_types


@dataclass(frozen=True)
class Reach:
    database: Database
    lanes: Lanes

    async def has(self, caller: Caller, task: uuid.UUID) -> bool:
        """Whether an id is one of the caller's tenant, and the key reaches its task."""
        if caller.is_confined:
            return bool(await self.of_tasks(caller, [task]))
        return await lane_key(self.lanes, caller.tenant, task) is not None

    async def of_tasks(self, caller: Caller, tasks: Sequence[uuid.UUID]) -> set[uuid.UUID]:
        """The tasks that the key reaches; types are only read if the key is confined by types."""
        if not caller.is_confined:
            return {task for task in tasks if await lane_key(self.lanes, caller.tenant, task) is not None}
        lanes: dict[int, LaneKey | None] = {}
        for task in tasks:
            if (lane := lane_of(task)) not in lanes:
                key = await lane_key(self.lanes, caller.tenant, task)
                lanes[lane] = key if key is not None and caller.may_use(None, key.queue) else None
        reached = {task for task in tasks if lanes[lane_of(task)] is not None}
        if not caller.types or not reached:
            return reached
        types = await read_types(self.database, list(reached))
        return {task for task, type in types.items() if caller.may_type(type)}

    def judge_of(self, caller: Caller) -> Callable[[uuid.UUID], Awaitable[bool]] | None:
        """Return a check whether the caller reaches a task; None: it reaches all of its tenant."""
        return partial(self.has, caller) if caller.is_confined else None

    async def of_submissions(self, caller: Caller, submissions: Sequence[Submission]) -> list[Submission]:
        """Results as a confined key may see them: an existing task that it does not reach becomes a conflict."""
        known = [each.id for each in submissions if isinstance(each, Submitted) and not each.is_new]
        reached = await self.of_tasks(caller, known) if known else set()
        told: list[Submission] = []
        for each in submissions:
            if isinstance(each, DuetimeError):
                told.append(without_ids(each))
            else:
                told.append(each if each.is_new or each.id in reached else stands_for_another())
        return told


def stands_for_another() -> Conflict:
    return Conflict("the key of this submission stands for a task that this API key does not reach; take another one")


def without_ids(error: DuetimeError) -> DuetimeError:
    """The error for a confined key: it may not reach the task that the error names."""
    if isinstance(error, IdempotencyConflict):
        return IdempotencyConflict("the idempotency key already stands for another task or request; take another one")
    return error
