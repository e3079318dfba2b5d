"""The request fields for the flow control of a single task."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from duetime.api.bodies.seconds import Seconds
from duetime.model.task import TaskState

_DAY = 86_400.0


class Quiet(Seconds):
    minimum, maximum = 0.1, 7 * _DAY
    purpose = "How long after the last submission the task runs"


class AtLatest(Seconds):
    minimum, maximum = 0.1, 30 * _DAY
    purpose = "How long after the first submission the task runs at the latest, however many follow"


class UniquePeriod(Seconds):
    minimum, maximum = 0.1, 30 * _DAY
    purpose = "For how long after its submission a task is unique in any case, even when it is over"


def printable(description: str) -> Meta:
    """A text of 1 to 255 printable characters; the check itself is in `validation`."""
    pattern = "^[^\\u0000-\\u001F\\u007F-\\u009F]{1,255}$"
    schema: dict[str, Any] = {"format": "printable", "pattern": pattern, "minLength": 1, "maxLength": 255}
    return Meta(description=description, extra_json_schema=schema)


FlowKey = Annotated[str, printable("Tasks of the same type and key belong together.")]
States = Annotated[
    list[TaskState],
    Meta(
        min_length=1,
        max_length=len(TaskState),
        description="The states in which a task blocks another one. Default: all states that are not over.",
    ),
]


class DebounceRequest(Struct, forbid_unknown_fields=True):
    """Run once for a rush of submissions: the last one, when none has followed for `period`."""

    key: FlowKey
    period: Quiet
    timeout: AtLatest | None = None


class UniqueRequest(Struct, forbid_unknown_fields=True):
    """One task at a time: a submission under the same key returns the existing task."""

    key: Annotated[FlowKey | None, Meta(description="The key that must be unique. Default: the payload.")] = None
    states: States | None = None
    period: UniquePeriod | None = None
