"""The operations of the API on tasks, as data."""

from duetime.api.bodies.answers import BatchAnswer, BulkAnswer
from duetime.api.bodies.pages import AttemptPage, TaskPage
from duetime.api.bodies.requests import (
    LABEL_KEY_PATTERN,
    NAME_PATTERN,
    PRINTABLE,
    BulkRequest,
    BulkRescheduleRequest,
    RescheduleRequest,
    TaskRequest,
)
from duetime.api.operations import PRODUCERS, Confined, Operation, Parameter, Reply
from duetime.api.server.http import NDJSON
from duetime.database.pages import PAGE_BYTES
from duetime.model.task import MAX_BATCH, MAX_REQUEST_BYTES, SHOWN_STATES, PriorityClass
from duetime.views.explain import Explanation
from duetime.views.filters import DEFAULT_LIMIT, MAX_LIMIT
from duetime.views.tasks import MAX_ATTEMPTS, TaskView

REQUEST_KEY = Parameter(
    "Idempotency-Key",
    "A UUID of version 7, made for this request within the last hour: repeating the request with it gives the same "
    "tasks, so that trying again is safe.",
    {
        "type": "string",
        "format": "uuid7",
        "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
    },
    place="header",
)
FILTERS = (
    Parameter("type", "Only tasks of this type.", {"type": "string", "pattern": NAME_PATTERN}),
    Parameter("queue", "Only tasks of this queue.", {"type": "string", "pattern": NAME_PATTERN}),
    Parameter("priority", "Only tasks of this class.", {"enum": [each.word for each in PriorityClass]}),
    Parameter(
        "label",
        "Only tasks with this label, as `name=value`; may be given several times, and all must hold.",
        {"type": "string", "format": "label", "pattern": f"{LABEL_KEY_PATTERN[:-1]}={PRINTABLE}{{0,255}}$"},
        is_many=True,
    ),
    Parameter("from", "Only tasks that are due at or after this time.", {"type": "string", "format": "date-time"}),
    Parameter("to", "Only tasks that are due before this time.", {"type": "string", "format": "date-time"}),
    Parameter(
        "schedule",
        "Only tasks that the schedule of this name made, the latest fire time first.",
        {"type": "string", "pattern": NAME_PATTERN},
    ),
)
SEARCH = (
    "Where the filter fits few of very many tasks, the answer may take some seconds; if nothing is found in ten, "
    "it is a 503 with the code `search_incomplete`, whose `next` is the cursor to go on from."
)
PAGES = (
    Parameter("cursor", "`next` of the page before, with the same filters.", {"type": "string", "format": "cursor"}),
    Parameter(
        "limit",
        "How many to give. A page may be shorter and still have a next one: where its items are large, it ends after "
        f"{PAGE_BYTES // 2**20} MiB of what they hold. It is empty only at the end, so go on until `next` is null.",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    ),
)

