"""One long piece of work at a time, in order, and rounds for the short ones in between."""

import asyncio
from collections.abc import Sequence

import pytest

from duetime.long_work import (
    FIRST_ITEMS,
    HELD_SECONDS,
    HELD_SHARE,
    LONG_TASKS,
    PIECE_SECONDS,
    ROUNDS_BETWEEN,
    SECONDS_BETWEEN,
    LongWork,
)


async def test_whoever_comes_alone_goes_at_once() -> None:
    turns = LongWork()
    taking = turns.take()
    with pytest.raises(StopIteration):
        taking.send(None)


async def test_short_pieces_have_their_rounds_between_long_ones() -> None:
    turns, seen = LongWork(), []

    async def work(name: str) -> None:
        await turns.take()
        seen.append(name)

    def look(rounds: int) -> None:
        seen.append(".")
        if rounds:
            asyncio.get_running_loop().call_soon(look, rounds - 1)

    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(work(name))
        asyncio.get_running_loop().call_soon(look, 8 * ROUNDS_BETWEEN)

    assert [name for name in seen if name != "."] == ["a", "b", "c", "d"]
    text = "".join(seen)
    between = [text.index(later) - text.index(earlier) - 1 for earlier, later in ("ab", "bc", "cd")]
    assert min(between) > ROUNDS_BETWEEN, text


async def test_where_rounds_are_long_a_turn_does_not_wait_for_several() -> None:
    now, seen = 0.0, []
    turns = LongWork(lambda: now)

    async def work(name: str) -> None:
        await turns.take()
        seen.append(name)

    def be_slow(rounds: int) -> None:
        nonlocal now
        now += 2 * SECONDS_BETWEEN
        seen.append(".")
        if rounds:
            asyncio.get_running_loop().call_soon(be_slow, rounds - 1)

    async with asyncio.TaskGroup() as group:
        asyncio.get_running_loop().call_soon(be_slow, 12)
        for name in "abcd":
            group.create_task(work(name))

    text = "".join(seen)
    between = [text.index(later) - text.index(earlier) - 1 for earlier, later in ("ab", "bc", "cd")]
    assert max(between) <= 2, text


async def test_a_long_list_is_done_in_pieces_and_in_order() -> None:
    turns, sizes = LongWork(), []

    def double(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        return [2 * item for item in items]

    count = 2 * LONG_TASKS + 1
    assert await turns.spread(range(count), double) == list(range(0, 2 * count, 2))
    assert await turns.spread([], double) == []
    assert sizes == [FIRST_ITEMS, LONG_TASKS - FIRST_ITEMS, LONG_TASKS, 1]


async def test_whoever_gives_up_holds_up_nobody() -> None:
    turns, seen = LongWork(), []

    async def work(name: str) -> None:
        await turns.take()
        seen.append(name)

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks, timeout=5)

    assert seen == ["a", "c"]
    # And the next one need not wait.
    for _ in range(2 * ROUNDS_BETWEEN):
        await asyncio.sleep(0)
    with pytest.raises(StopIteration):
        turns.take().send(None)


class Watched(LongWork):
    """With a clock that is set by hand, and who had a turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: list[str] = []
        super().__init__(lambda: self.now)

    async def work(self, name: str) -> None:
        await self.take()
        self.seen.append(name)

    async def go_on(self) -> None:
        """As many rounds as any turn has to wait for others."""
        for _ in range(4 * ROUNDS_BETWEEN):
            await asyncio.sleep(0)


async def test_no_turn_begins_while_a_light_call_is_under_way() -> None:
    turns = Watched()
    with turns.held():
        working = asyncio.create_task(turns.work("a"))
        await turns.go_on()
        assert turns.seen == []
    await working
    assert turns.seen == ["a"]


async def test_a_light_call_holds_up_whoever_is_next_not_whoever_has_begun() -> None:
    turns = Watched()
    workings = [asyncio.create_task(turns.work(name)) for name in "ab"]
    await asyncio.sleep(0)
    with turns.held():
        await turns.go_on()
        assert turns.seen == ["a"]
    await asyncio.gather(*workings)
    assert turns.seen == ["a", "b"]


async def test_of_several_light_calls_the_last_lets_go() -> None:
    turns = Watched()
    with turns.held():
        with turns.held():
            working = asyncio.create_task(turns.work("a"))
            await turns.go_on()
        await turns.go_on()
        assert turns.seen == []
    await working


async def test_light_calls_that_never_end_hold_up_a_turn_for_a_while_only() -> None:
    turns = LongWork()
    with turns.held():
        async with asyncio.timeout(5):
            await turns.take()
            await turns.take()


async def test_light_calls_get_a_share_of_the_time() -> None:
    turns = Watched()

    async def hold_up(seconds: float) -> bool:
        """A light call that takes so long; whether the turn waited for it."""
        with turns.held():
            working = asyncio.create_task(turns.work("."))
            await turns.go_on()
            has_waited = not working.done()
            turns.now += seconds
        await working
        await turns.go_on()
        return has_waited

    late = 2 * HELD_SECONDS
    assert await hold_up(late)
    assert not await hold_up(0.0)
    turns.now += late / HELD_SHARE
    assert await hold_up(late)
    assert not await hold_up(0.0)
    # What was not used is not saved up.
    turns.now += 100 * late / HELD_SHARE
    assert await hold_up(late)
    assert not await hold_up(0.0)


async def test_whoever_gives_up_while_a_light_call_is_under_way_leaves_no_trace() -> None:
    turns = Watched()
    with turns.held():
        working = asyncio.create_task(turns.work("a"))
        await turns.go_on()
        working.cancel()
        await turns.go_on()
    await turns.go_on()
    with pytest.raises(StopIteration):
        turns.take().send(None)


async def test_items_that_take_long_are_done_in_smaller_pieces() -> None:
    """Also of a list that is short: 250 payloads may be 16 MiB."""
    now, pieces = 0.0, list[int]()
    turns = LongWork(lambda: now)

    def slowly(some: Sequence[int]) -> Sequence[int]:
        nonlocal now
        now += 0.002 * len(some)
        pieces.append(len(some))
        return some

    for count in (20, LONG_TASKS, 4 * LONG_TASKS):
        pieces.clear()
        before = turns.count
        assert await turns.spread(range(count), slowly) == [*range(count)]
        assert pieces[0] == FIRST_ITEMS
        assert max(pieces[1:]) * 0.002 <= PIECE_SECONDS
        assert turns.count - before >= len(pieces) - 1


async def test_items_that_take_nothing_are_done_in_as_few_turns_as_ever() -> None:
    turns = LongWork(lambda: 0.0)

    await turns.spread(range(LONG_TASKS), lambda some: some)
    assert turns.count == 0
    await turns.spread(range(4 * LONG_TASKS), lambda some: some)
    assert turns.count == 4
