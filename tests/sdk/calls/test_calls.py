import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from duetime.sdk.calls import tasks as calls
from duetime.sdk.calls.call import Answer, ApiCall, Tries
from duetime.sdk.calls.problems import read_retry_after
from duetime.sdk.errors import (
    ApiError,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    ServerUnavailable,
    ServerUnreachable,
    Unauthorized,
)
from duetime.sdk.shapes.answers import Problem
from duetime.sdk.shapes.durations import seconds_of
from duetime.sdk.shapes.tasks import BatchItem, BatchResult, RetryPolicy, Submission, Target
from duetime.sdk.transport.route import Route


def body_of(call: ApiCall[object]) -> object:
    return json.loads(call.body or b"null")


def problem(status: int, **fields: object) -> Answer:
    return Answer(status, {}, msgspec.json.encode({"status": status, "code": "x", "detail": "no", **fields}))


def test_a_submission_has_only_what_was_given() -> None:
    call = calls.submit(Submission("email.send", {"to": "ada"}, delay="5m"))

    assert body_of(call) == {"type": "email.send", "payload": {"to": "ada"}, "delay": "5m"}
    assert (call.method, call.path) == ("POST", "/v1/tasks")


def test_times_and_durations_are_written_as_the_api_takes_them() -> None:
    submission = Submission(
        "report",
        run_at=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
        timeout=timedelta(minutes=2),
        sla=1.5,
        target=Target("https://example.com", timeout=timedelta(seconds=3)),
        retry=RetryPolicy(max_attempts=3, min_backoff=timedelta(seconds=2)),
    )

    assert body_of(calls.submit(submission)) == {
        "type": "report",
        "run_at": "2030-01-02T03:04:05Z",
        "timeout": 120.0,
        "sla": 1.5,
        "target": {"url": "https://example.com", "timeout": 3.0},
        "retry": {"max_attempts": 3, "min_backoff": 2.0},
    }


def test_a_target_can_be_just_its_address() -> None:
    call = calls.submit(Submission("hook", target="https://example.com/hook"))

    assert body_of(call) == {"type": "hook", "target": {"url": "https://example.com/hook"}}


def test_a_time_without_zone_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="run_at has no time zone"):
        Submission("report", run_at=datetime(2030, 1, 1))


def test_every_call_has_a_key_of_its_own_that_stays_the_same() -> None:
    first, second = calls.submit(Submission("a")), calls.submit(Submission("a"))

    sent = Route.to("http://127.0.0.1:8080", "secret").write(first.method, first.path, first.body, first.key)
    assert f"\r\nIdempotency-Key: {first.key}\r\n".encode() in sent
    assert first.key != second.key


def test_a_batch_is_cut_by_number() -> None:
    made = list(calls.submit_many({"type": "a", "payload": number} for number in range(10_001)))

    sizes = [len(json.loads(call.body or b"")) for call in made]
    assert sizes == [5_000, 5_000, 1]
    assert len({call.key for call in made}) == 3


def test_a_batch_is_cut_by_bytes() -> None:
    made = list(calls.submit_many(Submission("a", "x" * 60_000) for _ in range(600)))

    # Halved until each part fits.
    assert len(made) == 4
    assert all(len(call.body or b"") <= 15 * 1024 * 1024 + 2 for call in made)
    assert sum(len(json.loads(call.body or b"")) for call in made) == 600


def test_an_atomic_batch_has_to_fit_into_one_call() -> None:
    with pytest.raises(ValueError, match="atomic"):
        list(calls.submit_many(({"type": "a"} for _ in range(5_001)), atomic=True))


def test_an_empty_batch_needs_no_call() -> None:
    assert list(calls.submit_many([])) == []


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError):
        list(calls.submit_many([{"type": "a", "dealy": 5}]))


def test_filters_become_a_query() -> None:
    call = calls.list_tasks(
        {"state": "dead", "labels": {"team": "a b"}, "from_": datetime(2030, 1, 1, tzinfo=UTC), "queue": None},
        limit=10,
        cursor=None,
    )

    assert call.path == "/v1/tasks?state=dead&from=2030-01-01T00%3A00%3A00%2B00%3A00&label=team%3Da+b&limit=10"


