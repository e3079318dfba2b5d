"""A program that knows its server and its proxy from the environment only: clients, and a worker with a schedule."""

import asyncio
import os

from duetime import AsyncClient, Client, Worker

QUEUE = os.environ["QUEUE"]

worker = Worker(queues=[QUEUE])


@worker.schedule(name=QUEUE, cron="0 0 1 1 *")
@worker.task("proxied.double")
def double(payload: int) -> int:
    return 2 * payload


async def main() -> None:
    working = asyncio.create_task(worker.run_async())
    async with AsyncClient() as client:
        task = await client.submit("proxied.double", 21, queue=QUEUE)
        assert (await client.wait(task)).result == 42
        assert (await client.get_schedule(QUEUE)).name == QUEUE
    worker.stop()
    await working


with Client() as client:
    task = client.submit("proxied.double", 1, queue=QUEUE, delay="1h")
    assert client.get(task).id == task.id
    client.cancel(task)
asyncio.run(main())
print("done")
