"""From a leased task to a request, and from an answer to a report."""

import base64
import email.utils
import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from duetime.admin.signing import show_secret
from duetime.clock import to_us
from duetime.executor.exchange import (
    MAX_RETRY_AFTER_SECONDS,
    build_request,
    host_of_task,
    read_retry_after,
    report_answer,
    split_url,
    timeout_of,
)
from duetime.executor.messages import NoResponse, Response, Timings
from duetime.http1.messages import Reason
from duetime.lifecycle.tasks.settle import Report
from duetime.model.origin import Origin, TargetError
from duetime.model.reserved_headers import RESERVED_HEADERS, RESERVED_PREFIXES
from duetime.model.task import LeasedTask, Options, Outcome, Target

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SECRET = b"s" * 32
TASK = uuid.UUID("0195b2a4-2c00-8123-8123-456700000105")


def leased(
    url: str = "https://hooks.example/in?a=1", payload: bytes = b'{"n":1}', *, timeout: float | None = None, **target
) -> LeasedTask:
    return LeasedTask(
        id=TASK,
        lane=0x105,
        number=3,
        holder=1,
        type="email.send",
        payload=payload,
        run_at=NOW - timedelta(milliseconds=1500),
        picked_at=NOW,
        failures=2,
        crashes=0,
        releases=0,
        options=Options(target=Target(url, **target), timeout=timeout),
    )


def sent(task: LeasedTask, queue: str | None = "mail") -> tuple[str, dict[str, str], bytes]:
    request = build_request(task, SECRET, int(datetime.now(UTC).timestamp()), queue)
    head, _, body = request.content.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = [field.partition(": ")[::2] for field in fields]
    assert len({name.lower() for name, _ in headers}) == len(headers), "a header stands twice"
    return line, {name.lower(): value for name, value in headers}, body


def test_a_request_carries_who_what_when_and_a_signature() -> None:
    line, headers, body = sent(leased())

    assert line == "POST /in?a=1 HTTP/1.1"
    assert body == b'{"n":1}'
    assert headers["host"] == "hooks.example"
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == "7"
    assert headers["accept-encoding"] == "identity"
    assert headers["user-agent"].startswith("duetime/")
    assert headers["idempotency-key"] == headers["duetime-task-id"] == headers["webhook-id"] == str(TASK)
    assert headers["duetime-attempt"] == "3"
    assert headers["duetime-due-at"] == "2026-03-01T11:59:58.500Z"
    assert headers["duetime-type"] == "email.send"
    assert headers["duetime-queue"] == "mail"
    Webhook(show_secret(SECRET)).verify(body, headers)


