"""Ids of a call, kept with its request, and UUIDs as they are read."""

import uuid

import pytest

from duetime.ids import (
    count_ids,
    looks_like_id,
    make_id,
    make_ids,
    names_a_request,
    pack_ids,
    parse_uuid,
    take_salts,
    unpack_ids,
)
from duetime.sdk.uuid7 import make_uuid7

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


def test_a_request_is_named_by_version_7_of_the_usual_variant() -> None:
    good = make_uuid7()

    assert names_a_request(good)
    assert not names_a_request(uuid.uuid4())
    assert not names_a_request(uuid.UUID(int=good.int ^ 1 << 63))
    assert not looks_like_id(good)
    assert looks_like_id(make_id(1, 2, 3))


@pytest.mark.parametrize("wrong", ["", "0" * 35 + " ", "0" * 35 + "_", "g" + "0" * 35, "\u0663" + "0" * 31])
def test_a_text_that_is_no_uuid_is_refused(wrong: str) -> None:
    assert parse_uuid("0" * 31 + "f") == uuid.UUID(int=15)
    with pytest.raises(ValueError, match="invalid UUID"):
        parse_uuid(wrong)


def test_salts_count_on_from_call_to_call() -> None:
    first = take_salts(3)

    assert take_salts(1) == first + 3
    assert take_salts(1) == first + 4
