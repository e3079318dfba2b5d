"""What the API offers to workers, as data."""

from duetime.api.bodies.answers import BeatAnswer, LeaseAnswer, SettleAnswer
from duetime.api.bodies.requests import BeatRequest, LeaseRequest, SettleRequest
from duetime.api.operations import WORKERS, Confined, Operation, Reply
from duetime.model.task import MAX_REQUEST_BYTES

LEASE = Operation(
    method="POST",
    path="/v1/workers/lease",
    name="lease_tasks",
    roles=WORKERS,
    confined=Confined.PART,
    tag="Workers",
    summary="Lease tasks to run",
    description="A long poll: answered as soon as something is due, or empty when `wait` is over. Ask for no more than "
    "there is room for, and name the types that you handle. Closing the connection takes the question back.",
    body=LeaseRequest,
    example={"worker": "mailer-7f3a", "queues": ["default"], "types": ["email.send"], "max": 10, "wait": 30},
    replies={200: Reply("The tasks, perhaps none.", LeaseAnswer)},
    also=(409,),
)
SETTLE = Operation(
    method="POST",
    path="/v1/workers/settle",
    name="settle_attempts",
    roles=WORKERS,
    confined=Confined.PART,
    tag="Workers",
    summary="Report how attempts ended",
    description="Repeating a report is safe. An attempt that the worker does not hold (any more) is named in `lost`, "
    "and its report changed nothing.",
    body=SettleRequest,
    example={
        "worker": "mailer-7f3a",
        "settlements": [
            {
                "id": "0199f6b8-2f40-8a3c-9d11-3b5f00000100",
                "attempt": 1,
                "outcome": "succeeded",
                "result": {"sent": True},
            }
        ],
    },
    replies={200: Reply("What became of the reports.", SettleAnswer)},
    also=(409,),
    max_body=MAX_REQUEST_BYTES,
)
BEAT = Operation(
    method="POST",
    path="/v1/workers/beat",
    name="beat",
    roles=WORKERS,
    confined=Confined.PART,
    tag="Workers",
    summary="Say that the worker is alive, and what it holds",
    description="Every `beat_every` seconds. A worker that is silent for three beats has lost what it held; an attempt "
    "that two beats do not name is given to somebody else. With `leaving` the worker signs off: it is gone at once, "
    "what it still holds is given back, and a lease that waits ends.",
    body=BeatRequest,
    example={
        "worker": "mailer-7f3a",
        "attempts": [{"id": "0199f6b8-2f40-8a3c-9d11-3b5f00000100", "attempt": 1, "started": True}],
    },
    replies={200: Reply("What to stop.", BeatAnswer)},
    also=(409,),
    max_body=2 * 1024 * 1024,
    is_vital=True,
)
OPERATIONS = [LEASE, SETTLE, BEAT]
