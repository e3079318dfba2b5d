"""duetime: a multi-tenant task scheduler on PostgreSQL.

The names of the SDK, imported on first use: `from duetime import Client, Worker`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetime.sdk.admin_shapes import Limits as Limits
    from duetime.sdk.admin_shapes import RateLimit as RateLimit
    from duetime.sdk.admin_shapes import Throttle as Throttle
    from duetime.sdk.admin_shapes import TypeDebounce as TypeDebounce
    from duetime.sdk.admin_shapes import TypeDefaults as TypeDefaults
    from duetime.sdk.admin_shapes import TypeLimits as TypeLimits
    from duetime.sdk.client.async_client import AsyncClient as AsyncClient
    from duetime.sdk.client.sync_client import Client as Client
    from duetime.sdk.context import Context as Context
    from duetime.sdk.errors import ApiError as ApiError
    from duetime.sdk.errors import Permanent as Permanent
    from duetime.sdk.errors import Retry as Retry
    from duetime.sdk.errors import SdkError as SdkError
    from duetime.sdk.errors import Snooze as Snooze
    from duetime.sdk.errors import TaskCancelled as TaskCancelled
    from duetime.sdk.once import once as once
    from duetime.sdk.schedule_shapes import Schedule as Schedule
    from duetime.sdk.shapes import Debounce as Debounce
    from duetime.sdk.shapes import RetryPolicy as RetryPolicy
    from duetime.sdk.shapes import Submission as Submission
    from duetime.sdk.shapes import Target as Target
    from duetime.sdk.shapes import Task as Task
    from duetime.sdk.shapes import Unique as Unique
    from duetime.sdk.tenant_shapes import Egress as Egress
    from duetime.sdk.worker import Worker as Worker

_HOMES = {
    "ApiError": "errors",
    "AsyncClient": "client.async_client",
    "Client": "client.sync_client",
    "Context": "context",
    "Debounce": "shapes",
    "Egress": "tenant_shapes",
    "Limits": "admin_shapes",
    "Permanent": "errors",
    "RateLimit": "admin_shapes",
    "Retry": "errors",
    "RetryPolicy": "shapes",
    "Schedule": "schedule_shapes",
    "SdkError": "errors",
    "Snooze": "errors",
    "Submission": "shapes",
    "Target": "shapes",
    "Task": "shapes",
    "TaskCancelled": "errors",
    "Throttle": "admin_shapes",
    "TypeDebounce": "admin_shapes",
    "TypeDefaults": "admin_shapes",
    "TypeLimits": "admin_shapes",
    "Unique": "shapes",
    "Worker": "worker",
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
