"""Arrays without what need not be in them."""

import pytest

from duetime.database.arrays import same, sparse


@pytest.mark.parametrize(
    ("column", "given"),
    [([], None), ([None, None], None), ([None, b"x"], [None, b"x"]), ([b"x"], [b"x"])],
)
def test_an_array_with_nothing_in_it_is_left_out(column: list[bytes | None], given: list[bytes | None] | None) -> None:
    assert sparse(column) == given


@pytest.mark.parametrize(
    ("column", "given"),
    [([], ([], None)), ([7], (None, 7)), ([7, 7], (None, 7)), ([7, 8], ([7, 8], None)), ([None, None], (None, None))],
)
def test_a_value_that_is_everywhere_stands_for_the_array(
    column: list[int | None], given: tuple[list[int | None] | None, int | None]
) -> None:
    assert same(column) == given
