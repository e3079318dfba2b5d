"""Ids of a call, kept with its request."""

import pytest

from duetime.ids import count_ids, make_ids, pack_ids, unpack_ids

_NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("count", [1, 2, 5_000])
def test_ids_of_one_time_and_lane_are_kept_as_a_row(count: int) -> None:
    ids = make_ids([(_NOW_MS, 300)] * count)

    packed = pack_ids(ids, is_row=True)

    assert (unpack_ids(packed), count_ids(packed)) == (ids, count)
    assert len(packed) < 20


@pytest.mark.parametrize("count", [1, 2, 19, 5_000])
def test_other_ids_are_kept_one_by_one(count: int) -> None:
    ids = make_ids([(_NOW_MS + place % 3, 300 + place % 2) for place in range(count)])

    packed = pack_ids(ids, is_row=False)

    assert (unpack_ids(packed), count_ids(packed)) == (ids, count)
