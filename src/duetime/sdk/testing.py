"""For tests of handlers: a context without a server.

context = make_context("email.send", attempt=2)
await send({"to": "ada@example.com"}, context)
"""

import uuid
from datetime import UTC, datetime

from duetime.sdk.worker.context import Context, Held, Stop
from duetime.sdk.worker.handlers import NO_HANDLER
from duetime.sdk.worker.protocol import LeasedTask


def make_context(
    type: str = "test",
    *,
    task_id: str | None = None,
    attempt: int = 1,
    queue: str = "default",
    labels: dict[str, str] | None = None,
    run_at: datetime | None = None,
    timeout: float | None = None,
    is_cancelled: bool = False,
) -> Context:
    """Make a context like the one that a worker gives to the handler."""
    task = LeasedTask(
        task_id or str(uuid.uuid4()),
        type,
        attempt,
        queue,
        run_at=run_at or datetime.now(UTC),
        timeout=timeout,
        labels=labels,
    )
    held = Held(task, NO_HANDLER)
    held.begin()
    if is_cancelled:
        held.stop = Stop.CANCELLED
    return Context(held, "test-worker")
