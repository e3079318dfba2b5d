import base64
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.errors import InvalidInput
from duetime.ids import just_before
from duetime.model.task import PriorityClass, TaskState
from duetime.views.filters import TaskFilter, check_limit, make_cursor, read_cursor

FILTER = TaskFilter.of(state="ready", type="email.send", labels=["team=a", "city=b"])


@given(st.uuids(), st.integers(min_value=0, max_value=2**31 - 1))
def test_a_cursor_gives_its_position_back(position: uuid.UUID, tenant: int) -> None:
    assert read_cursor(tenant, FILTER, make_cursor(tenant, FILTER, position)) == position


@given(st.text() | st.binary().map(lambda text: base64.urlsafe_b64encode(text).decode()))
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_cursor(1, FILTER, text)

    assert refused.value.errors[0].path == "cursor"


def test_a_changed_cursor_is_refused() -> None:
    cursor = make_cursor(1, FILTER, uuid.uuid4())

    for place in range(len(cursor)):
        changed = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        with pytest.raises(InvalidInput):
            read_cursor(1, FILTER, changed)


def test_a_cursor_of_another_tenant_is_refused() -> None:
    with pytest.raises(InvalidInput, match="another list"):
        read_cursor(2, FILTER, make_cursor(1, FILTER, uuid.uuid4()))


def test_a_cursor_of_another_filter_is_refused() -> None:
    with pytest.raises(InvalidInput, match="another list"):
        read_cursor(1, TaskFilter.of(state="dead"), make_cursor(1, FILTER, uuid.uuid4()))


def test_the_order_of_labels_does_not_make_another_list() -> None:
    other = TaskFilter.of(state="ready", type="email.send", labels=["city=b", "team=a", "city=b"])

    assert other.digest() == FILTER.digest()


def test_words_become_values() -> None:
    wanted = TaskFilter.of(state="ready", priority="high", labels=["key=a=b"])

    assert wanted.state is TaskState.READY
    assert wanted.priority is PriorityClass.HIGH
    assert wanted.labels_json == '{"key":"a=b"}'


def test_two_values_of_one_label_match_nothing() -> None:
    assert TaskFilter.of(labels=["key=b", "key=a"]).labels_json == '{"key":["a","b"]}'


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("state", {"state": "done"}),
        ("priority", {"priority": "urgent"}),
        ("type", {"type": "a b"}),
        ("type", {"type": ""}),
        ("queue", {"queue": "nul\0"}),
        ("label", {"labels": ["novalue"]}),
        ("label", {"labels": ["=value"]}),
        ("label", {"labels": ["key=\0"]}),
        ("label", {"labels": ["key=\ud800"]}),
        ("label", {"labels": [f"key{number}=a" for number in range(33)]}),
        ("to", {"from_ms": 2, "to_ms": 1}),
    ],
)
def test_a_wrong_filter_names_its_field(path: str, given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        TaskFilter.of(**given)  # type: ignore[arg-type]

    assert refused.value.errors[0].path == path


def test_the_bounds_hold_the_asked_time_and_stay_within_what_an_id_can_say() -> None:
    wanted = TaskFilter.of(from_ms=1_000, to_ms=2_000)

    assert wanted.earliest == just_before(1_000)
    assert wanted.latest == just_before(2_000)
    assert TaskFilter.of(from_ms=-5).earliest == uuid.UUID(int=0)
    assert TaskFilter.of(to_ms=1 << 60).latest > just_before((1 << 48) - 2)


@pytest.mark.parametrize("limit", [0, -1, 201])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        check_limit(limit)
