"""One long piece of work in each round of the loop, in order, and short ones in between."""

import asyncio

import pytest

from duetime.turns import Turns


async def test_whoever_comes_alone_goes_at_once() -> None:
    turns = Turns()
    taking = turns.take()
    with pytest.raises(StopIteration):
        taking.send(None)


async def test_each_round_has_one_long_piece_and_all_short_ones() -> None:
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
        asyncio.get_running_loop().call_soon(look, 8)

    assert [name for name in seen if name != "."] == ["a", "b", "c", "d"]
    text = "".join(seen)
    assert not any(pair in text for pair in ("ab", "bc", "cd")), text


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
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(StopIteration):
        turns.take().send(None)
