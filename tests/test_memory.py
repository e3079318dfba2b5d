"""Memory goes back to the system once for each busy time, and not in the midst of one."""

from duetime.long_work import LongWork
from duetime.memory import Memory, find_trim


async def test_memory_is_given_back_once_when_a_busy_time_is_over() -> None:
    turns = LongWork()
    trims: list[int] = []
    memory = Memory(turns, lambda: trims.append(turns.count))
    await memory.step()

    for _ in range(3):
        await turns.take()
        await memory.step()
    assert not trims

    await memory.step()
    await memory.step()
    assert trims == [3]


def test_the_call_of_the_c_library_is_harmless() -> None:
    find_trim()()
