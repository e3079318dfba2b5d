"""The view of a task that was stored a moment ago, as `GET` would show it, without reading it back.

The views of plain tasks differ in a few places only; the rest is encoded once for
each tenant, type and lane, by the same encoder.
"""

import uuid

import msgspec
from msgspec import Raw

from duetime.api.bodies.answers import Accepted, BatchAnswer
from duetime.api.server.http import encode
from duetime.clock import from_ms
from duetime.lifecycle.submission.batch import Submitted
from duetime.model.attempt import most_attempts
from duetime.model.retry import DEFAULT_RETRY
from duetime.model.task import DEFAULT_TIMEOUT_SECONDS, LaneKey, NewTask, Options, TaskState
from duetime.views.tasks import TaskView, retry_view, target_view

REMEMBERED_VIEWS = 1_000

_NO_OPTIONS = Options()
_NO_LABELS = Raw(b"{}")
#: Placeholders for the values that differ; no name has a NUL, and the id comes before all names.
_ID = uuid.UUID(int=0)
_PAYLOAD = b'"\\u0000"'
_AT = from_ms(1)
#: The text before and after the id in an item of a batch's answer.
_ITEM = {
    state: encode(Accepted(_ID, state)).decode().split(str(_ID)) for state in (TaskState.READY, TaskState.SCHEDULED)
}


class NewViews:
    def __init__(self) -> None:
        #: The texts before and after the id, the payload and the three times.
        self._pieces: dict[tuple[str, str, LaneKey], list[bytes]] = {}
        #: The last time that was encoded: all tasks of a commit have the same.
        self._time = (0, b"")

    def render(self, task: NewTask, submission: Submitted, tenant_name: str, now_ms: int) -> bytes:
        at_ms = submission.run_at_ms
        if at_ms != submission.created_at_ms or at_ms > now_ms or type(task) is not NewTask:
            return encode(view_of(task, submission, tenant_name, now_ms))
        key = (tenant_name, task.type, task.lane)
        pieces = self._pieces.get(key)
        if pieces is None:
            if len(self._pieces) >= REMEMBERED_VIEWS:
                self._pieces.clear()
            pieces = self._pieces[key] = _split(view_of(task, submission, tenant_name, now_ms))
        if self._time[0] != at_ms:
            self._time = (at_ms, encode(from_ms(at_ms)))
        at = self._time[1]
        before, behind_id, behind_payload, behind_run_at, behind_created_at, behind = pieces
        return b'%s"%s"%s%s%s%s%s%s%s%s%s' % (
            *(before, str(submission.id).encode(), behind_id, task.payload, behind_payload, at),
            *(behind_run_at, at, behind_created_at, at, behind),
        )


def render_batch(ids: list[str], state: TaskState) -> bytes:
    """The answer to a batch of new tasks that are all in one state."""
    before, behind = _ITEM[state]
    items = f"{behind},{before}".join(ids)
    return encode(BatchAnswer([], len(ids), 0)).replace(b"[]", f"[{before}{items}{behind}]".encode(), 1)


def _split(view: TaskView) -> list[bytes]:
    """The view, cut at the places that differ."""
    blank = msgspec.structs.replace(
        view, id=_ID, payload=Raw(_PAYLOAD), run_at=_AT, created_at=_AT, next_run_at=_AT, replaces=msgspec.UNSET
    )
    rest, at = encode(blank), encode(_AT)
    pieces = []
    for place in (encode(_ID), _PAYLOAD, at, at, at):
        before, _, rest = rest.partition(place)
        pieces.append(before)
    return [*pieces, rest]


_DEFAULT_RETRY = retry_view(DEFAULT_RETRY)


def view_of(task: NewTask, submission: Submitted, tenant_name: str, now_ms: int) -> TaskView:
    task = task.detailed()
    options = task.options or _NO_OPTIONS
    due_at = from_ms(submission.run_at_ms)
    created_ms = submission.created_at_ms or now_ms
    return TaskView(
        id=submission.id,
        tenant=tenant_name,
        type=task.type,
        queue=task.lane.queue,
        priority=task.lane.priority.word,
        state=TaskState.SCHEDULED if submission.run_at_ms > now_ms else TaskState.READY,
        payload=Raw(task.payload),
        labels=Raw(msgspec.json.encode(task.labels)) if task.labels else _NO_LABELS,
        # The run time of a debounced task is its due time.
        run_at=due_at if task.flow is not None and task.flow.debounce is not None else task.run_at or due_at,
        first_run_at=None,
        created_at=due_at if created_ms == submission.run_at_ms else from_ms(created_ms),
        expires_at=task.expires_at,
        schedule=None,
        result=None,
        attempts=[],
        next_run_at=due_at,
        attempts_left=most_attempts(options),
        sla=options.sla,
        sla_met=None,
        target=target_view(options.target),
        retry=_DEFAULT_RETRY if options.retry is None else retry_view(options.retry),
        timeout=DEFAULT_TIMEOUT_SECONDS if options.timeout is None else options.timeout,
        delivery=options.delivery,
        requires=list(task.lane.requires),
        idempotency_key=task.idempotency_key,
        concurrency_key=options.concurrency_key,
        rate_key=options.rate_key,
        dead_reason=None,
        died_at=None,
        ended_at=None,
        end_reason=None,
        replaces=msgspec.UNSET if submission.replaces is None else submission.replaces,
    )
