"""The verbs: one task by its id, or many by a filter.

If the task is already in the state that a verb leads to, the answer is the same as
after a change; a verb that the task's state forbids is a conflict that names the state.
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from msgspec import UNSET

from duetime.api.bodies.answers import BulkAnswer
from duetime.api.bodies.requests import BulkRequest, BulkRescheduleRequest, RescheduleRequest
from duetime.api.problems import with_more, wrong_with_each
from duetime.api.reach import Reach
from duetime.api.server.http import Answer, Handler, Request, Route, json_answer, make_decoder
from duetime.api.tasks import operations
from duetime.api.tasks.filters import filter_of, within
from duetime.api.tasks.validation import check_run_at, invalid
from duetime.clock import to_ms_rounded_up
from duetime.database.pool import Database
from duetime.errors import FieldError, InvalidInput, NotFound, Unavailable, Unknown, WrongState
from duetime.lifecycle.admission.room import BOUNDLESS, Room
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.tasks.state import read_states
from duetime.lifecycle.tasks.steer import Steering, SteerResult
from duetime.model.task import TaskState
from duetime.views.patience import Patience
from duetime.views.scan import task_ids
from duetime.views.tasks import get_task

_decode_bulk = make_decoder(BulkRequest)
_decode_bulk_reschedule = make_decoder(BulkRescheduleRequest)
_decode_reschedule = make_decoder(RescheduleRequest)

Verdicts = dict[uuid.UUID, SteerResult]
Apply = Callable[[Sequence[uuid.UUID]], Awaitable[Verdicts]]

#: States in which the verb has nothing left to do.
_ALREADY: dict[str, frozenset[TaskState]] = {
    "cancel": frozenset({TaskState.CANCELLED}),
    "pause": frozenset({TaskState.PAUSED}),
    "resume": frozenset({TaskState.SCHEDULED, TaskState.READY, TaskState.RETRYING, TaskState.RUNNING}),
    "run-now": frozenset({TaskState.READY, TaskState.RUNNING}),
    "reschedule": frozenset(),
    "retry": frozenset({TaskState.READY}),
}
_DONE = {
    "cancel": "cancelled",
    "pause": "paused",
    "resume": "resumed",
    "run-now": "run now",
    "reschedule": "rescheduled",
    "retry": "retried",
}


@dataclass(frozen=True)
class Steer:
    database: Database
    lanes: Lanes
    steering: Steering
    reach: Reach
    patience: Patience = field(default_factory=Patience)
    room: Room = BOUNDLESS

    def routes(self) -> list[Route]:
        return [Route(operation, self._one(verb)) for verb, operation in operations.VERBS.items()] + [
            Route(operation, self._many(verb)) for verb, operation in operations.BULK_VERBS.items()
        ]

    def _one(self, verb: str) -> Handler:
        async def handle(request: Request) -> Answer:
            request.query()
            task, caller = request.task_id(), request.caller
            run_at = None
            if verb == "reschedule":
                asked = await request.json(_decode_reschedule, judge=self._check_time)
                run_at = self._new_time(asked)
            else:
                await request.no_body()
            if not await self.reach.has(caller, task):
                raise NotFound(f"there is no task {task}")
            verdict = (await self._apply(verb, run_at, caller.tenant)([task]))[task]
            if verdict.state is None and not verdict.changed:
                raise NotFound(f"there is no task {task}")
            if not verdict.changed and verdict.state is not None and verdict.state not in _ALREADY[verb]:
                raise WrongState(_DONE[verb], verdict.state)
            try:
                view = await get_task(self.database, self.lanes, caller.tenant, caller.tenant_name, task)
            except Unavailable as error:
                # "Unavailable" would say that nothing was done.
                raise Unknown("it may have been done; look at the task's state before asking again") from error
            if view is None:
                raise NotFound(f"there is no task {task}")
            return json_answer(200, view)

        return handle

    def _many(self, verb: str) -> Handler:
        async def handle(request: Request) -> Answer:
            request.query()
            asked: BulkRequest
            run_at = None
            if verb == "reschedule":
                asked = reschedule = await request.json(_decode_bulk_reschedule, judge=self._check_bulk_time)
                try:
                    run_at = self._new_time(reschedule)
                except InvalidInput as error:
                    raise with_more(error, partial(filter_of, reschedule.filter)) from error
            else:
                asked = await request.json(_decode_bulk, judge=lambda some: filter_of(some.filter))
            ids, following = await task_ids(
                self.database,
                self.lanes,
                request.caller.tenant,
                within(filter_of(asked.filter), request.caller),
                asked.cursor,
                asked.limit,
                except_ms=None if run_at is None else to_ms_rounded_up(run_at),
                patience=self.patience,
            )
            verdicts = await self._apply(verb, run_at, request.caller.tenant)(ids) if ids else {}
            changed = sum(verdict.changed for verdict in verdicts.values())
            return json_answer(200, BulkAnswer(len(ids), changed, following))

        return handle

    def _apply(self, verb: str, run_at: datetime | None, tenant: int) -> Apply:
        match verb:
            case "cancel":
                return self.steering.cancel
            case "pause":
                return self.steering.pause
            case "resume":
                return self.steering.resume
            case "run-now":
                return self.steering.run_now
            case "retry":
                return partial(self._retry, tenant)
            case "reschedule" if run_at is not None:
                return lambda ids: self.steering.reschedule(ids, run_at)
            case _:
                raise AssertionError(f"no verb {verb}")

    async def _retry(self, tenant: int, ids: Sequence[uuid.UUID]) -> Verdicts:
        """Redrive dead letters with new budgets, if there is room; run tasks that wait for their next attempt now."""
        states = await read_states(self.database, ids)
        dead = [task for task in ids if states.get(task) is TaskState.DEAD]
        granted = await self.room.make_room(tenant, [0] * len(dead), is_whole=True)
        if granted.refusal is not None:
            raise granted.refusal
        verdicts: Verdicts = {}
        try:
            verdicts = await self.steering.redrive(ids)
        finally:
            redriven = sum(verdict.changed for verdict in verdicts.values())
            self.room.give_back(tenant, max(0, granted.most - redriven))
        waiting = [task for task, verdict in verdicts.items() if verdict.state is TaskState.RETRYING]
        return {**verdicts, **(await self.steering.run_now(waiting))} if waiting else verdicts

    def _new_time(self, asked: RescheduleRequest | BulkRescheduleRequest) -> datetime:
        now = self.database.clock.now()
        if (asked.run_at is UNSET) == (asked.delay is UNSET):
            raise InvalidInput.at("run_at", "give run_at or delay: exactly one of the two")
        if asked.delay is not UNSET:
            return now + timedelta(seconds=asked.delay)
        run_at = self._check_time(asked)
        assert run_at is not None
        return run_at

    def _check_bulk_time(self, asked: BulkRescheduleRequest) -> None:
        """Raise the errors in the values of a request that is wrong in another way as well."""
        errors = wrong_with_each(partial(filter_of, asked.filter), partial(self._check_time, asked))
        if errors:
            raise InvalidInput.all(errors)

    def _check_time(self, asked: RescheduleRequest | BulkRescheduleRequest) -> datetime | None:
        if asked.run_at is UNSET:
            return None
        errors: list[FieldError] = []
        run_at = check_run_at(asked.run_at, self.database.clock.now(), errors)
        if errors:
            raise invalid(errors)
        return run_at