SUBMIT = Operation(
    method="POST",
    path="/v1/tasks",
    name="submit_task",
    roles=PRODUCERS,
    confined=Confined.PART,
    tag="Tasks",
    summary="Submit a task",
    description="Stored when this is answered: it survives any crash from then on. A task with `target` is sent to "
    "that HTTP endpoint; one without is taken by a worker that leases from its queue. If it fails, it is tried again "
    "by `retry`; without one it has 20 attempts, with waits that double from 1 s to 1 h, about 8 hours in all.",
    body=TaskRequest,
    example={"type": "email.send", "payload": {"to": "ada@example.com"}, "delay": "5m"},
    parameters=(REQUEST_KEY,),
    replies={
        202: Reply("The new task.", TaskView, headers={"Location": "The task's path."}),
        200: Reply(
            "The key was used before, or the task is unique and there: that task.",
            TaskView,
            headers={"Location": "The task's path."},
        ),
    },
    also=(409,),
)
SUBMIT_BATCH = Operation(
    method="POST",
    path="/v1/tasks/batch",
    name="submit_tasks",
    roles=PRODUCERS,
    confined=Confined.PART,
    tag="Tasks",
    summary=f"Submit up to {MAX_BATCH:,} tasks at once",
    description="A JSON array of tasks, or one task a line. Each has its result, in order: a wrong one does not keep "
    "the others out, unless `atomic=true`. What a quota of the tenant leaves no room for is refused from the end on, "
    "with the code of the quota in its place; if nothing is accepted, the answer is a 429.",
    body=list[TaskRequest],
    other_bodies={kind: {"type": "string", "format": "ndjson"} for kind in NDJSON},
    example=[{"type": "email.send", "payload": {"to": "ada@example.com"}}, {"type": "report", "queue": "nightly"}],
    parameters=(
        Parameter("atomic", "Store none if any is wrong.", {"type": "boolean", "default": False}),
        REQUEST_KEY,
    ),
    replies={200: Reply("A result for each task, in order.", BatchAnswer)},
    also=(409,),
    max_body=MAX_REQUEST_BYTES,
    is_large=True,
)
LIST = Operation(
    method="GET",
    path="/v1/tasks",
    name="list_tasks",
    confined=Confined.PART,
    tag="Tasks",
    summary="List tasks",
    description="Without a state the newest first by what happened: a task stands at its due time, or at the time at "
    "which it was cancelled or made due before that; those whose time is still to come stand at the end, soonest "
    "first. With a state, soonest first for `scheduled` and `ready`, else latest due time first. "
    f"{SEARCH}",
    parameters=(
        Parameter("state", "Only tasks in this state.", {"enum": [state.value for state in SHOWN_STATES]}),
        *FILTERS,
        *PAGES,
    ),
    replies={200: Reply("A page.", TaskPage)},
)
GET = Operation(
    method="GET",
    path="/v1/tasks/{id}",
    name="get_task",
    confined=Confined.PART,
    tag="Tasks",
    summary="Get a task with its attempts",
    description=f"With its latest attempts: up to {MAX_ATTEMPTS:,}, and of large ones those that fit into a megabyte. "
    "`attempts_omitted` says how many earlier ones there are.",
    replies={200: Reply("The task.", TaskView)},
    is_large=True,
)
LIST_ATTEMPTS = Operation(
    method="GET",
    path="/v1/tasks/{id}/attempts",
    name="list_attempts",
    confined=Confined.PART,
    tag="Tasks",
    summary="List a task's attempts, by number",
    description="The running one comes last.",
    parameters=PAGES,
    replies={200: Reply("A page.", AttemptPage)},
    is_large=True,
)
EXPLAIN = Operation(
    method="GET",
    path="/v1/tasks/{id}/explain",
    name="explain_task",
    confined=Confined.PART,
    tag="Tasks",
    summary="Say why a task is where it is, and what would free it",
    replies={200: Reply("The explanation.", Explanation)},
)

_VERBS = {
    "cancel": ("Cancel", "A running task's worker hears of it at its next beat or report."),
    "pause": ("Pause", "A waiting task is kept back until it is resumed."),
    "resume": ("Resume", "A paused task waits for its time again, or runs if that has passed."),
    "reschedule": (
        "Reschedule",
        "A waiting or paused task gets another time, never before now; `first_run_at` shows its first one.",
    ),
    "retry": ("Retry", "A dead letter gets new budgets; a task that waits for its next attempt gets it now."),
    "run-now": ("Run now", "A waiting or paused task becomes due at once."),
}
VERBS = {
    verb: Operation(
        method="POST",
        path=f"/v1/tasks/{{id}}/{verb}",
        name=f"{verb.replace('-', '_')}_task",
        confined=Confined.PART,
        tag="Tasks",
        summary=f"{summary} a task" if verb != "run-now" else "Run a task now",
        description=description,
        body=RescheduleRequest if verb == "reschedule" else None,
        example={"delay": "1h"} if verb == "reschedule" else None,
        replies={200: Reply("The task.", TaskView)},
        also=(409, 429) if verb == "retry" else (409,),
    )
    for verb, (summary, description) in _VERBS.items()
}
BULK_VERBS = {
    verb: Operation(
        method="POST",
        path=f"/v1/tasks/bulk/{verb}",
        name=f"{verb.replace('-', '_')}_tasks",
        confined=Confined.PART,
        tag="Tasks",
        summary=f"{summary} tasks by filter" if verb != "run-now" else "Run tasks now, by filter",
        description=f"{description} Takes up to `limit` tasks that fit; go on with `next` as the cursor until it is "
        f"null. {SEARCH}",
        body=BulkRescheduleRequest if verb == "reschedule" else BulkRequest,
        example={"filter": {"state": "scheduled", "queue": "nightly"}}
        | ({"delay": "1h"} if verb == "reschedule" else {}),
        replies={200: Reply("What was done.", BulkAnswer)},
    )
    for verb, (summary, description) in _VERBS.items()
}
OPERATIONS = [SUBMIT, SUBMIT_BATCH, LIST, GET, LIST_ATTEMPTS, EXPLAIN, *VERBS.values(), *BULK_VERBS.values()]
