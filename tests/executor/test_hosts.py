"""Lines in front of target hosts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import far
from duetime.executor.hosts import GRACE_SECONDS, Lines
from duetime.executor.slots import Host, Slot, Slots

LATER = 1_000.0


def make_lines(per_host: int = 1, size: int = 1_000) -> Lines[str]:
    return Lines(Slots(size, per_host))


def host_of(lines: Lines[str], name: str = "a", tenant: int = 1, now: float = 0.0) -> Host:
    return lines._slots.host(tenant, name, now)


def begin(lines: Lines[str], host: Host, now: float = 0.0) -> Slot:
    slot = lines.take(host, now)
    assert slot is not None
    return slot


def make_quick(lines: Lines[str], host: Host, calls: int = 1, now: float = 0.0) -> None:
    """So many calls to the host end at once."""
    for _ in range(calls):
        lines.free(begin(lines, host, now), now)


def test_who_waits_first_goes_first() -> None:
    lines = make_lines()
    host = host_of(lines)
    slot = begin(lines, host)
    lines.wait(host, "first", LATER, 0.0)
    lines.wait(host, "second", LATER, 0.0)

    [(first, slot)] = lines.free(slot, 0.1)
    [(second, slot)] = lines.free(slot, 0.2)

    assert (first, second) == ("first", "second")
    assert lines.free(slot, 0.3) == []
    assert (lines._slots.running, lines.waiting) == (0, 0)


def test_nobody_overtakes_who_waits() -> None:
    lines = make_lines(per_host=2)
    host = host_of(lines)
    held = [begin(lines, host), begin(lines, host)]
    lines.wait(host, "first", LATER, 0.0)
    lines._slots.end(held[0], 0.1)

    assert lines.take(host, 0.1) is None


def test_a_burst_for_a_new_host_may_wait_for_a_moment_and_not_again() -> None:
    lines = make_lines(size=200)
    host = host_of(lines)
    begin(lines, host)
    for item in range(50):
        assert lines.wait(host, f"t{item}", LATER, 0.0)
    assert lines.sweep(GRACE_SECONDS / 2) == ([], [])

    out, begun = lines.sweep(GRACE_SECONDS)

    assert len(out) == 50
    assert begun == []
    assert not lines.wait(host, "late", LATER, GRACE_SECONDS)
    assert not lines.wait(host, "much later", LATER, 30.0)


def test_a_quick_host_may_have_a_line_as_long_as_what_it_answers() -> None:
    lines = make_lines()
    host = host_of(lines)
    make_quick(lines, host, 60)
    begin(lines, host, 0.2)

    assert all(lines.wait(host, f"t{item}", LATER, 0.3) for item in range(60))
    assert not lines.wait(host, "one too many", LATER, 0.3)
    assert lines.sweep(0.4) == ([], [])


def test_a_host_some_of_whose_calls_take_long_keeps_its_line() -> None:
    lines = make_lines(per_host=2)
    host = host_of(lines)
    slow = begin(lines, host)
    for second in range(4):
        make_quick(lines, host, 60, now=0.5 + second)
    slot = begin(lines, host, 4.0)
    assert all(lines.wait(host, f"t{item}", LATER, 4.0) for item in range(60))

    assert [item for item, _ in lines.free(slow, 4.1)] == ["t0"]

    assert host.credit < 0
    assert lines.sweep(4.2) == ([], [])
    assert [item for item, _ in lines.free(slot, 4.3)] == ["t1"]


def test_calls_that_time_out_make_no_line() -> None:
    lines = make_lines(per_host=4)
    host = host_of(lines)
    held = [begin(lines, host) for _ in range(4)]
    for slot in held:
        lines.free(slot, 45.0)
    begin(lines, host, 45.0)

    assert not lines.wait(host, "t", LATER, 45.0)


def test_a_host_that_hangs_loses_its_line() -> None:
    lines = make_lines()
    host = host_of(lines)
    make_quick(lines, host, 60)
    begin(lines, host, 0.2)
    for item in range(60):
        lines.wait(host, f"t{item}", LATER, 0.2)

    out, begun = lines.sweep(3.0)

    assert (len(out), begun) == (60, [])
    assert not lines.wait(host, "late", LATER, 3.0)


def test_a_new_host_has_no_line_if_its_tenant_holds_all_that_it_may_and_one_if_others_do() -> None:
    lines = make_lines(per_host=64, size=64)
    for name in "abcdefgh":
        while lines.take(host_of(lines, name), 0.0) is not None:
            pass

    assert not lines.wait(host_of(lines, "new"), "t", LATER, 0.0)
    for tenant in range(2, 100):
        while lines.take(host_of(lines, tenant=tenant), 0.0) is not None:
            pass
    assert lines.wait(host_of(lines, tenant=100), "t", LATER, 0.0)


def test_each_tenant_leaves_as_much_room_in_line_as_it_takes() -> None:
    lines = make_lines(size=300)
    taken = []
    for tenant in (1, 2, 3):
        host = host_of(lines, tenant=tenant)
        begin(lines, host)
        taken.append(0)
        while lines.wait(host, "t", LATER, 0.0):
            taken[-1] += 1

    assert taken == [150, 75, 38]


def test_nobody_waits_longer_than_until_its_time() -> None:
    lines = make_lines()
    host = host_of(lines)
    make_quick(lines, host)
    begin(lines, host)
    lines.wait(host, "short", 1.0, 0.0)
    lines.wait(host, "long", 2.0, 0.0)

    assert lines.sweep(1.0) == (["short"], [])
    assert lines.sweep(2.0) == (["long"], [])
    assert lines.waiting == 0


def test_who_leaves_a_line_is_not_called() -> None:
    lines = make_lines()
    host = host_of(lines)
    slot = begin(lines, host)
    lines.wait(host, "gone", LATER, 0.0)
    lines.wait(host, "here", LATER, 0.0)

    lines.leave(host, "gone")

    assert [item for item, _ in lines.free(slot, 0.1)] == ["here"]


def test_a_slot_that_comes_free_goes_to_another_host_if_its_own_has_nobody() -> None:
    lines = make_lines(per_host=10, size=10)
    first, second = host_of(lines, tenant=1), host_of(lines, tenant=2)
    for host in (first, second):
        make_quick(lines, host, 20)
    held = [slot for _ in range(10) if (slot := lines.take(first, 0.1)) is not None]
    filling = [slot for _ in range(10) if (slot := lines.take(second, 0.1)) is not None]
    assert lines.wait(second, "t", LATER, 0.1)

    begun = []
    while not begun:
        begun = lines.free((held or filling).pop(), 0.2)

    assert [item for item, _ in begun] == ["t"]


NAMES = st.tuples(st.sampled_from([1, 2]), st.sampled_from("ab"))


@settings(max_examples=far(100, 3_000), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["arrive", "end", "sweep"]), NAMES, st.floats(0, 0.5)), max_size=80))
@pytest.mark.parametrize("per_host", [1, 3])
def test_counts_stay_true_whatever_happens(per_host: int, steps: list[tuple[str, tuple[int, str], float]]) -> None:
    slots = Slots(5, per_host)
    lines: Lines[tuple[int, str]] = Lines(slots)
    running: dict[tuple[int, str], list[Slot]] = {}
    waiting: list[tuple[int, str]] = []
    now = 0.0

    def begun(items: list[tuple[tuple[int, str], Slot]]) -> None:
        for item, slot in items:
            waiting.remove(item)
            running.setdefault(item, []).append(slot)

    for step, name, passed in steps:
        now += passed
        held = running.setdefault(name, [])
        if step == "arrive":
            host = slots.host(*name, now)
            if (slot := lines.take(host, now)) is not None:
                assert name not in waiting
                held.append(slot)
            elif lines.wait(host, name, now + 4, now):
                waiting.append(name)
        elif step == "end" and held:
            begun(lines.free(held.pop(0), now))
        elif step == "sweep":
            out, let_in = lines.sweep(now)
            begun(let_in)
            for item in out:
                waiting.remove(item)

        assert all(len(held) <= per_host for held in running.values())
        assert slots.running == sum(len(held) for held in running.values()) <= 5
        assert lines.waiting == len(waiting) <= 5


def test_the_allowance_says_how_many_more_find_room_in_line() -> None:
    lines = make_lines(per_host=2, size=40)
    host = host_of(lines)
    make_quick(lines, host, calls=100)
    begin(lines, host), begin(lines, host)

    allowance = lines.allowance(host, 0.0)
    stood = sum(lines.wait(host, f"t{item}", LATER, 0.0) for item in range(40))

    assert stood == allowance == 20