def test_an_id_cannot_lead_to_another_path() -> None:
    assert calls.get("../keys?x").path == "/v1/tasks/..%2Fkeys%3Fx"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (413, InvalidRequest),
        (422, InvalidRequest),
        (429, ServerUnavailable),
        (500, ApiError),
        (502, ServerUnavailable),
        (503, ServerUnavailable),
        (504, ServerUnavailable),
    ],
)
def test_a_status_is_an_error_of_its_own(status: int, kind: type[ApiError]) -> None:
    answer = problem(status, errors=[{"path": "run_at", "message": "must be a time"}])

    with pytest.raises(ApiError) as caught:
        calls.get("1").read(answer)

    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code, caught.value.detail) == (status, "x", "no")
    assert caught.value.errors[0].path == "run_at"


def test_an_answer_of_a_proxy_is_told_as_it_is() -> None:
    with pytest.raises(ServerUnavailable, match="<html>bad gateway"):
        calls.get("1").read(Answer(502, {}, b"<html>bad gateway</html>"))


def test_an_answer_that_is_no_task_is_an_error() -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        calls.get("1").read(Answer(200, {}, b"<html>hello</html>"))


def test_fields_that_are_not_known_are_ignored() -> None:
    task = calls.get("1").read(Answer(200, {}, b'{"id": "1", "state": "ready", "colour": "red"}'))

    assert (task.id, task.state, task.is_final) == ("1", "ready", False)


def test_a_key_of_a_wrong_clock_is_made_anew_by_the_servers_clock_once() -> None:
    call = calls.submit(Submission("a"))
    answer = Answer(
        422,
        {"Date": "Tue, 01 Jan 2030 00:00:00 GMT"},
        msgspec.json.encode({"status": 422, "errors": [{"path": "Idempotency-Key", "message": "too old"}]}),
    )
    with pytest.raises(InvalidRequest) as caught:
        call.read(answer)

    renamed = call.renamed(caught.value)

    assert int(renamed.key.replace("-", "")[:12], 16) == datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000
    assert renamed.body == call.body
    with pytest.raises(InvalidRequest):
        renamed.renamed(caught.value)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("Tue, 01 Jan 2030 00:00:10 GMT", 10.0),
        ("Mon, 31 Dec 2029 23:59:00 GMT", 0.0),
        ("soon", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert read_retry_after(header, lambda: datetime(2030, 1, 1, tzinfo=UTC)) == seconds


def test_waits_grow_with_jitter_and_end_with_the_error() -> None:
    now = 0.0
    tries = Tries(10.0, monotonic=lambda: now, chance=lambda: 1.0)
    error = ServerUnreachable("gone")
    waits = []
    for _ in range(6):
        waits.append(tries.wait_after(error))
        now += waits[-1]

    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    with pytest.raises(ServerUnreachable):
        tries.wait_after(error)
    assert Tries(10.0, chance=lambda: 0.0).wait_after(error) == 0.05


def test_the_server_can_ask_for_a_longer_wait() -> None:
    tries = Tries(30.0, chance=lambda: 0.0)

    assert tries.wait_after(ServerUnavailable("full", retry_after=7.0)) == 7.0


def test_a_wait_that_is_too_long_is_not_begun() -> None:
    with pytest.raises(ServerUnavailable):
        Tries(5.0).wait_after(ServerUnavailable("full", retry_after=60.0))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(1, 1.0), (1.5, 1.5), ("30s", 30.0), ("5m", 300.0), ("2h", 7200.0), ("1d", 86400.0), ("250ms", 0.25), ("7", 7.0)],
)
def test_durations_are_seconds_or_words(given: float | str, seconds: float) -> None:
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["", "5 minutes", "m", "1w"])
def test_a_wrong_duration_is_said(given: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds_of(given)


def test_what_a_rate_limit_refuses_of_a_batch_is_not_sent_again() -> None:
    codes = ["quota_exceeded", "rate_limited", "too_many_waiting"]
    items = [BatchItem(error=Problem(status=429, code=code, retry_after=5.0)) for code in codes]

    later = calls.refused_for_now(BatchResult([BatchItem(id="a"), *items], accepted=1, rejected=3))

    assert later is not None
    assert (later[0], later[1].code) == ([1, 3], "quota_exceeded")
    assert calls.refused_for_now(BatchResult([items[1]], rejected=1)) is None
