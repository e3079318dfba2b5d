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
    "count", "How many.", {"type": "integer", "minimum": 1, "maximum": schemas.MAX_PREVIEW, "default": 10}
)
_FROM = Parameter("from", "From this time on; now if absent.", {"type": "string", "format": "date-time"})


def _text(longest: int) -> dict[str, object]:
    return {"type": "string", "maxLength": longest, "pattern": schemas.NO_NUL}


PUT = Operation(
    method="PUT",
    path=_ONE,
    name="put_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Create or replace a schedule",
    description="The same again changes nothing. A change never fires the past and never skips the next time.",
    body=schemas.ScheduleRequest,
    example=_EXAMPLE,
    replies={
        201: Reply("It was made.", views.ScheduleView),
        200: Reply("It was replaced, or is unchanged.", views.ScheduleView),
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
    description="Each has its result, in order: a wrong one does not keep the others out.",
    body=schemas.ScheduleBatchRequest,
    example={"items": [{"name": "nightly", **_EXAMPLE}]},
    parameters=(
        Parameter("dry_run", "Store nothing, and say what would be done.", {"type": "boolean", "default": False}),
    ),
    replies={200: Reply("A result for each.", views.ScheduleBatchAnswer)},
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
    replies={200: Reply("Its words and its next times.", views.PreviewView)},
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
        Parameter("state", "Only those in this state.", {"enum": [state.value for state in ScheduleState]}),
        Parameter("origin", "Only those made by this.", {"enum": ["api", "file", "code"]}),
        Parameter("source", "Only those of this source.", _text(schemas.MAX_SOURCE)),
        Parameter("prefix", "Only names that begin with this.", _text(schemas.MAX_NAME)),
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
            "What becomes of the tasks it made that are not over.",
            {"enum": ["keep", "cancel"], "default": "keep"},
        ),
        Parameter(
            "version", "Only if it has this version.", {"type": "integer", "minimum": 1, "maximum": schemas.MAX_VERSION}
        ),
    ),
    replies={200: Reply("It is gone.", views.DeletedView)},
    also=(409,),
)
PAUSE = Operation(
    method="POST",
    path=f"{_ONE}/pause",
    name="pause_schedule",
    confined=Confined.PART,
    tag=_TAG,
    summary="Fire no more until it is resumed",
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
    summary="Go on with the next time",
    description="Times that went by while it was paused are not made up for; backfill them.",
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
    summary="Run it now, whatever else it does",
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
    summary="Make the tasks of a past range",
    body=schemas.BackfillRequest,
    example={"from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z", "rate": 10},
    parameters=(REQUEST_KEY,),
    replies={202: Reply("The backfill, which goes on by itself.", Backfill)},
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
    summary="Say how far a backfill has come",
    replies={200: Reply("The backfill.", Backfill)},
)
CANCEL_BACKFILL = Operation(
    method="POST",
    path=f"{_ONE}/backfills/{{id}}/cancel",
    name="cancel_backfill",
    confined=Confined.PART,
    tag=_TAG,
    summary="Make no more tasks of a backfill",
    replies={200: Reply("The backfill.", Backfill)},
    also=(409,),
)
RUNS = Operation(
    method="GET",
    path=f"{_ONE}/runs",
    name="list_runs",
    confined=Confined.PART,
    tag=_TAG,
    summary="List what became of a schedule's times, the latest first",
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
    summary="List a schedule's next times, with what DST and exclusions did to them",
    parameters=(_COUNT, _FROM),
    replies={200: Reply("Its words and its next times.", views.PreviewView)},
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
    summary="Create or replace a calendar that schedules leave out",
    description="Schedules that use it find their next time anew.",
    body=schemas.CalendarRequest,
    example={"dates": ["2027-12-24", {"from": "2027-12-27", "to": "2027-12-31"}]},
    replies={200: Reply("It is stored.", views.CalendarPut)},
)
DELETE_CALENDAR = Operation(
    method="DELETE",
    path=_CALENDAR,
    name="delete_calendar",
    tag=_TAG,
    summary="Delete a calendar that no schedule uses",
    replies={204: Reply("It is gone.")},
    also=(409,),
)

OPERATIONS = [
    *(PUT, PUT_BATCH, PREVIEW, LIST, GET, DELETE, PAUSE, RESUME, TRIGGER),
    *(BACKFILL, BACKFILLS, GET_BACKFILL, CANCEL_BACKFILL, RUNS, PREVIEW_STORED),
    *(LIST_CALENDARS, GET_CALENDAR, PUT_CALENDAR, DELETE_CALENDAR),
]