def test_while_secrets_overlap_a_request_is_signed_with_both_and_the_newest_first() -> None:
    former = b"f" * 32
    request = build_request(leased(), SECRET, int(datetime.now(UTC).timestamp()), "mail", former=former)
    head, _, body = request.content.partition(b"\r\n\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.decode().split("\r\n"))}

    for secret in (SECRET, former):
        Webhook(show_secret(secret)).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(show_secret(b"x" * 32)).verify(body, headers)
    newest, second = headers["webhook-signature"].split(" ")
    Webhook(show_secret(SECRET)).verify(body, headers | {"webhook-signature": newest})
    Webhook(show_secret(former)).verify(body, headers | {"webhook-signature": second})


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_request_without_a_body_is_signed_as_it_is_sent(method: str) -> None:
    line, headers, body = sent(leased(method=method))

    assert line.startswith(f"{method} ")
    assert body == b""
    assert "content-length" not in headers
    assert "content-type" not in headers
    Webhook(show_secret(SECRET)).verify(body, headers, json_parse=False)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_other_methods_carry_the_payload(method: str) -> None:
    assert sent(leased(method=method))[2] == b'{"n":1}'


def test_own_headers_are_sent_but_cannot_break_framing_or_pretend_to_be_ours() -> None:
    own = {
        "Authorization": "Bearer x",
        "Content-Type": "application/cloudevents+json",
        "User-Agent": "mine/1",
        "Idempotency-Key": "order-7",
        "X-Name": "Zoë",
        "Host": "elsewhere",
        "content-length": "0",
        "Transfer-Encoding": "chunked",
        "Connection": "upgrade",
        "Webhook-Signature": "v1,forged",
        "DUETIME-ATTEMPT": "1",
    }
    _, headers, body = sent(leased(headers=own))

    assert headers["authorization"] == "Bearer x"
    assert headers["content-type"] == "application/cloudevents+json"
    assert headers["user-agent"] == "mine/1"
    assert headers["idempotency-key"] == str(TASK)
    assert headers["x-name"] == "Zoë"
    assert headers["host"] == "hooks.example"
    assert headers["content-length"] == "7"
    assert "transfer-encoding" not in headers
    assert "connection" not in headers
    assert headers["duetime-attempt"] == "3"
    Webhook(show_secret(SECRET)).verify(body, headers)


@pytest.mark.parametrize(
    "own", [{"X-A": "a\r\nX-B: b"}, {"X-A\r\n": "a"}, {"X A": "a"}, {"": "a"}, {"X-A": "a\nb"}, {"X-A": "\x00"}]
)
def test_a_header_that_would_break_out_is_refused(own: dict[str, str]) -> None:
    with pytest.raises(TargetError, match="header"):
        sent(leased(headers=own))


@pytest.mark.parametrize(
    ("url", "origin", "path", "host"),
    [
        ("http://a.example", Origin("http", "a.example", 80), "/", "a.example"),
        ("https://A.example:443/x", Origin("https", "a.example", 443), "/x", "a.example"),
        ("http://a.example:8080/x?y=z#part", Origin("http", "a.example", 8080), "/x?y=z", "a.example:8080"),
        ("http://[::1]:81/x", Origin("http", "::1", 81), "/x", "[::1]:81"),
        ("http://a.example/über uns?q=a b", Origin("http", "a.example", 80), "/%C3%BCber%20uns?q=a%20b", "a.example"),
        ("http://a.example/%2F?q=%20", Origin("http", "a.example", 80), "/%2F?q=%20", "a.example"),
        ("http://bücher.example/", Origin("http", "xn--bcher-kva.example", 80), "/", "xn--bcher-kva.example"),
        ("http://１２７.0.0.1/", Origin("http", "127.0.0.1", 80), "/", "127.0.0.1"),
        ("http://2130706433/", Origin("http", "2130706433", 80), "/", "2130706433"),
    ],
)
def test_a_url_is_split_into_origin_path_and_host(url: str, origin: Origin, path: str, host: str) -> None:
    assert split_url(url) == (origin, path, host)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://a.example/",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "http://user:secret@a.example/",
        "http://a.example:99999/",
        "http://a.example:0/",
        "http://a b.example/",
        "http://a.example\\@b.example/",
        "http://[::1/",
        "http://" + "ü" * 100 + ".example/",
    ],
)
def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(TargetError):
        split_url(url)


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_url_breaks_out_of_the_request_line(path: str, query: str) -> None:
    try:
        origin, target, host = split_url(f"http://a.example/{path}?{query}")
    except TargetError:
        return

    assert (origin.host, host) == ("a.example", "a.example")
    assert target.isascii()
    assert target.startswith("/")
    assert not any(character <= " " or character == "\x7f" for character in target)


def test_the_limit_of_a_host_counts_by_host_and_port() -> None:
    assert host_of_task(leased("http://a.example/x")) == host_of_task(leased("http://A.example:80/y")) == "a.example:80"
    assert host_of_task(leased("http://a.example:81/")) == "a.example:81"
    assert host_of_task(leased("nonsense")) == ""


def test_the_time_out_is_the_targets_else_the_tasks_else_five_minutes() -> None:
    options = leased().options
    assert options is not None
    assert timeout_of(leased(timeout=7.0)) == 7.0
    assert timeout_of(leased()) == 300.0
    task = msgspec.structs.replace(
        leased(timeout=7.0), options=Options(target=Target("http://a.example", timeout=2.0), timeout=7.0)
    )
    assert timeout_of(task) == 2.0


