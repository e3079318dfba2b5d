"""A client that submits many tasks: batches as fast as they are accepted, or at a rate, in a process of its own.

Run as `python -m bench.fairness.flood` with one line of JSON on its command line (`Order`).
Its last line is how many were accepted; a call that fails ends it.
"""

import asyncio
import sys
import time

import aiohttp
import msgspec
import uvloop

from bench.peers.programs.common import split

CONNECTIONS = 3
BATCH = 1_000
_BATCH_SECONDS = 0.05


class Order(msgspec.Struct, frozen=True):
    url: str
    key: str
    #: The tenant of the tasks; the key is an admin's.
    tenant: str
    #: The task; `at` in its payload is set when it is sent, unless it is given.
    task: dict[str, object]
    count: int
    #: None: as fast as they are accepted.
    rate: float | None = None


async def send(session: aiohttp.ClientSession, order: Order, size: int) -> None:
    payload = order.task.get("payload")
    assert isinstance(payload, dict)
    task = {**order.task, "payload": {"at": time.time(), **payload}}
    async with session.post(f"{order.url}/v1/tasks/batch", data=msgspec.json.encode([task] * size)) as answer:
        told = msgspec.json.decode(await answer.read())
        if answer.status not in (200, 202) or told.get("rejected"):
            sys.exit(f"the batch was refused: {str(told)[:500]}")


async def main(order: Order) -> None:
    headers = {
        "Authorization": f"Bearer {order.key}",
        "Content-Type": "application/json",
        "Duetime-Tenant": order.tenant,
    }
    async with aiohttp.ClientSession(headers=headers) as session:
        if order.rate is None:
            sizes = split(order.count, BATCH)

            async def send_all() -> None:
                for size in sizes:
                    await send(session, order, size)

            await asyncio.gather(*[send_all() for _ in range(CONNECTIONS)])
        else:
            size = max(1, min(BATCH, round(order.rate * _BATCH_SECONDS)))
            began, sent = time.monotonic(), 0
            while sent < order.count:
                await asyncio.sleep(began + sent / order.rate - time.monotonic())
                await send(session, order, min(size, order.count - sent))
                sent += size
    print(order.count, flush=True)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Order)))
