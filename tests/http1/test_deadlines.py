"""One timer for many deadlines."""

import asyncio

from duetime.http1.deadlines import Deadlines


async def test_each_item_expires_at_its_own_time_and_only_once() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    expired: list[tuple[str, float]] = []
    all_expired = asyncio.Event()

    def expire(item: str) -> None:
        expired.append((item, loop.time() - began))
        if len(expired) == 3:
            all_expired.set()

    deadlines: Deadlines[str] = Deadlines(loop, expire)
    deadlines.add("last", began + 0.09)
    deadlines.add("first", began + 0.03)
    deadlines.add("second", began + 0.06)
    deadlines.add("over before", began + 0.04)
    deadlines.discard("over before")
    async with asyncio.timeout(10):
        await all_expired.wait()

    assert [item for item, _ in expired] == ["first", "second", "last"]
    for (_, took), least in zip(expired, (0.03, 0.06, 0.09), strict=True):
        assert took >= least - 0.002


async def test_an_item_may_be_added_or_discarded_while_others_expire() -> None:
    loop = asyncio.get_running_loop()
    expired: list[str] = []
    done = asyncio.Event()

    def expire(item: str) -> None:
        expired.append(item)
        if item == "first":
            deadlines.discard("beside it")
            deadlines.add("follower", loop.time() + 0.01)
        else:
            done.set()

    deadlines: Deadlines[str] = Deadlines(loop, expire)
    deadlines.add("first", loop.time())
    deadlines.add("beside it", loop.time())
    async with asyncio.timeout(10):
        await done.wait()

    assert expired == ["first", "follower"]


async def test_nothing_expires_after_the_close() -> None:
    loop = asyncio.get_running_loop()
    expired: list[str] = []
    deadlines: Deadlines[str] = Deadlines(loop, expired.append)
    deadlines.add("one", loop.time() + 0.01)

    deadlines.close()
    await asyncio.sleep(0.03)

    assert expired == []
