"""Rounds from the very beginning: every stretch in its turn, with rests."""

from duetime.scheduler.rounds import REST_SECONDS, SHARE, Rounds

NOW_MS = 1_800_000_000_000


def walk(rounds: Rounds, monotonic: float, took: float) -> list[tuple[int, int | None]]:
    stretches = []
    while stretch := rounds.next(NOW_MS, monotonic):
        stretches.append(stretch)
        rounds.looked(stretch[1], monotonic, monotonic + took)
    return stretches


def test_a_round_covers_all_time_without_a_gap() -> None:
    stretches = walk(Rounds(), 0.0, 0.001)

    assert stretches[0][0] == 0
    assert stretches[-1][1] is None
    assert [begin for begin, _ in stretches[1:]] == [end for _, end in stretches[:-1]]


def test_a_stretch_that_takes_long_is_followed_by_a_rest() -> None:
    rounds = Rounds()

    assert len(walk(rounds, 0.0, 2.0)) == 1
    assert walk(rounds, 2.0 / SHARE - 1.0, 2.0) == []
    assert len(walk(rounds, 2.0 / SHARE, 2.0)) == 1


def test_after_the_last_stretch_the_next_round_begins_after_a_rest() -> None:
    rounds = Rounds()
    first = walk(rounds, 0.0, 0.0)

    assert rounds.next(NOW_MS, 0.9 * REST_SECONDS) is None
    assert walk(rounds, REST_SECONDS, 0.0) == first
