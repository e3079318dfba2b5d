"""Read tasks whose payloads take long to judge: in turns, so that other requests are served in between.

A payload that can be judged at once is.  Otherwise its schema is compiled first, off
the loop, and each judgement waits for its turn; one call of each tenant at a time
does so, so that no tenant fills the queue for turns.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from duetime.admin.schemas import JudgeLaterError, Schemas
from duetime.api.tasks.validation import SECONDS_AT_ONCE, TaskReader
from duetime.long_work import LONG_TASKS, LongWork

Item = TypeVar("Item")
Done = TypeVar("Done")


class Judging:
    def __init__(self, reader: TaskReader, turns: LongWork | None = None) -> None:
        self.reader = reader
        self._patient = reader.made_patient()
        self._turns = turns or LongWork()

    async def one(self, tenant: int, read: Callable[[TaskReader], Done]) -> Done:
        """Call `read`, which reads one task with the reader that it is given, and return its result."""
        while True:
            try:
                return read(self.reader)
            except JudgeLaterError as later:
                if later.schema.compiled is not None:
                    return await self._in_turn(tenant, later.schemas, read)
                await later.schemas.prepare(later.schema)

    async def each(self, tenant: int, items: Sequence[Item], read: Callable[[TaskReader, Item], Done]) -> list[Done]:
        """Call `read` for each item of a list, and return the results."""

        def do(reader: TaskReader, some: Sequence[Item]) -> list[Done]:
            done: list[Done] = []
            ends_at = time.perf_counter() + SECONDS_AT_ONCE
            for item in some:
                try:
                    done.append(read(reader, item))
                except JudgeLaterError:
                    if not done:
                        raise
                    break
                if time.perf_counter() >= ends_at:
                    break
            return done

        return await self.pieces(tenant, items, do)

    async def pieces(
        self, tenant: int, items: Sequence[Item], do: Callable[[TaskReader, Sequence[Item]], Sequence[Done]]
    ) -> list[Done]:
        """Call `do` for pieces of a list; each call handles as many items as it has time for, at least one."""
        if len(items) > LONG_TASKS:
            await self._turns.take()
        done: list[Done] = []
        while len(done) < len(items):
            piece = items[len(done) : len(done) + LONG_TASKS]
            try:
                done += do(self.reader, piece)
            except JudgeLaterError as later:
                if later.schema.compiled is None:
                    await later.schemas.prepare(later.schema)
                else:
                    done += await self._in_turn(tenant, later.schemas, partial(_do_first, do, piece))
                continue
            if len(done) < len(items):
                await self._turns.give_way()
        return done

    async def _in_turn(self, tenant: int, schemas: Schemas, read: Callable[[TaskReader], Done]) -> Done:
        """Read a task that takes long to judge, when it is its turn."""
        async with schemas.one_at_a_time(tenant):
            while True:
                await self._turns.give_way()
                try:
                    return read(self._patient)
                except JudgeLaterError as later:
                    await schemas.prepare_alone(later.schema)


def _do_first(
    do: Callable[[TaskReader, Sequence[Item]], Sequence[Done]], items: Sequence[Item], reader: TaskReader
) -> Sequence[Done]:
    return do(reader, items[:1])
