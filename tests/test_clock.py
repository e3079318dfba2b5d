"""What a node knows of the database's clock: a bound that is never ahead, and jumps by the first answer."""

import pytest

from duetime.clock import HOLD_US, DatabaseClock, from_us

SECOND = 1_000_000
#: Some time in 2023.
START_US = 1_700_000_000 * SECOND


class World:
    """A node and a database, each with its own clock; both go on together until one is set."""

    def __init__(self) -> None:
        self.monotonic = 100.0
        self.offset_us = START_US
        self.jumps: list[int] = []
        self.clock = DatabaseClock(lambda: self.monotonic)
        self.clock.jumped.listen(self.jumps.append)
        self.clock.observe(self.database_us())

    def database_us(self) -> int:
        return self.offset_us + int(self.monotonic * SECOND)

    def wait(self, seconds: float) -> None:
        self.monotonic += seconds

    def ask(self, there: float = 0.001, back: float = 0.001, *, jump_us: int = 0) -> int:
        """Ask for the time; the answer takes its time, and the clock may jump before it is read."""
        asked = self.clock.ask()
        self.wait(there)
        self.offset_us += jump_us
        answered_us = self.database_us()
        self.wait(back)
        return self.clock.observe(answered_us, asked)

    def run(self, there: float = 0.001, back: float = 0.001, *, jump_us: int = 0) -> None:
        """The same by the answer of some statement."""
        asked = self.clock.ask()
        self.wait(there)
        self.offset_us += jump_us
        answered_us = self.database_us()
        self.wait(back)
        self.clock.hear(asked, from_us(answered_us))


@pytest.fixture
def world() -> World:
    return World()


def test_without_a_jump_the_bound_is_never_ahead_and_no_answer_is_news(world: World) -> None:
    for there, back in ((0.001, 0.001), (3.0, 0.0), (0.0, 4.9), (0.001, 0.001), (20.0, 20.0), (0.001, 0.001)):
        world.run(there, back)
        assert world.clock.now_us() <= world.database_us()
        assert world.ask(there, back) <= 0.002 * SECOND
        assert world.clock.now_us() <= world.database_us()
        world.wait(1.0)

    assert world.jumps == []
    assert not world.clock.is_held
    assert world.database_us() - world.clock.now_us() <= 0.002 * SECOND, "slow answers have not made it late"


@pytest.mark.parametrize("seconds", [-3600, -30, -6, 6, 30, 3600])
@pytest.mark.parametrize("by", ["ask", "run"])
def test_the_first_answer_shows_a_jump_and_holds_until_the_clock_is_read(world: World, seconds: int, by: str) -> None:
    world.wait(0.4)

    getattr(world, by)(jump_us=seconds * SECOND)

    assert [round(jump / SECOND) for jump in world.jumps] == [seconds]
    assert abs(world.clock.now_us() - world.database_us()) < 0.01 * SECOND
    assert world.clock.now_us() <= world.database_us()
    assert world.clock.is_held
    world.run()
    assert world.clock.is_held, "only the question for the time ends it"
    world.ask()
    assert not world.clock.is_held
    assert len(world.jumps) == 1


def test_a_clock_that_jumps_to_and_fro_is_held_until_two_answers_agree(world: World) -> None:
    world.run(jump_us=2 * HOLD_US)
    for jump_us in (-2 * HOLD_US, 2 * HOLD_US, -2 * HOLD_US):
        world.ask(jump_us=jump_us)
        assert world.clock.is_held
    world.ask()

    assert not world.clock.is_held
    assert len(world.jumps) == 4


def test_an_answer_from_before_a_jump_that_is_known_does_not_count(world: World) -> None:
    asked = world.clock.ask()
    before_us = world.database_us()
    world.run(jump_us=-30 * SECOND)

    # Both were on their way all that time.
    world.clock.hear(asked, from_us(before_us))
    assert world.clock.observe(before_us, asked) == 0

    assert world.clock.now_us() <= world.database_us()
    assert world.clock.is_held, "neither is a reading since the jump"
    assert len(world.jumps) == 1


def test_a_small_step_back_is_followed_at_once_and_goes_unmentioned(world: World) -> None:
    world.run(jump_us=-20_000)

    assert world.clock.now_us() <= world.database_us()
    assert world.jumps == []
    assert not world.clock.is_held
