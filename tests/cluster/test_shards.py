"""Rendezvous hashing: even, stable, and the same everywhere."""

from collections import Counter

import pytest

from duetime.cluster.shards import assign, owner_of
from duetime.ids import SHARDS

NAMES = [f"node-{place}" for place in range(1, 9)]


def test_without_a_node_nobody_has_a_shard() -> None:
    assert assign(frozenset()) == (None,) * SHARDS
    assert owner_of("duty", ()) is None


def test_a_single_node_has_them_all() -> None:
    assert assign(frozenset({"a"})) == ("a",) * SHARDS


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_every_node_has_a_fair_share(count: int) -> None:
    shares = Counter(assign(frozenset(NAMES[:count])))

    assert set(shares) == set(NAMES[:count])
    assert min(shares.values()) >= 0.6 * SHARDS / count
    assert max(shares.values()) <= 1.5 * SHARDS / count


@pytest.mark.parametrize("gone", NAMES[:4])
def test_only_the_shards_of_a_node_that_goes_move(gone: str) -> None:
    before = assign(frozenset(NAMES[:4]))
    after = assign(frozenset(NAMES[:4]) - {gone})

    assert [(was, now) for was, now in zip(before, after, strict=True) if was != now and was != gone] == []
    assert gone not in after


def test_the_shards_of_a_node_that_goes_are_spread_over_the_others() -> None:
    before = assign(frozenset(NAMES[:4]))
    after = assign(frozenset(NAMES[:3]))

    heirs = Counter(now for was, now in zip(before, after, strict=True) if was == NAMES[3])
    assert set(heirs) == set(NAMES[:3])


def test_the_owner_does_not_depend_on_the_order_or_the_process() -> None:
    assert owner_of("holder 1 w", NAMES) == owner_of("holder 1 w", reversed(NAMES))
    # A figure that another process, another day, another machine must find too.
    own = [shard for shard, owner in enumerate(assign(frozenset(NAMES[:2]))) if owner == NAMES[0]]
    assert own[:5] == [2, 4, 6, 7, 8]
