"""Submit tasks, and read them.

Submitting is the hot path: the answer is made from the request itself, and the
database is read only when the key of a request is already known.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from duetime.admin.keys import Caller
from duetime.api.auth import need_reach, need_type
from duetime.api.bodies.answers import Accepted, BatchAnswer, BatchProblem, Rejected
from duetime.api.bodies.requests import PlainTaskRequest, TaskRequest
from duetime.api.problems import MAX_ITEM_ERRORS, ItemProblems
from duetime.api.reach import Reach, stands_for_another, without_ids
from duetime.api.server.http import (
    JSON,
    PROBLEM_JSON,
    UNREADABLE,
    Answer,
    Request,
    Route,
    UnreadableBody,
    check_text,
    encode,
    explain_unreadable,
    json_answer,
    make_decoder,
    read_uuid,
)
from duetime.api.tasks import operations
from duetime.api.tasks.batch import Unread, read_item, read_items, read_plain_items
from duetime.api.tasks.filters import read_flag, read_list, read_number_cursor, read_page
from duetime.api.tasks.judging import Judging
from duetime.api.tasks.new_views import NewViews, render_batch
from duetime.api.tasks.validation import NotPlainError, TaskReader, index_path
from duetime.database.pool import Database
from duetime.errors import (
    Conflict,
    DuetimeError,
    FieldError,
    InvalidInput,
    MalformedBody,
    NotFound,
    Overloaded,
    TooManyRequests,
    UnsupportedMediaType,
)
from duetime.ids import names_a_request
from duetime.lifecycle.admission.admission import Admission
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.batch import AllNew, Submission, Submitted
from duetime.lifecycle.submission.flow import FlowControl
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.state import read_states
from duetime.long_work import LONG_BYTES, LONG_TASKS, LongWork
from duetime.model.task import DetailedTask, NewTask, TaskState
from duetime.views.explain import LaneFeeder, explain
from duetime.views.patience import Patience
from duetime.views.tasks import get_task, list_attempts, list_tasks

REQUEST_KEY_AGE = timedelta(hours=1)
#: How far a client's clock may be ahead of the database's.
REQUEST_KEY_AHEAD = timedelta(minutes=5)
_KEY_AGE_MS, _KEY_AHEAD_MS = (each.total_seconds() * 1000 for each in (REQUEST_KEY_AGE, REQUEST_KEY_AHEAD))

_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_decoder = make_decoder(TaskRequest)


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A single submission; `request` names the request, and the fingerprint is that of its body."""

    task: NewTask
    request: uuid.UUID | None = None
    fingerprint: bytes = b""


