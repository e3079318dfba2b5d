"""What is answered to a submission is what the encoder would write of the whole view."""

import uuid
from datetime import UTC, datetime

import pytest

from duetime.api.server.http import encode
from duetime.api.tasks.new_views import REMEMBERED_VIEWS, NewViews, view_of
from duetime.lifecycle.submission.batch import Submitted
from duetime.model.task import Kind, LaneKey, NewTask, Options, PriorityClass, make_task

NOW_MS = 1_800_000_000_123


def lane(queue: str = "default", requires: tuple[str, ...] = ()) -> LaneKey:
    return LaneKey(1, queue, PriorityClass.HIGH, Kind.PULL, requires)


def stored(at_ms: int = NOW_MS) -> Submitted:
    return Submitted(uuid.uuid4(), True, at_ms, at_ms)


PLAIN = [
    NewTask(lane(), "email.send", b'{"to": "ada"}'),
    NewTask(lane(), "email.send", b"null"),
    NewTask(lane("mail", ("gpu", "eu")), "other", b'"1970-01-01T00:00:00.001Z"'),
    NewTask(lane("00000000-0000-0000-0000-000000000000"), "00000000-0000-0000-0000-000000000000", b"[1, 2]"),
]
OTHERS = [
    make_task(lane(), "email.send", b"1", run_at=datetime(2030, 1, 1, tzinfo=UTC)),
    make_task(lane(), "email.send", b"1", expires_at=datetime(2030, 1, 1, tzinfo=UTC)),
    make_task(lane(), "email.send", b"1", options=Options(timeout=5.0)),
    make_task(lane(), "email.send", b"1", labels={"a": "b"}),
    make_task(lane(), "email.send", b"1", idempotency_key="k", options=Options(idempotency_key="k")),
]


@pytest.mark.parametrize("task", PLAIN + OTHERS, ids=lambda task: task.type)
def test_a_view_is_the_same_however_it_is_written(task: NewTask) -> None:
    views = NewViews()
    for other in PLAIN:
        views.render(other, stored(), "acme", NOW_MS)
    for at_ms in (NOW_MS, NOW_MS - 5_000, NOW_MS + 5_000):
        submission = stored(at_ms)
        assert views.render(task, submission, "acme", NOW_MS) == encode(view_of(task, submission, "acme", NOW_MS))


def test_tenants_do_not_share_a_view() -> None:
    views = NewViews()
    for name in ("acme", "umbrella", "acme"):
        submission = stored()
        assert views.render(PLAIN[0], submission, name, NOW_MS) == encode(view_of(PLAIN[0], submission, name, NOW_MS))


def test_what_is_remembered_is_bounded() -> None:
    views = NewViews()
    for number in range(REMEMBERED_VIEWS + 10):
        views.render(NewTask(lane(), f"type-{number}", b"1"), stored(), "acme", NOW_MS)
    assert len(views._pieces) <= REMEMBERED_VIEWS
