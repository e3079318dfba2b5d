"""The breakers of a node: apart for each tenant and host, bounded, forced by hand."""

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from duetime.model.breaker_config import DEFAULT
from duetime.model.breaker_status import FREE, Forced
from duetime.model.task import Kind, LaneKey, LeasedTask, Options, PriorityClass, Target
from duetime.scheduler.breakers import Breakers, strictest

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOST = "a.example:443"


class Node:
    """Breakers, and time that is told; a lane's number is its tenant's."""

    def __init__(self, **options: Any) -> None:
        self.now = 1_000_000_000_000
        self.breakers = Breakers(key_of, lambda: self.now, chance=random.Random(5), **options)

    def task(self, tenant: int, url: str = "https://a.example/hook") -> LeasedTask:
        picked_at = EPOCH + timedelta(milliseconds=self.now)
        options = Options(target=Target(url))
        return LeasedTask(uuid.uuid4(), tenant, 1, 1, "t", b"", picked_at, picked_at, 0, 0, 0, options)

    def call(self, tenant: int, ending: Any, count: int = 1, url: str = "https://a.example/hook", **more: Any) -> None:
        for _ in range(count):
            self.now += 50
            self.breakers.report(self.task(tenant, url), ending, **more)

    def available(self, tenant: int, host: str = HOST) -> int:
        breaker = self.breakers.find(tenant, host)
        return FREE if breaker is None else breaker.available(self.now)


def key_of(lane: int) -> LaneKey | None:
    return LaneKey(lane, "default", PriorityClass.NORMAL, Kind.PUSH) if lane else None


def test_failures_open_the_breaker_of_their_tenant_and_host_and_no_other() -> None:
    node = Node()
    node.call(2, "ok", 3)
    node.call(1, "failed", 60, detail="it answered 500")
    node.call(1, "ok", 3, url="https://a.example:8443/hook")

    assert node.available(1) == 0
    assert node.available(2) == node.available(1, "a.example:8443") == DEFAULT.ramp_rate
    [seen] = node.breakers.states(1)
    assert (seen.host, seen.state) == (HOST, "open")
    assert seen.reason.endswith("it answered 500")
    assert node.breakers.states(2) == []


def test_retry_after_stops_a_host_at_once() -> None:
    node = Node()
    node.call(1, "overloaded", retry_after=30.0, detail="it answered 503")
    assert node.available(1) == 0
    assert node.breakers.states(1)[0].next_probe_ms == node.now + 30_000


def test_what_has_no_verdict_makes_no_breaker_and_frees_what_was_taken() -> None:
    node = Node()
    for ending in ("abandoned", "returned"):
        node.call(1, ending)
    assert len(node.breakers) == 0

    breaker = node.breakers.of(1, HOST)
    breaker.took(2, node.now)
    for ending in ("abandoned", "returned"):
        node.call(1, ending)
    assert breaker.in_flight == 0


def test_a_task_without_a_host_or_of_an_unknown_lane_is_nobodys() -> None:
    node = Node()
    node.call(1, "failed", url="nonsense")
    node.call(0, "failed")
    assert len(node.breakers) == 0


def test_forced_states_are_obeyed_until_they_are_gone_and_told() -> None:
    node = Node()
    heard: list[tuple[int, str]] = []
    node.breakers.changed.listen(lambda tenant, host: heard.append((tenant, host)))
    forced: dict[tuple[int, str], Forced] = {(1, HOST): "open", (2, HOST): "closed"}
    node.breakers.obey(forced)
    node.breakers.obey(forced)
    node.call(2, "failed", 60)

    assert (node.available(1), node.available(2)) == (0, FREE)
    assert [each.forced for each in node.breakers.states(2)] == ["closed"]
    assert heard[:2] == [(1, HOST), (2, HOST)]

    node.breakers.obey({})
    assert (node.available(1), node.available(2)) == (3, FREE)
    assert node.breakers.states(2) == []


