"""The executor's room as the feeder sees it: what is promised, which hosts are full, and who is told of room."""

from collections.abc import Iterator

import pytest

from duetime.executor.call_slots import CallSlots
from duetime.executor.slots import Slot
from duetime.model.gates import encode_gate
from duetime.model.task import Kind, LaneKey, PriorityClass
from duetime.scheduler import rooms
from duetime.scheduler.limits import Governor
from duetime.scheduler.rooms import GATHER_MS, Room

NOW = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slots(clock: Clock) -> CallSlots[str]:
    return CallSlots(64, 4, lambda tenant: 1, clock)


@pytest.fixture
def room(slots: CallSlots[str]) -> Iterator[Room]:
    room = Room(slots)
    yield room
    assert all(meter.promised >= 0 for meter in [*room._tenants.values(), *room._hosts.values()])


def hang(slots: CallSlots[str], clock: Clock, host: str, tenant: int = 1, most: int = 100) -> list[Slot]:
    """Calls to the host begin, and it is known that they take long."""
    known = slots.host(tenant, host, clock())
    known.credit = -100
    begun: list[Slot] = []
    while len(begun) < most and (slot := slots.take(known, clock())) is not None:
        begun.append(slot)
    return begun


def test_what_is_promised_is_not_promised_again(room: Room, slots: CallSlots[str], clock: Clock) -> None:
    hang(slots, clock, "a", most=1)
    assert room.take_all(1, {"a": 2}, NOW)

    assert not room.take_all(1, {"a": 2}, NOW)
    assert not room.is_full(1, "a", NOW)
    room.give_back_all(1, {"a": 1}, NOW)
    assert room.take_all(1, {"a": 2}, NOW)
    assert room.is_full(1, "a", NOW)

    # The executor has taken them and counts them itself.
    room.taken()
    assert room.of_host(1, "a").left == 3


def test_a_full_host_is_full_for_a_while_after_it_had_no_place(room: Room, slots: CallSlots[str], clock: Clock) -> None:
    begun = hang(slots, clock, "a")
    assert room.is_full(1, "a", NOW)
    assert room.has_full(1, NOW)
    clock.now += 10.0
    slots.free(begun[0], clock())

    # Those at its gate come first.
    assert room.of_host(1, "a").available(NOW) == 1
    assert room.is_full(1, "a", NOW + 4_999)
    assert not room.take_all(1, {"b": 1}, NOW)
    assert not room.is_full(1, "a", NOW + 5_000)
    assert not room.has_full(1, NOW + 5_000)
    assert not room.has_full(2, NOW)


def test_a_quick_host_is_full_only_if_it_has_all_calls_that_it_may(
    room: Room, slots: CallSlots[str], clock: Clock
) -> None:
    known = slots.host(1, "a", clock())
    for _ in range(3):
        slot = slots.take(known, clock())
        assert slot is not None
        slots.free(slot, clock())
    room.take_all(1, {"a": 100}, NOW)
    assert room.of_host(1, "a").left <= 0
    assert not room.is_full(1, "a", NOW)
    assert room.take_all(1, {"a": 1}, NOW)

    for _ in range(4):
        assert slots.take(known, clock()) is not None

    assert room.is_full(1, "a", NOW)
    assert not room.take_all(1, {"a": 1}, NOW)


def test_the_clock_may_go_back(room: Room) -> None:
    room.note_full(1, "a", NOW)

    assert not room.has_full(1, NOW - 60_000)


def test_only_so_many_full_hosts_are_remembered(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_MAX_FULL", 10)
    for number in range(100):
        room.note_full(number % 3, f"h{number}", NOW)

    assert len(room._full) == 10
    assert room._full_of.total() == 10


def test_hosts_at_rest_are_forgotten(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_MAX_AT_REST", 10)
    for number in range(100):
        room.take_all(1, {f"h{number}": 1}, NOW)

    room.taken()

    assert room._hosts == {}


def test_lanes_are_opened_when_there_is_room(room: Room, slots: CallSlots[str], clock: Clock) -> None:
    begun = hang(slots, clock, "a")
    room.wait(room.of_host(1, "a"), 7, NOW)
    room.wait(room.of_host(1, "a"), 8, NOW)
    assert room.take_opened() == set()
    slots.free(begun[0], clock())

    assert room.take_opened() == {7, 8}
    assert not room.is_wanted


def test_one_look_goes_round_among_many_that_wait(
    room: Room, slots: CallSlots[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "_MAX_LOOKS", 3)
    begun = {host: hang(slots, clock, host, most=4) for host in "abcde"}
    for lane, host in enumerate("abcde"):
        room.wait(room.of_host(1, host), lane, NOW)
    slots.free(begun["e"][0], clock())

    assert room.take_opened() == set()
    assert room.take_opened() == {4}


def test_room_of_a_tenant_that_trickles_in_is_gathered(room: Room, slots: CallSlots[str], clock: Clock) -> None:
    meter = room.of_tenant(1)
    hang(slots, clock, "a", most=4)
    most = meter.available(NOW)
    meter.took(most - 1, NOW)

    assert meter.left == 1
    assert meter.available(NOW + GATHER_MS - 1) == 0
    assert meter.next_ms(NOW) == NOW + GATHER_MS
    assert meter.available(NOW + GATHER_MS) == 1


def key_of(gate: str = "", kind: Kind = Kind.PUSH) -> LaneKey:
    return LaneKey(1, "mail", PriorityClass.NORMAL, kind, gate=gate)


def test_push_lanes_alone_have_the_room_of_the_executor(slots: CallSlots[str], clock: Clock) -> None:
    governor = Governor()
    assert governor.meters(key_of(), NOW) == ()

    governor.serve(slots)

    assert len(governor.meters(key_of(), NOW)) == 1
    assert governor.meters(key_of(kind=Kind.PULL), NOW) == ()
    at_host = key_of(encode_gate((("host", "a", ""),)))
    assert len(governor.meters(at_host, NOW)) == 2
    hang(slots, clock, "a")
    assert governor.room(at_host, NOW) == 0
    [(reason, detail, until)] = governor.describe(at_host, NOW)
    assert (reason, until) == ("no_slot", None)
    assert detail.startswith("its host a has no free place: 4 calls are under way to it")
