"""What the API offers for schedules and calendars, as data."""

from duetime.api.operations import EVERYONE, Confined, Operation, Parameter, Reply
from duetime.api.schedules import schemas, views
from duetime.api.tasks.operations import PAGES, REQUEST_KEY
from duetime.lifecycle.schedules.backfill import Backfill
from duetime.model.schedule import ScheduleState
from duetime.model.task import MAX_REQUEST_BYTES

_TAG = "Schedules"
_ONE = "/v1/schedules/{name}"
_BODY = (400, 409, 413, 415, 422)
_EXAMPLE = {
    "spec": {"cron": "0 2 * * *"},
    "timezone": "Europe/Berlin",
    "task": {"type": "report.nightly", "payload": {"day": "{{fire_date}}"}},
}
_COUNT = Parameter(
    "count", "How many times to list.", {"type": "integer", "minimum": 1, "maximum": schemas.MAX_PREVIEW, "default": 10}
)
_FROM = Parameter("from", "The first possible time. Default: now.", {"type": "string", "format": "date-time"})


def _text(longest: int) -> dict[str, object]:
    return {"type": "string", "maxLength": longest, "pattern": schemas.NO_NUL}


PUT = Operation(
    method="PUT",
    path=_ONE,
    name="put_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Create or replace a schedule",
    description="Sending the same schedule again changes nothing. A change never fires times in the past and never "
    "skips the next time.",
    body=schemas.ScheduleRequest,
    example=_EXAMPLE,
    replies={
        201: Reply("The schedule was created.", views.ScheduleView),
        200: Reply("The schedule was replaced, or it was the same already.", views.ScheduleView),
    },
    also=(409,),
)
PUT_BATCH = Operation(
    method="POST",
    path="/v1/schedules/batch",
    name="put_schedules",
    confined=Confined.PART,
    tag=_TAG,
    summary=f"Create or replace up to {schemas.MAX_SCHEDULE_BATCH:,} schedules at once",
    description="Each schedule has a result, in order. A wrong one does not stop the others.",
    body=schemas.ScheduleBatchRequest,
    example={"items": [{"name": "nightly", **_EXAMPLE}]},
    parameters=(
        Parameter("dry_run", "Store nothing, only say what would be done.", {"type": "boolean", "default": False}),
    ),
    replies={200: Reply("A result for each schedule, in order.", views.ScheduleBatchAnswer)},
    also=(409,),
    max_body=MAX_REQUEST_BYTES,
    is_large=True,
)
PREVIEW = Operation(
    method="POST",
    path="/v1/schedules/preview",
    name="preview_schedule",
    roles=EVERYONE,
    confined=Confined.PART,
    tag=_TAG,
    summary="Say in words and times when a schedule would fire",
    body=schemas.PreviewRequest,
    example={"spec": {"cron": "30 2 * * *"}, "timezone": "Europe/Berlin", "count": 5},
    replies={200: Reply("The description in words and the next times.", views.PreviewView)},
    also=(409,),
)
LIST = Operation(
    method="GET",
    path="/v1/schedules",
    name="list_schedules",
    confined=Confined.PART,
    tag=_TAG,
    summary="List schedules, by name",
    parameters=(
        Parameter("state", "Only schedules in this state.", {"enum": [state.value for state in ScheduleState]}),
        Parameter("origin", "Only schedules of this origin.", {"enum": ["api", "file", "code"]}),
        Parameter("source", "Only schedules of this source.", _text(schemas.MAX_SOURCE)),
        Parameter("prefix", "Only schedules whose names begin with this.", _text(schemas.MAX_NAME)),
        *PAGES,
    ),
    replies={200: Reply("A page.", views.SchedulePage)},
    is_large=True,
)
GET = Operation(
    method="GET",
    path=_ONE,
    name="get_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Get a schedule with its next times",
    replies={200: Reply("The schedule.", views.ScheduleView)},
)
DELETE = Operation(
    method="DELETE",
    path=_ONE,
    name="delete_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Delete a schedule",
    parameters=(
        Parameter(
            "tasks",
            "What happens to the tasks that it made and that are not over.",
            {"enum": ["keep", "cancel"], "default": "keep"},
        ),
        Parameter(
            "version",
            "Delete it only if it has this version.",
            {"type": "integer", "minimum": 1, "maximum": schemas.MAX_VERSION},
        ),
    ),
    replies={200: Reply("The schedule was deleted.", views.DeletedView)},
    also=(409,),
)
PAUSE = Operation(
    method="POST",
    path=f"{_ONE}/pause",
    name="pause_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Pause a schedule: it does not fire until it is resumed",
    body=schemas.NoteRequest,
    is_body_optional=True,
    example={"note": "the warehouse is moving"},
    replies={200: Reply("The schedule.", views.ScheduleView)},
    also=(409,),
)
RESUME = Operation(
    method="POST",
    path=f"{_ONE}/resume",
    name="resume_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Resume a schedule with its next time",
    description="Times that passed while it was paused are not made up for. Use a backfill for them.",
    body=schemas.NoteRequest,
    is_body_optional=True,
    example={},
    replies={200: Reply("The schedule.", views.ScheduleView)},
    also=(409,),
)
TRIGGER = Operation(
    method="POST",
    path=f"{_ONE}/trigger",
    name="trigger_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Run a schedule's task now, regardless of its state and policies",
    body=schemas.TriggerRequest,
    is_body_optional=True,
    example={},
    parameters=(REQUEST_KEY,),
    replies={202: Reply("The task that was made.", views.TriggeredView)},
    also=(409,),
)
BACKFILL = Operation(
    method="POST",
    path=f"{_ONE}/backfill",
    name="backfill_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Make the tasks of a past range (backfill)",
    body=schemas.BackfillRequest,
    example={"from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z", "rate": 10},
    parameters=(REQUEST_KEY,),
    replies={202: Reply("The backfill, which continues in the background.", Backfill)},
    also=(409,),
)
BACKFILLS = Operation(
    method="GET",
    path=f"{_ONE}/backfills",
    name="list_backfills",
    confined=Confined.PART,
    tag=_TAG,
    summary="List a schedule's backfills, the latest first",
    replies={200: Reply("The latest hundred.", views.BackfillPage)},
)
GET_BACKFILL = Operation(
    method="GET",
    path=f"{_ONE}/backfills/{{id}}",
    name="get_backfill",
    confined=Confined.PART,
    tag=_TAG,
    summary="Get a backfill and its progress",
    replies={200: Reply("The backfill.", Backfill)},
)
CANCEL_BACKFILL = Operation(
    method="POST",
    path=f"{_ONE}/backfills/{{id}}/cancel",
    name="cancel_backfill",
    confined=Confined.PART,
    tag=_TAG,
    summary="Stop a backfill: it makes no more tasks",
    replies={200: Reply("The backfill.", Backfill)},
    also=(409,),
)
RUNS = Operation(
    method="GET",
    path=f"{_ONE}/runs",
    name="list_runs",
    confined=Confined.PART,
    tag=_TAG,
    summary="List what happened at a schedule's times, the latest first",
    parameters=PAGES,
    replies={200: Reply("A page.", views.RunPage)},
    is_large=True,
)
PREVIEW_STORED = Operation(
    method="GET",
    path=f"{_ONE}/preview",
    name="preview_stored_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="List a schedule's next times, with the effects of DST and exclusions",
    parameters=(_COUNT, _FROM),
    replies={200: Reply("The description in words and the next times.", views.PreviewView)},
)
#: What can be done with a new schedule.
NEXT_OF_SCHEDULE = [
    each.name for each in (GET, PAUSE, RESUME, TRIGGER, BACKFILL, BACKFILLS, RUNS, PREVIEW_STORED, DELETE)
]

