"""duetime: a multi-tenant task scheduler on PostgreSQL.

The names of the SDK, imported on first use: `from duetime import Client, Worker`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetime.sdk.client.async_client import AsyncClient as AsyncClient
    from duetime.sdk.client.sync_client import Client as Client
    from duetime.sdk.errors import ApiError as ApiError
    from duetime.sdk.errors import Permanent as Permanent
    from duetime.sdk.errors import Retry as Retry
    from duetime.sdk.errors import SdkError as SdkError
    from duetime.sdk.errors import Snooze as Snooze
    from duetime.sdk.errors import TaskCancelled as TaskCancelled
    from duetime.sdk.once import once as once
    from duetime.sdk.shapes.flow import Limits as Limits
    from duetime.sdk.shapes.flow import RateLimit as RateLimit
    from duetime.sdk.shapes.flow import Throttle as Throttle
    from duetime.sdk.shapes.flow import TypeDebounce as TypeDebounce
    from duetime.sdk.shapes.flow import TypeDefaults as TypeDefaults
    from duetime.sdk.shapes.flow import TypeLimits as TypeLimits
    from duetime.sdk.shapes.schedules import Schedule as Schedule
    from duetime.sdk.shapes.tasks import Debounce as Debounce
    from duetime.sdk.shapes.tasks import RetryPolicy as RetryPolicy
    from duetime.sdk.shapes.tasks import Submission as Submission
    from duetime.sdk.shapes.tasks import Target as Target
    from duetime.sdk.shapes.tasks import Task as Task
    from duetime.sdk.shapes.tasks import Unique as Unique
    from duetime.sdk.shapes.tenants import Egress as Egress
    from duetime.sdk.worker.context import Context as Context
    from duetime.sdk.worker.worker import Worker as Worker

_HOMES = {
    "ApiError": "errors",
    "AsyncClient": "client.async_client",
    "Client": "client.sync_client",
    "Context": "worker.context",
    "Debounce": "shapes.tasks",
    "Egress": "shapes.tenants",
    "Limits": "shapes.flow",
    "Permanent": "errors",
    "RateLimit": "shapes.flow",
    "Retry": "errors",
    "RetryPolicy": "shapes.tasks",
    "Schedule": "shapes.schedules",
    "SdkError": "errors",
    "Snooze": "errors",
    "Submission": "shapes.tasks",
    "Target": "shapes.tasks",
    "Task": "shapes.tasks",
    "TaskCancelled": "errors",
    "Throttle": "shapes.flow",
    "TypeDebounce": "shapes.flow",
    "TypeDefaults": "shapes.flow",
    "TypeLimits": "shapes.flow",
    "Unique": "shapes.tasks",
    "Worker": "worker.worker",
    "once": "once",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"duetime.sdk.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