@dataclass(frozen=True)
class Tasks:
    database: Database
    lanes: Lanes
    submitter: Submitter
    flow: FlowControl
    feeder: LaneFeeder
    judging: Judging
    admission: Admission
    reach: Reach
    turns: LongWork = field(default_factory=LongWork)
    views: NewViews = field(default_factory=NewViews)
    patience: Patience = field(default_factory=Patience)

    def routes(self) -> list[Route]:
        return [
            Route(operations.SUBMIT, self.submit),
            Route(operations.SUBMIT_BATCH, self.submit_batch),
            Route(operations.LIST, self.list),
            Route(operations.GET, self.get),
            Route(operations.LIST_ATTEMPTS, self.list_attempts),
            Route(operations.EXPLAIN, self.explain),
        ]

    async def submit(self, request: Request) -> Answer:
        request.query()
        if request.content_type() != JSON:
            raise UnsupportedMediaType(f"send {JSON}, not {request.content_type()}")
        body = await request.body()
        caller, headers = request.caller, request.headers
        try:
            asked = await self.judging.one(
                caller.tenant, lambda reader: self.read_one(reader, headers, caller, body, explains=False)
            )
        except UnreadableBody:
            async with request.explaining(body):
                asked = await self.judging.one(
                    caller.tenant, lambda reader: self.read_one(reader, headers, caller, body)
                )
        await self._admit(request.caller.tenant, [asked.task], asked.request)
        reaches = self.reach.judge_of(request.caller)
        [submission] = await self.flow.submit([asked.task], asked.request, asked.fingerprint, reaches=reaches)
        return await self.answer_one(request.caller, asked.task, submission)

    async def _admit(
        self, tenant: int, tasks: Sequence[NewTask], key: uuid.UUID | None, *, is_atomic: bool = False
    ) -> tuple[int, TooManyRequests | None]:
        """How many of the tasks may be submitted, from the first on; raises if none may.

        A repeated request is not refused: it gets its first answer again.
        """
        admitted, refusal = await self.admission.admit(tenant, tasks, is_atomic=is_atomic)
        if refusal is None:
            return admitted, None
        if isinstance(refusal, Overloaded):
            # An overloaded node does not look for the first answer.
            raise refusal
        done_before = None if key is None else await self.submitter.count_of_request(key, tenant)
        admitted = admitted if done_before is None else min(done_before, len(tasks))
        if not admitted:
            raise refusal
        return admitted, refusal

    def read_one(
        self,
        reader: TaskReader,
        headers: Mapping[bytes, bytes],
        caller: Caller,
        body: bytes,
        *,
        explains: bool = True,
    ) -> "Asked":
        """Read the submission; with `explains` false the error does not say what is wrong."""
        if not body.isascii():
            check_text(body)
        try:
            wanted = _decoder.decode(body)
        except UNREADABLE as error:
            if not explains:
                raise UnreadableBody("the body cannot be read") from error

            def judge(some: TaskRequest) -> None:
                need_type(caller, some.type)
                reader.read(some, caller.tenant, self.database.clock.now(), read_trace(headers))

            raise explain_unreadable(error, _decoder, body, judge) from error
        if is_confined := caller.is_confined:
            # Errors in a payload would reveal the schema of its type.
            need_type(caller, wanted.type)
        task = None if b"traceparent" in headers else reader.read_plain_one(wanted, caller.tenant)
        if task is None:
            task = reader.read(wanted, caller.tenant, self.database.clock.now(), read_trace(headers))
        if is_confined:
            need_reach(caller, task.type, task.lane.queue)
        if b"idempotency-key" not in headers:
            return Asked(task)
        key = read_request_key(headers, self.database.clock.now())
        return Asked(task, key, self._digest_of(body, has_secrets=task.has_secrets))

    def _digest_of(self, body: bytes, *, has_secrets: bool) -> bytes:
        """The fingerprint of a body; with secrets it uses a key, so that nobody can find the body by trying."""
        return self.judging.reader.vault.digest(body) + _digest(body) if has_secrets else _digest(body)

    async def answer_one(self, caller: Caller, task: NewTask, submission: Submission) -> Answer:
        if isinstance(submission, DuetimeError):
            raise without_ids(submission) if caller.is_confined else submission
        if not submission.is_new:
            view = await get_task(self.database, self.lanes, caller.tenant, caller.tenant_name, submission.id)
            if view is not None and not caller.may_use(view.type, view.queue):
                raise stands_for_another()
            if view is not None:
                return json_answer(200, view, _location(submission))
        return self.answer_new(caller, task, submission)

    def answer_new(self, caller: Caller, task: NewTask, submission: Submitted) -> Answer:
        view = self.views.render(task, submission, caller.tenant_name, self.database.clock.now_ms())
        return Answer(202 if submission.is_new else 200, view, headers=_location(submission))

    async def submit_batch(self, request: Request) -> Answer:
        query = request.query()
        is_atomic = read_flag(query, "atomic")
        body = await request.body()
        if len(body) > LONG_BYTES:
            await self.turns.take()
        now = self.database.clock.now()
        key = read_request_key(request.headers, now)
        tenant = request.caller.tenant
        results = await self._read_batch(request, body, now)
        await self._ensure_lanes(results)
        tasks = [each for each in results if isinstance(each, NewTask)]
        if is_atomic and len(tasks) < len(results):
            return _refuse_all(results, request.id)
        admitted, refusal = await self._admit(tenant, tasks, key, is_atomic=is_atomic)
        fingerprint = b""
        if key:
            detailed = [task for task in tasks if isinstance(task, DetailedTask)]
            fingerprint = self._digest_of(body, has_secrets=any(task.has_secrets for task in detailed))
        reaches = self.reach.judge_of(request.caller)
        submissions = await self.flow.submit(tasks[:admitted], key, fingerprint, is_atomic=is_atomic, reaches=reaches)
        if refusal is not None:
            submissions = [*submissions, *(refusal for _ in tasks[admitted:])]
        if len(submissions) > LONG_TASKS:
            await self.turns.take()
        first = submissions[0] if submissions else None
        if key is not None and isinstance(first, DuetimeError) and all(each is first for each in submissions):
            raise first
        if request.caller.is_confined:
            submissions = await self.reach.of_submissions(request.caller, submissions)
        if is_atomic and any(isinstance(each, DuetimeError) for each in submissions):
            return _refuse_all(submissions, request.id)
        return Answer(200, await self._batch_answer(results, submissions))

    async def _read_batch(self, request: Request, body: bytes, now: datetime) -> list[NewTask | DuetimeError]:
        """The tasks in order, with an error in the place of each wrong one."""
        caller, trace, content_type = request.caller, read_trace(request.headers), request.content_type()
        if trace is None and not caller.is_confined:
            plain = read_plain_items(content_type, body)
            tasks = None if plain is None else await self._read_plain(plain, caller.tenant, now)
            if tasks is not None:
                return tasks

        def read(reader: TaskReader, item: TaskRequest | Unread) -> NewTask | DuetimeError:
            def judge(wanted: TaskRequest) -> NewTask:
                need_type(caller, wanted.type)
                return reader.read(wanted, caller.tenant, now, trace)

            try:
                task = judge(read_item(item, judge) if isinstance(item, Unread) else item)
                if caller.is_confined:
                    need_reach(caller, task.type, task.lane.queue)
            except MalformedBody as error:
                if isinstance(item, Unread) and item.line is not None:
                    detail = f"line {item.line} is not JSON, so nothing was stored: {error.detail}"
                    raise MalformedBody(detail) from error
                return error.as_value()
            except DuetimeError as error:
                return error.as_value()
            return task

        items: Sequence[TaskRequest | Unread] = read_items(content_type, body)
        return await self.judging.each(caller.tenant, items, read)

    async def _read_plain(
        self, items: Sequence[PlainTaskRequest], tenant: int, now: datetime
    ) -> list[NewTask | DuetimeError] | None:
        """All the tasks; None: one of them is not plain after all."""
        try:
            return await self.judging.pieces(tenant, items, lambda reader, some: reader.read_plain(some, tenant, now))
        except NotPlainError:
            return None

    async def _ensure_lanes(self, results: list[NewTask | DuetimeError]) -> None:
        """Create the lanes that are new; a task whose lane cannot be created is refused in its place."""
        for key in {each.lane for each in results if isinstance(each, NewTask)}:
            if self.lanes.find(key) is not None:
                continue
            try:
                await self.lanes.ensure(key)
            except InvalidInput as error:
                for place, each in enumerate(results):
                    if isinstance(each, NewTask) and each.lane == key:
                        results[place] = error.as_value()

    async def _batch_answer(self, results: list[NewTask | DuetimeError], submissions: Sequence[Submission]) -> bytes:
        now_ms = self.database.clock.now_ms()
        if isinstance(submissions, AllNew) and len(submissions) == len(results):
            is_later = submissions.earliest_ms > now_ms
            if is_later or submissions.latest_ms <= now_ms:
                ids = [str(identifier) for identifier in submissions.ids]
                return render_batch(ids, TaskState.SCHEDULED if is_later else TaskState.READY)
        known = [each.id for each in submissions if isinstance(each, Submitted) and not each.is_new]
        states = await read_states(self.database, known) if known else {}
        left, problems = iter(submissions), ItemProblems()

        def answer(each: NewTask | DuetimeError) -> Accepted | Rejected:
            submission = next(left) if isinstance(each, NewTask) else each
            if isinstance(submission, DuetimeError):
                return Rejected(problems.of(submission))
            state = TaskState.SCHEDULED if submission.run_at_ms > now_ms else TaskState.READY
            if submission.is_new:
                return Accepted(submission.id, state, replaces=submission.replaces)
            return Accepted(submission.id, states.get(submission.id, state), True)

        answers = await self.turns.spread(results, lambda some: [answer(each) for each in some])
        rejected = sum(isinstance(each, Rejected) for each in answers)
        return encode(BatchAnswer(answers, len(answers) - rejected, rejected))

    async def get(self, request: Request) -> Answer:
        request.query()
        caller, task = request.caller, request.task_id()
        view = await get_task(self.database, self.lanes, caller.tenant, caller.tenant_name, task)
        if view is None or not caller.may_use(view.type, view.queue):
            raise NotFound(f"there is no task {task}")
        return json_answer(200, view)

    async def list_attempts(self, request: Request) -> Answer:
        cursor, limit = read_page(request.query())
        caller, task, after = request.caller, request.task_id(), read_number_cursor(cursor)
        page = None
        if not caller.is_confined or await self.reach.has(caller, task):
            page = await list_attempts(self.database, self.lanes, caller.tenant, task, after, limit)
        if page is None:
            raise NotFound(f"there is no task {task}")
        return json_answer(200, page)

    async def list(self, request: Request) -> Answer:
        query = request.query()
        caller = request.caller
        wanted, cursor, limit = read_list(query, caller)
        page = await list_tasks(
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

    async def explain(self, request: Request) -> Answer:
        request.query()
        caller, task = request.caller, request.task_id()
        within = caller.confinement
        explanation = None
        if within is None or await self.reach.has(caller, task):
            explanation = await explain(self.database, self.lanes, self.feeder, caller.tenant, task, within=within)
        if explanation is None:
            raise NotFound(f"there is no task {task}")
        return json_answer(200, explanation)


def read_request_key(headers: Mapping[bytes, bytes], now: datetime) -> uuid.UUID | None:
    """The header Idempotency-Key: it names the request, and is remembered for an hour."""
    given = headers.get(b"idempotency-key")
    if given is None:
        return None
    key = read_uuid(given.decode("latin-1").strip())
    if key is None or not names_a_request(key):
        raise InvalidInput.at("Idempotency-Key", "must be a UUID of version 7, or left out")
    minted_ms, now_ms = key.int >> 80, now.timestamp() * 1000
    if not now_ms - _KEY_AGE_MS <= minted_ms <= now_ms + _KEY_AHEAD_MS:
        raise InvalidInput.at(
            "Idempotency-Key",
            "must have been made within the last hour; make a new one, and check this machine's clock",
        )
    return key


def read_trace(headers: Mapping[bytes, bytes]) -> str | None:
    """The trace that the task belongs to; an unreadable one is ignored, as its standard asks."""
    given = headers.get(b"traceparent")
    return given.decode() if given is not None and _TRACE.fullmatch(given) else None


def _location(submission: Submitted) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"location", b"/v1/tasks/%s" % str(submission.id).encode()),)


