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
    description="A long poll: the answer comes as soon as a task is due, or is empty after `wait`. Ask for no more "
    "tasks than there is room for, and name the types that you handle. Closing the connection withdraws the "
    "request.",
    body=LeaseRequest,
    example={"worker": "mailer-7f3a", "queues": ["default"], "types": ["email.send"], "max": 10, "wait": 30},
    replies={200: Reply("The leased tasks. The list may be empty.", LeaseAnswer)},
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
    description="Repeating a report is safe. A report for an attempt that the worker does not hold (any more) "
    "changes nothing, and the attempt is listed in `lost`.",
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
    replies={200: Reply("What happened to each report.", SettleAnswer)},
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
    description="Send one every `beat_every` seconds. A worker that is silent for three beats loses all that it "
    "held. An attempt that two beats do not name is given to another worker. With `leaving` the worker "
    "signs off: it is removed at once, what it still holds is released, and its waiting lease request ends.",
    body=BeatRequest,
    example={
        "worker": "mailer-7f3a",
        "attempts": [{"id": "0199f6b8-2f40-8a3c-9d11-3b5f00000100", "attempt": 1, "started": True}],
    },
    replies={200: Reply("The attempts to stop.", BeatAnswer)},
    also=(409,),
    max_body=2 * 1024 * 1024,
    is_vital=True,
)
OPERATIONS = [LEASE, SETTLE, BEAT]
