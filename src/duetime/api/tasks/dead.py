"""Dead letters: list them, give them another chance, or drop them."""

import uuid
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from duetime.api.bodies.answers import DropAnswer, RedriveAnswer
from duetime.api.bodies.requests import DropRequest, RedriveRequest
from duetime.api.reach import Reach
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks import dead_operations as operations
from duetime.api.tasks.filters import filter_of, read_list, within
from duetime.database.pool import Database
from duetime.errors import InvalidInput
from duetime.lifecycle.admission.room import BOUNDLESS, Room
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.tasks.steer import Steering
from duetime.views.dead import dead_ids, list_dead
from duetime.views.filters import TaskFilter
from duetime.views.patience import Patience

Ids = list[uuid.UUID]
_decode_redrive = make_decoder(RedriveRequest)
_decode_drop = make_decoder(DropRequest)


@dataclass(frozen=True)
class DeadLetters:
    database: Database
    lanes: Lanes
    steering: Steering
    reach: Reach
    patience: Patience = field(default_factory=Patience)
    room: Room = BOUNDLESS

    def routes(self) -> list[Route]:
        return [
            Route(operations.LIST, self.list),
            Route(operations.REDRIVE, self.redrive),
            Route(operations.DROP, self.drop),
        ]

    async def list(self, request: Request) -> Answer:
        query = request.query()
        caller = request.caller
        wanted, cursor, limit = read_list(query, caller)
        page = await list_dead(
            self.database,
            self.lanes,
            caller.tenant,
            caller.tenant_name,
            wanted,
            cursor,
            limit,
            patience=self.patience,
        )
        return json_answer(200, page)

    async def redrive(self, request: Request) -> Answer:
        request.query()
        asked = await request.json(_decode_redrive, judge=_check_filter)
        ids, following = await self._find(request, asked)
        tenant = request.caller.tenant
        # Named letters are redriven all or none; of a filter, as many as there is room for.
        granted = await self.room.make_room(tenant, [0] * len(ids), is_whole=asked.ids is not UNSET)
        changed = 0
        try:
            if granted.refusal is not None:
                if not granted.most:
                    raise granted.refusal
                ids, following = await self._find(request, msgspec.structs.replace(asked, limit=granted.most))
            verdicts = await self.steering.redrive(ids, asked.rate) if ids else {}
            changed = sum(verdict.changed for verdict in verdicts.values())
        finally:
            self.room.give_back(tenant, granted.most - changed)
        return json_answer(200, RedriveAnswer(len(ids), changed, following))

    async def drop(self, request: Request) -> Answer:
        request.query()
        asked = await request.json(_decode_drop, judge=_check_filter)
        ids, following = await self._find(request, asked)
        verdicts = await self.steering.drop(ids) if ids else {}
        changed = sum(verdict.changed for verdict in verdicts.values())
        return json_answer(200, DropAnswer(len(ids), changed, following))

    async def _find(self, request: Request, asked: DropRequest) -> tuple[Ids, str | None]:
        """The chosen ids that belong to the tenant, and the cursor of the next page."""
        if (asked.ids is not UNSET) + (asked.filter is not UNSET) + (asked.all is True) != 1:
            raise InvalidInput("give exactly one of ids, filter, and all: true")
        caller = request.caller
        if asked.ids is not UNSET:
            if asked.cursor is not None:
                raise InvalidInput.at("cursor", "not with ids")
            reached = await self.reach.of_tasks(caller, asked.ids)
            return [task for task in asked.ids if task in reached], None
        wanted = within(TaskFilter() if asked.filter is UNSET else filter_of(asked.filter), caller)
        return await dead_ids(
            self.database, self.lanes, caller.tenant, wanted, asked.cursor, asked.limit, patience=self.patience
        )


def _check_filter(asked: DropRequest) -> None:
    """Raise the errors in the values of a request that is wrong in another way as well."""
    if asked.filter is not UNSET:
        filter_of(asked.filter)