# From an answer to a report.


def answered(status: int = 200, body: bytes = b"", *, is_truncated: bool = False, **headers: str) -> Response:
    fields = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return Response(status, tuple(fields), body, is_truncated, Timings(total_ms=12.5, reused=True, first_byte_ms=10.0))


def reported(answer: Response | NoResponse, **target) -> Report:
    return report_answer(leased(**target), answer, NOW, NOW + timedelta(seconds=1))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_succeeds(status: int) -> None:
    report = reported(answered(status))

    assert (report.id, report.number, report.outcome) == (TASK, 3, Outcome.SUCCEEDED)
    assert (report.started_us, report.completed_us) == (to_us(NOW), to_us(NOW) + 1_000_000)
    assert report.error is None


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_statuses_that_pass_are_transient(status: int) -> None:
    report = reported(answered(status))

    assert (report.outcome, report.is_permanent) == (Outcome.FAILED, False)
    assert report.error is not None
    assert msgspec.json.decode(report.error) == {
        "message": f"the target answered {status}",
        "kind": "transient",
        "detail": {"reason": "status", "status": status},
    }


@pytest.mark.parametrize("status", [101, 300, 301, 302, 307, 308, 400, 401, 403, 404, 410, 422, 600])
def test_other_statuses_are_permanent_unless_the_task_says_otherwise(status: int) -> None:
    assert reported(answered(status)).is_permanent
    assert not reported(answered(status), retry_on=[status]).is_permanent
    assert reported(answered(status), retry_on=[499]).is_permanent


@pytest.mark.parametrize("reason", list(Reason))
def test_no_answer_is_transient_unless_the_address_is_refused(reason: Reason) -> None:
    report = reported(NoResponse(reason, "why", Timings(total_ms=5.0, reused=False, connect_ms=1.0)))

    assert (report.outcome, report.is_permanent) == (Outcome.FAILED, reason is Reason.REFUSED)
    assert report.response is None
    assert report.error is not None
    assert msgspec.json.decode(report.error) == {
        "message": "why",
        "kind": "permanent" if reason is Reason.REFUSED else "transient",
        "detail": {"reason": str(reason), "timings": {"total_ms": 5.0, "reused": False, "connect_ms": 1.0}},
    }


@pytest.mark.parametrize(
    ("body", "content_type", "is_truncated", "result"),
    [
        (b'{"ok": true}', "application/json", False, b'{"ok": true}'),
        (b"42", "application/json; charset=utf-8", False, b"42"),
        (b'{"ok": true}', "application/problem+json", False, b'{"ok": true}'),
        (b'{"ok": true}', "text/plain", False, None),
        (b'{"ok": true', "application/json", False, None),
        (b'{"ok": true}', "application/json", True, None),
        (b'"\xff"', "application/json", False, None),
        (b"[" * 10_000 + b"]" * 10_000, "application/json", False, None),
        (b"", "application/json", False, None),
        (b"NaN", "application/json", False, None),
    ],
)
def test_the_result_is_the_body_if_it_is_whole_and_json(
    body: bytes, content_type: str, is_truncated: bool, result: bytes | None
) -> None:
    report = reported(answered(200, body, is_truncated=is_truncated, Content_Type=content_type))

    assert report.outcome is Outcome.SUCCEEDED
    assert report.result == result


def kept(answer: Response) -> dict[str, object]:
    response = reported(answer).response
    assert response is not None
    decoded = msgspec.json.decode(response, type=dict[str, object])
    assert {"status", "headers", "body", "body_truncated", "timings"} <= set(decoded)
    return decoded


