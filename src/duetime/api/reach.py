"""Which tasks a confined key reaches: those whose queue and type fit its patterns.

Everything else is not there for it, as the tasks of other tenants are not.  A
key without patterns is never judged here, so it pays nothing.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from duetime.admin.keys import Caller
from duetime.database.pool import Database
from duetime.ids import lane_of
from duetime.lifecycle.lanes import Lanes
from duetime.model.task import LaneKey
from duetime.views.tasks import lane_key, read_types


@dataclass(frozen=True)
class Reach:
    database: Database
    lanes: Lanes

    async def of_tasks(self, caller: Caller, tasks: Sequence[uuid.UUID]) -> set[uuid.UUID]:
        """Those of the tasks that the key reaches; the types are only read if the key is confined by types."""
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
