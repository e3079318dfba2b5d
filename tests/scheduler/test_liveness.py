"""Who is silent: only a counter that stands still while everything else goes on."""

from hypothesis import given
from hypothesis import strategies as st

from duetime.scheduler.liveness import LONGEST_GAP_SECONDS, SILENCE_SECONDS, Watch


def look_for(watch: Watch, seconds: int, beats: dict[int, int], start: float = 0.0) -> list[list[tuple[int, int]]]:
    """Look once a second; what each look found."""
    return [watch.look(beats, start + second) for second in range(seconds + 1)]


def test_a_holder_lapses_after_nine_seconds_of_the_same_counter() -> None:
    found = look_for(Watch(), 9, {1: 5})

    assert found == [[]] * 9 + [[(1, 5)]]


def test_holders_that_may_be_silent_for_longer_or_shorter_lapse_later_or_sooner() -> None:
    watch, silences = Watch(12.0), {1: 30.0, 2: 6.0}

    found = [watch.look({1: 5, 2: 5, 3: 5}, float(second), silences) for second in range(31)]

    for holder, seconds in ((1, 30), (2, 6), (3, 12)):
        assert next(second for second, lapsed in enumerate(found) if (holder, 5) in lapsed) == seconds


def test_the_counter_that_was_seen_is_named() -> None:
    watch = Watch()
    look_for(watch, 8, {1: 5, 2: 7})

    assert watch.look({1: 5, 2: 8}, 9.0) == [(1, 5)]


def test_a_beat_begins_the_silence_anew() -> None:
    watch = Watch()
    look_for(watch, 8, {1: 5})

    assert look_for(watch, 8, {1: 6}, start=9.0) == [[]] * 9


def test_a_database_that_was_away_lapses_nobody() -> None:
    watch = Watch()
    look_for(watch, 8, {1: 5})

    watch.interrupted()

    assert look_for(watch, 8, {1: 5}, start=8.5) == [[]] * 9


def test_a_process_that_stood_still_lapses_nobody() -> None:
    watch = Watch()
    look_for(watch, 8, {1: 5})

    assert look_for(watch, 8, {1: 5}, start=8.0 + LONGEST_GAP_SECONDS + 0.1) == [[]] * 9


def test_a_holder_that_is_gone_is_forgotten() -> None:
    watch = Watch()
    look_for(watch, 8, {1: 5})
    watch.look({}, 9.0)

    assert watch.look({1: 5}, 10.0) == []


LOOKS = st.lists(
    st.tuples(
        st.floats(0.1, 5.0),  # seconds since the last look
        st.booleans(),  # whether the database answered
        st.sets(st.integers(1, 3)),  # who has beaten since
    ),
    max_size=60,
)


@given(LOOKS)
def test_whoever_lapses_was_watched_for_nine_seconds_without_a_break(
    looks: list[tuple[float, bool, set[int]]],
) -> None:
    watch = Watch()
    now = 0.0
    beats = dict.fromkeys((1, 2, 3), 0)
    #: Since when the counter is known to be unchanged, without a break.
    watched: dict[int, float] = {}
    looked_at = 0.0
    for seconds, is_answered, beaten in looks:
        now += seconds
        for holder in beaten:
            beats[holder] += 1
            watched.pop(holder, None)
        if not is_answered:
            watch.interrupted()
            watched.clear()
            continue
        if now - looked_at > LONGEST_GAP_SECONDS:
            watched.clear()
        looked_at = now
        for holder in beats:
            watched.setdefault(holder, now)

        silent = watch.look(dict(beats), now)

        assert silent == [
            (holder, count) for holder, count in beats.items() if now - watched[holder] >= SILENCE_SECONDS
        ]
