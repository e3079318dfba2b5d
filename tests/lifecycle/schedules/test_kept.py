"""What is kept in memory stays within its bytes, whatever is put into it."""

from hypothesis import given
from hypothesis import strategies as st

from duetime.lifecycle.schedules.kept import Kept

puts = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(0, 60)), max_size=200)


@given(puts)
def test_the_least_lately_used_of_a_tenant_goes_first(asked: list[tuple[int, int, int]]) -> None:
    kept: Kept[tuple[int, int], int] = Kept(most=12, most_bytes=100, most_bytes_of_a_tenant=50)
    model: dict[tuple[int, int], int] = {}

    for tenant, name, size in asked:
        key = (tenant, name)
        kept.put(tenant, key, size, size)
        model.pop(key, None)
        if size <= 50:
            model[key] = size
        while sum(each for (owner, _), each in model.items() if owner == tenant) > 50:
            del model[next(one for one in model if one[0] == tenant)]
        while sum(model.values()) > 100 or len(model) > 12:
            del model[next(iter(model))]

        assert {one: value for one in model if (value := kept.get(one)) is not None} == model
        assert kept.bytes == sum(model.values())
        assert len(kept) == len(model)
        assert kept.bytes_of(tenant) == sum(each for (owner, _), each in model.items() if owner == tenant)


def test_a_tenant_evicts_its_own_first() -> None:
    kept: Kept[str, int] = Kept(most=100, most_bytes=100, most_bytes_of_a_tenant=50)
    kept.put(1, "quiet", 1, 40)

    for number in range(20):
        kept.put(2, f"loud{number}", 1, 10)

    assert kept.get("quiet") == 1
    assert kept.bytes_of(2) == 50
    kept.clear()
    assert (len(kept), kept.bytes, kept.bytes_of(1)) == (0, 0, 0)
