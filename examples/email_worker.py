"""A worker with a plain and an async handler.

export DUETIME_URL=… DUETIME_KEY=…          # not needed in the folder of a `make up`
duetime worker examples.email_worker:worker  # or: python examples/email_worker.py
python examples/submit_emails.py 10
"""

import asyncio
import logging

import msgspec

from duetime import Context, Permanent, Retry, Snooze, Worker

worker = Worker(queues=["mail"], concurrency=50, threads=4)


class Email(msgspec.Struct):
    to: str
    subject: str = "Hello"


@worker.task("email.send", timeout="30s")
async def send(payload: Email, context: Context) -> dict[str, str]:
    """An async handler: many of them run at a time, on one event loop."""
    if "@" not in payload.to:
        raise Permanent(f"{payload.to} is not an address")  # a dead letter at once
    if payload.to.endswith("@busy.example"):
        raise Retry("the mail server is busy", after="10s")  # uses up an attempt
    await asyncio.sleep(0.01)  # the mail server takes its time
    # The same for every attempt: a mail server that knows it sends the mail once.
    return {"message_id": f"<{context.idempotency_key}@example.com>"}


@worker.task("report.build")
def build(payload: dict[str, int], context: Context) -> int:
    """A plain function: it runs in a thread, and looks up now and then whether to go on."""
    if payload.get("not_before_attempt", 1) > context.attempt:
        raise Snooze(1)  # later; uses up nothing
    total = 0
    for number in range(payload.get("size", 1000)):
        if number % 1000 == 0:
            context.check()  # raises when the task was cancelled, timed out or taken over
        total += number
    return total


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    worker.run()
