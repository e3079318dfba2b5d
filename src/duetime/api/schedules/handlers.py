"""Schedules: make, read, steer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import get_args

import msgspec

from duetime.admin.keys import Caller
from duetime.api.auth import need_reach, need_type
from duetime.api.named import name_in_path
from duetime.api.problems import with_more, wrong_with_each
from duetime.api.reach import Reach
from duetime.api.schedules import operations, views
from duetime.api.schedules.queries import (
    make_name_cursor,
    read_choice,
    read_moment_cursor,
    read_name_cursor,
    read_text,
)
from duetime.api.schedules.reading import check_name, read_schedule, read_times, wrong_with_schedule
from duetime.api.schedules.rendering import batch_answer, fires, next_count, view_of
from duetime.api.schedules.schemas import (
    MAX_NAME,
    MAX_PREVIEW,
    MAX_SOURCE,
    MAX_VERSION,
    BackfillRequest,
    NameAlone,
    NamedScheduleRequest,
    NoteRequest,
    PreviewRequest,
    RawScheduleBatch,
    SchedulePolicies,
    ScheduleRequest,
    TemplateRequest,
    TriggerRequest,
)
from duetime.api.server.http import Answer, Request, Route, decode_json, json_answer, make_decoder
from duetime.api.tasks.filters import read_flag, read_number, read_page, read_time
from duetime.api.tasks.handlers import read_request_key
from duetime.api.tasks.judging import Judging
from duetime.clock import from_ms, to_ms_rounded_up
from duetime.database.pool import Database
from duetime.errors import Conflict, DuetimeError, InvalidInput, NotFound
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.schedules.backfill import Backfills
from duetime.lifecycle.schedules.changes import Put, Schedules
from duetime.lifecycle.schedules.stored import NewSchedule, StoredSchedule
from duetime.lifecycle.tasks.state import read_states
from duetime.model.schedule import Origin, ScheduleBody, ScheduleState, decode_body
from duetime.recurrence import Recurrence
from duetime.views.runs import read_ends
from duetime.views.tasks import OVER

#: Stands for the name of a schedule that is only previewed.
_PREVIEWED = "a.preview"
#: After this many items of a batch, other requests are served.
_ITEMS_AT_ONCE = 100
#: After this many bytes as well, if the items are large.
_BYTES_AT_ONCE = 256 * 1024

_decode_schedule = make_decoder(ScheduleRequest)
_decode_batch = make_decoder(RawScheduleBatch)
_decode_item = make_decoder(NamedScheduleRequest)
_decode_name = make_decoder(NameAlone)
_decode_preview = make_decoder(PreviewRequest)
_decode_note = make_decoder(NoteRequest)
_decode_trigger = make_decoder(TriggerRequest)
_decode_backfill = make_decoder(BackfillRequest)


@dataclass(frozen=True)
class ScheduleCalls:
    database: Database
    schedules: Schedules
    backfills: Backfills
    judging: Judging
    lanes: Lanes
    reach: Reach

    def routes(self) -> list[Route]:
        return [
            Route(operations.PUT, self.put),
            Route(operations.PUT_BATCH, self.put_batch),
            Route(operations.PREVIEW, self.preview),
            Route(operations.LIST, self.page),
            Route(operations.GET, self.get),
            Route(operations.DELETE, self.delete),
            Route(operations.PAUSE, self.pause),
            Route(operations.RESUME, self.resume),
            Route(operations.TRIGGER, self.trigger),
            Route(operations.BACKFILL, self.backfill),
            Route(operations.BACKFILLS, self.list_backfills),
            Route(operations.GET_BACKFILL, self.get_backfill),
            Route(operations.CANCEL_BACKFILL, self.cancel_backfill),
            Route(operations.RUNS, self.list_runs),
            Route(operations.PREVIEW_STORED, self.preview_stored),
        ]

    # Making

    async def put(self, request: Request) -> Answer:
        request.query()
        caller, name, tenant = request.caller, request.path["name"], request.caller.tenant
        judge = partial(self._judge, caller, name)
        asked = await request.json(_decode_schedule, judge=judge)
        try:
            schedule = await self._read(caller, name, asked, asked.task)
            [done] = await self.schedules.put(tenant, [schedule], check=self._check_for(caller))
            if isinstance(done, DuetimeError):
                raise done
        except InvalidInput as error:
            raise with_more(error, lambda: judge(asked)) from error
        view = await self._view(await self.schedules.find(tenant, name))
        return json_answer(201 if done.word == "created" else 200, view)

    async def put_batch(self, request: Request) -> Answer:
        is_trial = read_flag(request.query(), "dry_run")
        asked = await request.json(_decode_batch)
        caller, tenant = request.caller, request.caller.tenant
        items: list[NamedScheduleRequest | None] = []
        results: list[NewSchedule | Put | DuetimeError] = []
        names: list[str] = []
        judge = partial(self._judge_item, caller)
        size = 0
        for raw in asked.items:
            size += len(bytes(raw)) + _BYTES_AT_ONCE // _ITEMS_AT_ONCE
            if size > _BYTES_AT_ONCE:
                size = 0
                await asyncio.sleep(0)
            names.append(_name_of(bytes(raw)))
            item = None
            try:
                item = decode_json(_decode_item, bytes(raw), judge)
                if item.name in names[:-1]:
                    raise InvalidInput.at("name", f"{item.name} stands twice in this batch")
                results.append(await self._read(caller, item.name, item, item.task))
            except DuetimeError as error:
                results.append(error)
                # Finding everything that is wrong takes longer, so other requests are served after each such item.
                await request.turns.give_way()
            items.append(item)
        good = [each for each in results if isinstance(each, NewSchedule)]
        check = self._check_for(caller)
        done = iter(await self.schedules.put(tenant, good, is_trial=is_trial, check=check) if good else [])
        ended = [next(done) if isinstance(each, NewSchedule) else each for each in results]
        for place, (item, end) in enumerate(zip(items, ended, strict=True)):
            if item is not None and isinstance(end, InvalidInput):
                ended[place] = with_more(end, partial(judge, item))
                await request.turns.give_way()
        return json_answer(200, batch_answer(names, ended))

    async def preview(self, request: Request) -> Answer:
        request.query()
        caller, tenant = request.caller, request.caller.tenant

        def judge(some: PreviewRequest) -> None:
            self._judge(caller, _PREVIEWED if some.name is None else some.name, some)

        asked = await request.json(_decode_preview, judge=judge)
        try:
            name = _PREVIEWED if asked.name is None else check_name(asked.name)
            task = asked.task
            body = read_times(asked) if task is None else (await self._read(caller, name, asked, task)).body
            if body.spec.after is not None:
                raise InvalidInput.at(
                    "spec.after", "has no times of its own: each run follows the end of the one before"
                )
            recurrence = await self.schedules.compile(tenant, name, body)
        except InvalidInput as error:
            raise with_more(error, lambda: judge(asked)) from error
        from_ms = self.database.clock.now_ms() if asked.from_ is None else to_ms_rounded_up(asked.from_)
        lines = await self.schedules.preview(tenant, recurrence, from_ms + 1, asked.count)
        return json_answer(200, views.PreviewView(recurrence.words, fires(lines)))

    async def _read(self, caller: Caller, name: str, asked: SchedulePolicies, task: TemplateRequest) -> NewSchedule:
        """The requested schedule, if the caller reaches its tasks."""
        # Errors in a payload would reveal the schema of its type.
        need_type(caller, task.type)
        tenant, now = caller.tenant, self.database.clock.now()
        schedule = await self.judging.one(tenant, lambda reader: read_schedule(reader, tenant, name, asked, task, now))
        need_reach(caller, schedule.task.type, schedule.task.lane.queue)
        return schedule

    def _check_for(self, caller: Caller) -> Callable[[StoredSchedule], None] | None:
        """Return a check of an existing schedule before the caller replaces it."""

        def check(stored: StoredSchedule) -> None:
            if not self._is_reached(caller, stored):
                raise Conflict(f"there is a schedule {stored.name} that this API key does not reach; take another name")

        return check if caller.is_confined else None

    def _is_reached(self, caller: Caller, schedule: StoredSchedule) -> bool:
        """Whether the key reaches the tasks that the schedule makes."""
        if not caller.is_confined:
            return True
        lane = self.lanes.key_of(schedule.task_lane)
        return lane is not None and caller.may_use(schedule.task_type, lane.queue)

    def _judge_item(self, caller: Caller, item: NamedScheduleRequest) -> None:
        self._judge(caller, item.name, item)

    def _judge(self, caller: Caller, name: str, asked: ScheduleRequest | PreviewRequest) -> None:
        """Raise everything that is wrong with a schedule that is refused."""
        if asked.task is not None:
            need_type(caller, asked.task.type)
        errors = wrong_with_schedule(self.judging.reader, caller.tenant, name, asked, self.database.clock.now())
        if errors:
            raise InvalidInput.all(errors)

    # Reading

    async def page(self, request: Request) -> Answer:
        query = request.query()
        cursor, limit = read_page(query)
        state = read_choice(query, "state", tuple(ScheduleState))
        caller, within = request.caller, request.caller.confinement
        task_lanes = None
        if within is not None and within.queues:
            lanes = await self.lanes.of_tenant(caller.tenant)
            task_lanes = [lane for lane, key in lanes.items() if within.has_queue(key.queue)]
        found, has_more = await self.schedules.page(
            caller.tenant,
            after=read_name_cursor(cursor),
            limit=limit,
            prefix=read_text(query, "prefix", MAX_NAME),
            origin=read_choice(query, "origin", get_args(Origin)),
            source=read_text(query, "source", MAX_SOURCE),
            state=None if state is None else ScheduleState(state),
            types=None if within is None else within.type_likes,
            task_lanes=task_lanes,
        )
        shown: list[views.ScheduleView] = []
        size = 0
        for each in found:
            shown.append(view_of(each))
            size += len(each.definition)
            if size > _BYTES_AT_ONCE:
                # Large schedules take time to read.
                size = 0
                await asyncio.sleep(0)
        following = make_name_cursor(found[-1].name) if has_more else None
        return json_answer(200, views.SchedulePage(shown, following))

    async def get(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, await self._view(await self._find(request)))

    async def preview_stored(self, request: Request) -> Answer:
        query = request.query()
        count = read_number(query, "count", MAX_PREVIEW) or 10
        from_ms = read_time(query, "from")
        _, recurrence = await self.schedules.recurrence(await self._find(request))
        start_ms = self.database.clock.now_ms() if from_ms is None else from_ms
        lines = await self.schedules.preview(request.caller.tenant, recurrence, start_ms + 1, count)
        return json_answer(200, views.PreviewView(recurrence.words, fires(lines)))

    async def list_runs(self, request: Request) -> Answer:
        query = request.query()
        cursor, limit = read_page(query)
        schedule = await self._find(request)
        rows = await self.schedules.read_runs(schedule, read_moment_cursor(cursor), limit + 1)
        tasks = [row["task"] for row in rows[:limit] if row["task"] is not None]
        if request.caller.is_confined:
            tasks = list(await self.reach.of_tasks(request.caller, tasks))
        states = await read_states(self.database, tasks) if tasks else {}
        ends = await read_ends(self.database, [task for task, state in states.items() if state in OVER])
        items = [views.run_view(row, states.get(row["task"]), ends.get(row["task"])) for row in rows[:limit]]
        if request.caller.is_confined:
            # The schedule's tasks may have had another type before.
            items = [msgspec.structs.replace(each, task=each.task if each.task in tasks else None) for each in items]
        following = str(rows[limit - 1]["moment"]) if len(rows) > limit else None
        return json_answer(200, views.RunPage(items, following))

    async def _find(self, request: Request) -> StoredSchedule:
        name = name_in_path(request, "schedule")
        schedule = await self.schedules.find(request.caller.tenant, name)
        if request.caller.is_confined:
            # Another node may have made the lane a moment ago.
            await self.lanes.resolve(schedule.task_lane)
        if not self._is_reached(request.caller, schedule):
            raise NotFound(f"there is no schedule {name[:80]}")
        return schedule

    async def _view(self, schedule: StoredSchedule) -> views.ScheduleView:
        view = view_of(schedule)
        try:
            body, recurrence = await self.schedules.recurrence(schedule)
            view.words = recurrence.words
            if schedule.state is ScheduleState.ACTIVE and schedule.next_ms is not None:
                view.next_fires = await self._next_fires(schedule, schedule.next_ms, body, recurrence)
            else:
                view.next_fires = []
        except InvalidInput:
            # Its zone or a calendar is gone, or it takes too long to evaluate; the note says so from its next turn on.
            return view
        return view

    async def _next_fires(
        self, schedule: StoredSchedule, next_ms: int, body: ScheduleBody, recurrence: Recurrence
    ) -> list[views.FireView]:
        if body.spec.after is not None:
            # Later fires are counted from the ends of runs that have not begun.
            return [views.FireView(from_ms(next_ms), recurrence.local(next_ms), None)]
        now_ms = self.database.clock.now_ms()
        count = next_count(schedule, body, now_ms)
        from_next_ms = min(next_ms, now_ms + 1)
        return fires(await self.schedules.upcoming(schedule.tenant, body, recurrence, from_next_ms, count))

    # Steering

    async def delete(self, request: Request) -> Answer:
        query = request.query()
        await request.no_body()
        tasks = read_choice(query, "tasks", ("keep", "cancel"))
        version = read_number(query, "version", MAX_VERSION)
        schedule = await self._find(request)
        cancelled = await self.schedules.delete(
            schedule.tenant,
            schedule.name,
            expected_version=version,
            cancels=tasks == "cancel",
            reached=partial(self.reach.of_tasks, request.caller) if request.caller.is_confined else None,
        )
        return json_answer(200, views.DeletedView(schedule.name, cancelled))

    async def pause(self, request: Request) -> Answer:
        request.query()
        asked = await request.json_or_nothing(_decode_note, NoteRequest())
        schedule = await self._find(request)
        return json_answer(
            200, await self._view(await self.schedules.pause(schedule.tenant, schedule.name, asked.note))
        )

    async def resume(self, request: Request) -> Answer:
        request.query()
        asked = await request.json_or_nothing(_decode_note, NoteRequest())
        schedule = await self._find(request)
        resumed = await self.schedules.resume(schedule.tenant, schedule.name, asked.note)
        return json_answer(200, await self._view(resumed))

    async def trigger(self, request: Request) -> Answer:
        request.query()
        asked = await request.json_or_nothing(_decode_trigger, TriggerRequest())
        schedule = await self._find(request)
        as_of_ms = None if asked.as_of is None else _past_ms(asked.as_of, self.database.clock.now_ms())
        key = read_request_key(request.headers, self.database.clock.now())
        task, nominal_ms = await self.schedules.trigger(schedule.tenant, schedule.name, as_of_ms, key)
        return json_answer(202, views.TriggeredView(task, from_ms(nominal_ms)))

    async def backfill(self, request: Request) -> Answer:
        request.query()
        asked = await request.json(_decode_backfill, judge=_check_range)
        schedule = await self._find(request)
        if decode_body(schedule.definition).spec.after is not None:
            raise InvalidInput("a schedule with `after` has no past times to fill")
        _check_range(asked)
        start_ms, end_ms = _ms("from", asked.from_), _ms("to", asked.to)
        key = read_request_key(request.headers, self.database.clock.now())
        return json_answer(202, await self.backfills.start(schedule, start_ms, end_ms, asked.rate, key))

    async def list_backfills(self, request: Request) -> Answer:
        request.query()
        found = await self.backfills.of(await self._find(request))
        return json_answer(200, views.BackfillPage([*found], None))

    async def get_backfill(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, await self.backfills.find(await self._find(request), _backfill_id(request)))

    async def cancel_backfill(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        return json_answer(200, await self.backfills.cancel(await self._find(request), _backfill_id(request)))


def _name_of(item: bytes) -> str:
    """The name under which its result is reported; empty if it has none."""
    try:
        return decode_json(_decode_name, item).name
    except DuetimeError:
        return ""


def _ms(path: str, instant: datetime) -> int:
    try:
        moment = to_ms_rounded_up(instant)
    except (OverflowError, ValueError) as error:
        raise InvalidInput.at(path, "is not a time within the years 1970 to 9999") from error
    if moment < 0:
        raise InvalidInput.at(path, "lies before 1970")
    return moment


def _check_range(asked: BackfillRequest) -> None:
    if errors := wrong_with_each(partial(_ms, "from", asked.from_), partial(_ms, "to", asked.to)):
        raise InvalidInput.all(errors)


def _past_ms(instant: datetime, now_ms: int) -> int:
    moment = _ms("as_of", instant)
    if moment > now_ms:
        raise InvalidInput.at("as_of", "must not lie in the future")
    return moment


def _backfill_id(request: Request) -> int:
    text = request.path["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise NotFound(f"there is no backfill {text[:40]}")
    return int(text)