def test_what_matters_of_an_answer_is_kept() -> None:
    answer = answered(
        503,
        b"busy",
        Content_Type="text/plain",
        Retry_After="7",
        SERVER="x" * 5000,
        Set_Cookie="secret",
        X_Request_Id="r1",
    )

    assert kept(answer) == {
        "status": 503,
        "headers": {"content-type": "text/plain", "retry-after": "7", "server": "x" * 1024, "x-request-id": "r1"},
        "body": "busy",
        "body_truncated": False,
        "timings": {"total_ms": 12.5, "reused": True, "first_byte_ms": 10.0},
    }


@pytest.mark.parametrize(
    ("body", "content_type", "is_truncated", "text"),
    [
        ("Zoë".encode(), "", False, "Zoë"),
        ("Zoë".encode()[:-1], "", True, "Zo"),
        (b"Zo\xeb", "text/plain", False, "Zo\ufffd"),
        (b"Zo\xeb", "application/json", False, "Zo\ufffd"),
        (b"a\x00b", "text/plain", False, "a\x00b"),
    ],
)
def test_a_body_of_text_is_kept_as_text(body: bytes, content_type: str, is_truncated: bool, text: str) -> None:
    answer = kept(answered(200, body, is_truncated=is_truncated, Content_Type=content_type))

    assert answer["body"] == text
    assert "body_encoding" not in answer


@pytest.mark.parametrize("body", [b"\x89PNG\r\n\x1a\n", b"a\x00b"])
def test_a_body_that_is_no_text_is_kept_as_base64(body: bytes) -> None:
    answer = kept(answered(200, body, Content_Type="application/octet-stream"))

    assert answer["body_encoding"] == "base64"
    assert base64.b64decode(str(answer["body"])) == body


@given(st.binary(max_size=200), st.sampled_from(["", "text/html", "application/json", "image/png"]), st.booleans())
def test_every_body_can_be_kept(body: bytes, content_type: str, is_truncated: bool) -> None:
    kept(answered(200, body, is_truncated=is_truncated, Content_Type=content_type))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("86401", 86400.0),
        ("9" * 500, 86400.0),
        ("Sun, 01 Mar 2026 12:01:00 GMT", 60.0),
        ("Sunday, 01-Mar-26 12:01:00 GMT", 60.0),
        ("Sun Mar  1 12:01:00 2026", 60.0),
        ("Sun, 01 Mar 2026 13:01:00 +0100", 60.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Tue, 01 Mar 2033 12:00:00 GMT", 86400.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("Sun, 99 Mar 2026 12:01:00 GMT", None),
        ("1e5", None),
        ("inf", None),
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_and_as_a_date(value: str | None, seconds: float | None) -> None:
    assert read_retry_after(value, NOW) == seconds


@given(st.text(max_size=60))
@example("Sun, 01 Mar 99999 12:01:00 GMT")
@example("\u0661\u0662")
def test_whatever_retry_after_says_the_wait_is_none_or_within_a_day(value: str) -> None:
    seconds = read_retry_after(value, NOW)

    assert seconds is None or 0.0 <= seconds <= MAX_RETRY_AFTER_SECONDS


@given(st.integers(min_value=0, max_value=86_400))
def test_a_date_means_the_same_as_its_distance(seconds: int) -> None:
    date = email.utils.format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)

    assert read_retry_after(date, NOW) == read_retry_after(str(seconds), NOW) == seconds


def test_retry_after_counts_for_transient_answers_only() -> None:
    assert reported(answered(429, Retry_After="7")).retry_after == 7.0
    assert reported(answered(503)).retry_after is None
    assert reported(answered(404, Retry_After="7")).retry_after is None
    assert reported(answered(404, Retry_After="7"), retry_on=[404]).retry_after == 7.0


def test_the_docs_name_every_header_that_a_target_cannot_have() -> None:
    page = (Path(__file__).parents[2] / "docs" / "http-targets.md").read_text("utf-8")
    (listed,) = re.findall(r"These headers are reserved\..*?: (.*?)\.\s+`Host`", page, re.DOTALL)

    named = {name.lower() for name in re.findall(r"`([\w-]+)`", listed)}

    assert named == RESERVED_HEADERS | set(RESERVED_PREFIXES)
