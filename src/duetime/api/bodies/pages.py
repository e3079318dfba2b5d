"""Lists as the OpenAPI document shows them; `views` returns the same as generic pages."""

from msgspec import Struct

from duetime.admin.keys import KeyInfo
from duetime.cluster.contract import NodeView
from duetime.views.attempts import AttemptView
from duetime.views.dead import DeadView
from duetime.views.tasks import TaskView


class TaskPage(Struct):
    """Some tasks; `next` is the cursor of the following page, null on the last one."""

    items: list[TaskView]
    next: str | None


class AttemptPage(Struct):
    """Some attempts of a task; `next` is the cursor of the following page, null on the last one."""

    items: list[AttemptView]
    next: str | None


class DeadPage(Struct):
    """Some dead letters; `next` is the cursor of the following page, null on the last one."""

    items: list[DeadView]
    next: str | None


class KeyPage(Struct):
    """Some keys, by id; `next` is the cursor of the following page, null on the last one."""

    items: list[KeyInfo]
    next: str | None


class NodePage(Struct):
    """All nodes that share the shards."""

    items: list[NodeView]
    next: str | None
