"""Signals: whoever listens is told, in turn, and the part that tells knows none of them."""

import pytest

from duetime.signals import AwaitedSignal, Signal


def test_all_listeners_are_told_in_the_order_in_which_they_came() -> None:
    told: list[str] = []
    changed = Signal[str, int]()
    changed.listen(lambda host, count: told.append(f"first {host} {count}"))
    changed.listen(lambda host, count: told.append(f"second {host} {count}"))

    changed("a", 3)

    assert told == ["first a 3", "second a 3"]


async def test_a_signal_that_is_awaited_is_over_when_its_listeners_are_done() -> None:
    told: list[int] = []
    made = AwaitedSignal[int]()

    async def hear(lane: int) -> None:
        told.append(lane)

    made.listen(hear)
    await made(7)

    assert told == [7]


async def test_an_error_of_a_listener_reaches_the_part_that_tells() -> None:
    made = AwaitedSignal[[]]()

    async def break_down() -> None:
        raise ValueError("no")

    made.listen(break_down)
    with pytest.raises(ValueError, match="no"):
        await made()
