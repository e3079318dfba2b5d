"""Tenants that submit little: one task a second each, evenly over the second, in a process of its own.

Run as `python -m bench.fairness.quiet` with one line of JSON on its command line
(`Quiet`), until SIGTERM or the end of its time.  Its last line is a list: how many
seconds each call took.
"""

import asyncio
import sys
import time

import aiohttp
import msgspec
import uvloop

from bench.peers.programs.common import say_ready, until_terminated


class Quiet(msgspec.Struct, frozen=True):
    url: str
    #: For each tenant, its key and its task; `at` in the payload is set when it is sent.
    keys: list[str]
    tasks: list[dict[str, object]]
    #: None: until it is stopped.
    seconds: float | None = None


async def submit(session: aiohttp.ClientSession, order: Quiet, who: int) -> float:
    task, headers = order.tasks[who], {"Authorization": f"Bearer {order.keys[who]}", "Content-Type": "application/json"}
    payload = task["payload"]
    assert isinstance(payload, dict)
    began = time.monotonic()
    body = msgspec.json.encode({**task, "payload": {**payload, "at": time.time()}})
    async with session.post(f"{order.url}/v1/tasks", data=body, headers=headers) as answer:
        told = await answer.read()
        if answer.status != 202:
            sys.exit(f"the task was refused: {told.decode(errors='replace')[:500]}")
    return time.monotonic() - began


async def main(order: Quiet) -> None:
    terminated = asyncio.create_task(until_terminated())
    calls: list[asyncio.Task[float]] = []
    async with aiohttp.ClientSession() as session:
        say_ready()
        began = time.monotonic()
        while order.seconds is None or len(calls) < order.seconds * len(order.keys):
            wait = began + len(calls) / len(order.keys) - time.monotonic()
            done, _ = await asyncio.wait({terminated}, timeout=max(0.0, wait))
            if done:
                break
            calls.append(asyncio.create_task(submit(session, order, len(calls) % len(order.keys))))
        taken = await asyncio.gather(*calls)
    print(msgspec.json.encode(taken).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Quiet)))