_CALENDAR = "/v1/calendars/{name}"
LIST_CALENDARS = Operation(
    method="GET",
    path="/v1/calendars",
    name="list_calendars",
    confined=Confined.ALL,
    tag=_TAG,
    summary="List the named calendars, by name",
    parameters=PAGES,
    replies={200: Reply("A page.", views.CalendarPage)},
    is_large=True,
)
GET_CALENDAR = Operation(
    method="GET",
    path=_CALENDAR,
    name="get_calendar",
    confined=Confined.ALL,
    tag=_TAG,
    summary="Get a calendar",
    replies={200: Reply("The calendar.", views.CalendarView)},
    is_large=True,
)
PUT_CALENDAR = Operation(
    method="PUT",
    path=_CALENDAR,
    name="put_calendar",
    tag=_TAG,
    summary="Create or replace a calendar that schedules can exclude",
    description="The next times of schedules that use it are computed again.",
    body=schemas.CalendarRequest,
    example={"dates": ["2027-12-24", {"from": "2027-12-27", "to": "2027-12-31"}]},
    replies={200: Reply("The calendar is stored.", views.CalendarPut)},
)
DELETE_CALENDAR = Operation(
    method="DELETE",
    path=_CALENDAR,
    name="delete_calendar",
    tag=_TAG,
    summary="Delete a calendar that no schedule uses",
    replies={204: Reply("The schedule was deleted.")},
    also=(409,),
)

OPERATIONS = [
    *(PUT, PUT_BATCH, PREVIEW, LIST, GET, DELETE, PAUSE, RESUME, TRIGGER),
    *(BACKFILL, BACKFILLS, GET_BACKFILL, CANCEL_BACKFILL, RUNS, PREVIEW_STORED),
    *(LIST_CALENDARS, GET_CALENDAR, PUT_CALENDAR, DELETE_CALENDAR),
]
