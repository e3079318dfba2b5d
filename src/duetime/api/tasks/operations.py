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
    "A UUID of version 7, created for this request within the last hour. Repeating the request with the same value "
    "returns the same tasks, so it is safe to retry.",
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
    Parameter("priority", "Only tasks of this priority.", {"enum": [each.word for each in PriorityClass]}),
    Parameter(
        "label",
        "Only tasks with this label, as `name=value`. If it is given several times, tasks must have all of the labels.",
        {"type": "string", "format": "label", "pattern": f"{LABEL_KEY_PATTERN[:-1]}={PRINTABLE}{{0,255}}$"},
        is_many=True,
    ),
    Parameter("from", "Only tasks that are due at or after this time.", {"type": "string", "format": "date-time"}),
    Parameter("to", "Only tasks that are due before this time.", {"type": "string", "format": "date-time"}),
    Parameter(
        "schedule",
        "Only tasks made by the schedule with this name, the latest fire time first.",
        {"type": "string", "pattern": NAME_PATTERN},
    ),
)
SEARCH = (
    "Where the filter fits few of very many tasks, the answer may take some seconds; if nothing is found in ten, "
    "it is a 503 with the code `search_incomplete`, whose `next` is the cursor to go on from."
)
PAGES = (
    Parameter(
        "cursor", "The `next` of the previous page, with the same filters.", {"type": "string", "format": "cursor"}
    ),
    Parameter(
        "limit",
        "The most items to return. A page may have fewer items although a next page exists: with large items it "
        f"ends after {PAGE_BYTES // 2**20} MiB of content. Only the last page can be empty, so continue "
        "until `next` is null.",
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
    description="The task is stored before the answer is sent, and then it survives any crash. A task with `target` "
    "is sent to that HTTP endpoint. A task without one is taken by a worker that leases from its queue. If "
    "it fails, it is tried again as `retry` says. The default is 20 attempts, with waits that double from 1 "
    "s to 1 h, about 8 hours in all.",
    body=TaskRequest,
    example={"type": "email.send", "payload": {"to": "ada@example.com"}, "delay": "5m"},
    parameters=(REQUEST_KEY,),
    replies={
        202: Reply("The new task.", TaskView, headers={"Location": "The task's path."}),
        200: Reply(
            "The existing task: the key was used before, or the task is unique and exists already.",
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
    description="A JSON array of tasks, or one task per line. Each task has a result, in order. A wrong task does "
    "not stop the others, unless `atomic=true`. If a quota of the tenant leaves no room for all tasks, the "
    "last ones are refused, and their results have the code of the quota. If none is accepted, the answer "
    "is 429.",
    body=list[TaskRequest],
    other_bodies={kind: {"type": "string", "format": "ndjson"} for kind in NDJSON},
    example=[{"type": "email.send", "payload": {"to": "ada@example.com"}}, {"type": "report", "queue": "nightly"}],
    parameters=(
        Parameter("atomic", "Store no task if any is wrong.", {"type": "boolean", "default": False}),
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
    description="Without `state`, the tasks are listed by the time at which something happened last, newest first: "
    "by the due time, or by the time at which a task was cancelled or made due earlier. Tasks whose time is "
    "in the future come last, soonest first. With `state`, `scheduled` and `ready` tasks are listed soonest "
    f"first, others by due time, latest first. {SEARCH}",
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
    description=f"Includes the latest attempts: at most {MAX_ATTEMPTS}, and if they are large, as many as fit into a "
    "megabyte. `attempts_omitted` is the number of earlier ones.",
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
    summary="Explain why a task is in its state, and what would let it continue",
    replies={200: Reply("The explanation.", Explanation)},
)

_VERBS = {
    "cancel": ("Cancel", "The worker of a running task learns of it at its next beat or report."),
    "pause": ("Pause", "A waiting task is held back until it is resumed."),
    "resume": ("Resume", "A paused task waits for its time again, or runs at once if its time has passed."),
    "reschedule": (
        "Reschedule",
        "A waiting or paused task gets a new time, never before now. `first_run_at` shows its original time.",
    ),
    "retry": ("Retry", "A dead letter gets new retry budgets. A task that waits for its next attempt gets it now."),
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
        description=f"{description} Handles up to `limit` tasks that match. Repeat with `next` as the cursor until "
        f"it is null. {SEARCH}",
        body=BulkRescheduleRequest if verb == "reschedule" else BulkRequest,
        example={"filter": {"state": "scheduled", "queue": "nightly"}}
        | ({"delay": "1h"} if verb == "reschedule" else {}),
        replies={200: Reply("What was done.", BulkAnswer)},
    )
    for verb, (summary, description) in _VERBS.items()
}
OPERATIONS = [SUBMIT, SUBMIT_BATCH, LIST, GET, LIST_ATTEMPTS, EXPLAIN, *VERBS.values(), *BULK_VERBS.values()]