def test_idle_ones_are_forgotten_and_forced_ones_are_not() -> None:
    node = Node()
    node.call(1, "ok")
    node.call(1, "overloaded", 20, url="https://b.example/")
    forced: dict[tuple[int, str], Forced] = {(1, "c.example:443"): "closed"}
    node.breakers.obey(forced)
    node.now += 61_000
    node.breakers.obey(forced)
    assert [each.host for each in node.breakers.states(1)] == ["b.example:443", "c.example:443"]
    assert len(node.breakers) == 2

    node.now += 900_000
    node.breakers.obey(forced)
    assert [each.host for each in node.breakers.states(1)] == ["c.example:443"]


def test_there_are_never_too_many_and_those_that_stand_against_a_host_go_last() -> None:
    node = Node(most=50)
    node.breakers.obey({(1, "forced.example:443"): "open"})
    node.call(1, "failed", 60)
    for number in range(500):
        node.call(2, "ok", url=f"https://h{number}.example/")
        assert len(node.breakers) <= 50
    # Its cool-down is over: probes, and not everything as for a host of which nothing is known.
    assert node.available(1) == 3
    assert node.breakers.find(1, "forced.example:443") is not None


def test_what_a_ramp_has_no_room_for_has_to_ask_until_the_ramp_is_over() -> None:
    node, floor = Node(), int(DEFAULT.ramp_rate)
    breakers = node.breakers
    heard: list[tuple[int, str]] = []
    breakers.changed.listen(lambda tenant, host: heard.append((tenant, host)))

    assert breakers.begin_all(1, {HOST: floor - 10, "b.example:443": 5}, node.now)
    assert not breakers.begin_all(1, {HOST: 100, "b.example:443": 5}, node.now)

    assert breakers.is_slowed(1, HOST)
    assert not breakers.is_slowed(1, "b.example:443")
    assert not breakers.has_slowed(2)
    assert node.available(1, "b.example:443") == floor - 5
    assert breakers.begin(1, HOST, node.now) is None
    [seen] = breakers.states(1)
    assert (seen.host, seen.state, seen.allowed_rate) == (HOST, "ramping", floor)

    breaker = breakers.of(1, HOST)
    for _ in range(320):
        node.now += 10
        breaker.took(min(50, breaker.available(node.now)), node.now)
    assert heard == [(1, HOST)]
    breakers.obey({})
    assert heard == [(1, HOST)] * 2
    assert not breakers.has_slowed(1)
    assert breakers.states(1) == []
    assert breakers.begin_all(1, {HOST: 10_000}, node.now)


def test_the_first_call_after_a_ramp_ends_it_without_waiting_for_a_sweep() -> None:
    node = Node()
    assert not node.breakers.begin_all(1, {HOST: 10_000}, node.now)
    node.now += DEFAULT.ramp_gap_ms

    assert node.breakers.begin(1, HOST, node.now) is node.breakers.find(1, HOST)
    assert not node.breakers.has_slowed(1)


def test_calls_that_began_unasked_beyond_the_room_make_the_next_ones_ask() -> None:
    node, floor = Node(), int(DEFAULT.ramp_rate)
    node.breakers.began(1, HOST, floor, node.now)
    assert not node.breakers.has_slowed(1)
    node.breakers.began(1, HOST, 1, node.now)
    assert node.breakers.is_slowed(1, HOST)


def test_of_a_host_that_several_nodes_call_the_strictest_breaker_is_shown() -> None:
    one, other = Node(), Node()
    one.call(1, "overloaded")
    other.call(1, "overloaded", retry_after=30.0)
    one.breakers.obey({(1, "b.example:443"): "closed"})

    for found in (
        [*one.breakers.states(1), *other.breakers.states(1)],
        [*other.breakers.states(1), *one.breakers.states(1)],
    ):
        assert [(each.host, each.allowed_rate) for each in strictest(found)] == [(HOST, 0.0), ("b.example:443", None)]