def _digest(body: bytes) -> bytes:
    # Processors have instructions for this hash: it takes a third of the time of BLAKE2.
    return hashlib.sha256(body).digest()[:16]


def _refuse_all(results: Sequence[NewTask | Submitted | DuetimeError], request_id: bytes) -> Answer:
    errors: list[FieldError] = []
    places: list[Rejected | None] = []
    problems = ItemProblems()
    for place, each in enumerate(results):
        places.append(Rejected(problems.of(each)) if isinstance(each, DuetimeError) else None)
        if isinstance(each, DuetimeError) and len(errors) < MAX_ITEM_ERRORS:
            errors += index_path(place, each)
    count = sum(place is not None for place in places)
    # If the only errors are conflicts with earlier tasks, nothing is wrong with the tasks themselves.
    kind = (
        Conflict
        if all(isinstance(each, Conflict) for each in results if isinstance(each, DuetimeError))
        else InvalidInput
    )
    problem = BatchProblem(
        type=f"urn:duetime:problem:{kind.code}",
        title=kind.title,
        status=kind.status,
        code=kind.code,
        detail=f"{count} of {len(places)} items are wrong, so none was stored",
        errors=errors,
        results=places,
        request_id=request_id.decode(),
    )
    return Answer(kind.status, msgspec.json.encode(problem), PROBLEM_JSON)
