"""What must be said until it is heard."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from duetime.errors import Unavailable, Unknown
from duetime.executor.resending import Resender


@asynccontextmanager
async def running(resender: Resender[int]) -> AsyncIterator[None]:
    task = asyncio.create_task(resender.run())
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def refusing(errors: list[Exception], heard: list[list[int]]) -> Callable[[Sequence[int]], object]:
    async def send(batch: Sequence[int]) -> None:
        if errors:
            raise errors.pop(0)
        heard.append(list(batch))

    return send


async def test_what_gathers_goes_out_together() -> None:
    heard: list[list[int]] = []
    done: list[int] = []
    resender: Resender[int] = Resender(refusing([], heard), done.append)
    for item in range(3):
        resender.add(item)

    async with running(resender):
        await resender.emptied()

    assert heard == [[0, 1, 2]]
    assert done == [0, 1, 2]


async def test_a_batch_is_repeated_until_it_is_acknowledged() -> None:
    heard: list[list[int]] = []
    done: list[int] = []
    resender: Resender[int] = Resender(
        refusing([Unavailable("away"), Unknown("cut"), Unavailable("away")], heard), done.append
    )
    resender.add(1)

    async with running(resender):
        await resender.emptied()

    assert heard == [[1]]
    assert done == [1]


async def test_one_that_cannot_be_said_does_not_hold_back_the_others() -> None:
    heard: list[int] = []
    done: list[int] = []

    async def send(batch: Sequence[int]) -> None:
        if 2 in batch:
            raise ValueError("two")
        heard.extend(batch)

    resender: Resender[int] = Resender(send, done.append)
    for item in (1, 2, 3):
        resender.add(item)

    async with running(resender):
        await resender.emptied()

    assert heard == [1, 3]
    assert done == [1, 2, 3]


async def test_what_arrives_while_a_batch_is_on_its_way_goes_with_the_next() -> None:
    heard: list[list[int]] = []

    async def send(batch: Sequence[int]) -> None:
        if not heard:
            resender.add(2)
            resender.add(3)
        heard.append(list(batch))

    resender: Resender[int] = Resender(send, lambda item: None)
    resender.add(1)

    async with running(resender):
        await resender.emptied()

    assert heard == [[1], [2, 3]]
