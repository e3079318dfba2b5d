"""Awake while questions follow answers, asleep otherwise."""

import asyncio

from duetime.busy_wait import ANSWER_SECONDS, QUESTION_SECONDS, BusyWait


class Day:
    """Time that goes on when the test says so."""

    def __init__(self, processors: int = 2) -> None:
        self.now = 100.0
        self.busy_wait = BusyWait(lambda: self.now, processors)

    async def rounds(self) -> int:
        """How many rounds of ten the loop makes by itself."""
        loop = asyncio.get_running_loop()
        made = 0
        call_soon = loop.call_soon

        def count(callback: object, *arguments: object, **options: object) -> asyncio.Handle:
            nonlocal made
            made += getattr(callback, "__self__", None) is self.busy_wait
            return call_soon(callback, *arguments, **options)  # type: ignore[arg-type]

        loop.call_soon = count  # type: ignore[method-assign,assignment]
        try:
            for _ in range(10):
                await asyncio.sleep(0)
        finally:
            loop.call_soon = call_soon  # type: ignore[method-assign]
        return made


async def test_a_question_that_comes_alone_keeps_nobody_awake() -> None:
    day = Day()
    for _ in range(3):
        day.busy_wait.asked()
        assert await day.rounds() == 0
        day.busy_wait.answered()
        assert await day.rounds() == 0
        day.now += 2 * QUESTION_SECONDS


async def test_questions_behind_answers_keep_it_awake_until_nothing_comes() -> None:
    day = Day()
    day.busy_wait.asked()
    day.busy_wait.answered()
    day.now += QUESTION_SECONDS / 2
    day.busy_wait.asked()
    assert await day.rounds() >= 9
    day.now += ANSWER_SECONDS
    assert await day.rounds() <= 1
    assert await day.rounds() == 0

    day.busy_wait.answered()
    assert await day.rounds() >= 9
    day.now += QUESTION_SECONDS
    assert await day.rounds() <= 1
    assert await day.rounds() == 0


async def test_alone_on_a_processor_it_sleeps() -> None:
    day = Day(processors=1)
    day.busy_wait.asked()
    day.busy_wait.answered()
    day.busy_wait.asked()
    assert await day.rounds() == 0
