"""Lines in front of target hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.executor.hosts import GRACE_SECONDS, HostSlots

LATER = 1_000.0


def fill(slots: HostSlots[str], host: str, count: int, now: float = 0.0) -> None:
    for _ in range(count):
        assert slots.take(host, now)


def test_a_host_has_no_more_calls_than_its_limit() -> None:
    slots: HostSlots[str] = HostSlots(2, 10)

    assert [slots.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert slots.take("b", 0.0)
    assert slots.running == 3


def test_who_waits_first_goes_first() -> None:
    slots: HostSlots[str] = HostSlots(1, 10)
    fill(slots, "a", 1)
    slots.wait("a", "first", LATER, 0.0)
    slots.wait("a", "second", LATER, 0.0)

    assert slots.free("a", 0.1) == "first"
    assert slots.free("a", 0.2) == "second"
    assert slots.free("a", 0.3) is None
    assert (slots.running, slots.waiting) == (0, 0)


def test_a_burst_may_wait_for_a_moment_and_then_only_as_many_as_the_host_answers() -> None:
    slots: HostSlots[str] = HostSlots(1, 100)
    fill(slots, "a", 1)
    for place in range(50):
        assert slots.wait("a", f"t{place}", LATER, 0.0)
    assert slots.sweep(GRACE_SECONDS / 2) == []

    out = slots.sweep(GRACE_SECONDS)

    assert len(out) == 42
    assert set(slots) == {f"t{place}" for place in range(8)}
    assert not slots.wait("a", "late", LATER, GRACE_SECONDS)


def test_a_fast_host_may_have_a_long_line() -> None:
    slots: HostSlots[str] = HostSlots(1, 100)
    fill(slots, "a", 1)
    for place in range(100):
        slots.wait("a", f"t{place}", LATER, 0.0)
    for _ in range(60):
        slots.free("a", 0.2)

    assert slots.sweep(0.3) == []
    assert slots.waiting == 40
    assert all(slots.wait("a", f"u{place}", LATER, 0.3) for place in range(20))
    assert not slots.wait("a", "one too many", LATER, 0.3)


def test_all_lines_together_are_bounded() -> None:
    slots: HostSlots[str] = HostSlots(1, 3)
    for host in ("a", "b", "c", "d"):
        fill(slots, host, 1)

    assert [slots.wait(host, host, LATER, 0.0) for host in ("a", "b", "c", "d")] == [True, True, True, False]


def test_nobody_waits_longer_than_until_its_time() -> None:
    slots: HostSlots[str] = HostSlots(1, 10)
    fill(slots, "a", 1)
    slots.wait("a", "short", 1.0, 0.0)
    slots.wait("a", "long", 2.0, 0.0)

    assert slots.sweep(1.0) == ["short"]
    assert slots.sweep(2.0) == ["long"]
    assert slots.waiting == 0


def test_who_leaves_a_line_is_not_called() -> None:
    slots: HostSlots[str] = HostSlots(1, 10)
    fill(slots, "a", 1)
    slots.wait("a", "gone", LATER, 0.0)
    slots.wait("a", "here", LATER, 0.0)

    slots.leave("a", "gone")

    assert slots.free("a", 0.1) == "here"


def test_hosts_that_nobody_calls_are_forgotten() -> None:
    slots: HostSlots[str] = HostSlots(1, 10)
    for place in range(100):
        fill(slots, f"h{place}", 1)
        slots.free(f"h{place}", 0.0)

    slots.sweep(5.0)

    assert slots._hosts == {}


@given(st.lists(st.tuples(st.sampled_from(["arrive", "end", "sweep"]), st.sampled_from("ab"), st.floats(0, 0.5))))
@pytest.mark.parametrize("per_host", [1, 3])
def test_counts_stay_true_whatever_happens(per_host: int, steps: list[tuple[str, str, float]]) -> None:
    slots: HostSlots[str] = HostSlots(per_host, 5)
    running = {"a": 0, "b": 0}
    waiting = {"a": 0, "b": 0}
    now = 0.0
    for step, host, passed in steps:
        now += passed
        if step == "arrive":
            if slots.take(host, now):
                assert waiting[host] == 0
                running[host] += 1
            elif slots.wait(host, host, now + 4, now):
                waiting[host] += 1
        elif step == "end" and running[host]:
            if slots.free(host, now) is None:
                running[host] -= 1
            else:
                waiting[host] -= 1
        elif step == "sweep":
            for item in slots.sweep(now):
                waiting[item] -= 1

        assert max(running.values()) <= per_host
        assert slots.running == sum(running.values())
        assert slots.waiting == sum(waiting.values()) <= 5
