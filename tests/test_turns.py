"""One long piece of work at a time, in order, and rounds for the short ones in between."""

import asyncio
from collections.abc import Sequence

import pytest

from duetime.turns import LONG_TASKS, ROUNDS_BETWEEN, SECONDS_BETWEEN, Turns


async def test_whoever_comes_alone_goes_at_once() -> None:
    turns = Turns()
    taking = turns.take()
    with pytest.raises(StopIteration):
        taking.send(None)


async def test_short_pieces_have_their_rounds_between_long_ones() -> None:
    turns, seen = Turns(), []

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
    turns = Turns(lambda: now)

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
    turns, sizes = Turns(), []

    def double(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        return [2 * item for item in items]

    count = 2 * LONG_TASKS + 1
    assert await turns.spread(range(count), double) == list(range(0, 2 * count, 2))
    assert await turns.spread([], double) == []
    assert sizes == [LONG_TASKS, LONG_TASKS, 1, 0]


async def test_whoever_gives_up_holds_up_nobody() -> None:
    turns, seen = Turns(), []

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
