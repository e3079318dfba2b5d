import asyncio
import functools
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from duetime.sdk.errors import Permanent, Retry, Snooze, TaskCancelled
from duetime.sdk.worker import handlers
from duetime.sdk.worker.context import Context, Held, Stop
from duetime.sdk.worker.handlers import Handler
from duetime.sdk.worker.protocol import LeasedTask, Settlement


@dataclass
class Email:
    to: str
    copies: int = 1


def hold(function: Any = lambda payload: None, payload: object = None, **fields: Any) -> Held:
    task = LeasedTask("task-1", "test", 3, payload=msgspec.Raw(msgspec.json.encode(payload)), **fields)
    held = Held(task, Handler("test", function))
    held.begin()
    return held


def failure(settlement: Settlement) -> tuple[str, str]:
    assert settlement.outcome == "failed"
    assert settlement.error is not None
    return settlement.error.message, settlement.error.kind


def test_a_handler_takes_a_payload_or_payload_and_context() -> None:
    one = Handler("t", lambda payload: None)
    two = Handler("t", lambda payload, context: None)
    own = Handler("t", lambda payload, retries=3: None)
    bound = Handler("t", functools.partial(lambda connection, payload: None, object()))

    assert [each.takes_context for each in (one, two, own, bound)] == [False, True, False, False]


@pytest.mark.parametrize("function", [lambda: None, lambda a, b, c: None, lambda a, *, b: None])
def test_a_function_of_another_shape_is_refused_when_it_is_registered(function: Any) -> None:
    with pytest.raises(TypeError, match=r"has to take \(payload\) or \(payload, context\)"):
        Handler("t", function)


def test_plain_and_async_functions_are_told_apart() -> None:
    async def waits(payload: object) -> None: ...

    class Callable:
        async def __call__(self, payload: object) -> None: ...

    assert Handler("t", waits).is_async
    assert Handler("t", functools.partial(waits)).is_async
    assert Handler("t", Callable()).is_async
    assert not Handler("t", lambda payload: None).is_async


def test_a_payload_is_read_as_the_type_that_the_handler_names() -> None:
    def send(payload: Email, context: Context) -> None: ...

    payload, context = handlers.arguments_of(hold(send, {"to": "ada"}), "worker-1")

    assert payload == Email("ada")
    assert (context.task_id, context.attempt, context.worker) == ("task-1", 3, "worker-1")


def test_a_payload_that_does_not_fit_fails_for_good() -> None:
    def send(payload: Email) -> None: ...

    with pytest.raises(Permanent, match=r"does not fit the handler of test: .*`\$\.to`"):
        handlers.arguments_of(hold(send, {"to": 5}), "worker-1")


def test_a_type_that_msgspec_does_not_know_leaves_the_payload_as_it_is() -> None:
    class Strange: ...

    def handle(payload: Strange) -> None: ...

    assert handlers.arguments_of(hold(handle, [1, 2]), "w") == ([1, 2],)


def test_a_result_is_kept_as_json() -> None:
    settlement = handlers.succeeded(hold(), {"sent": 1})

    assert (settlement.id, settlement.attempt, settlement.outcome) == ("task-1", 3, "succeeded")
    assert bytes(settlement.result or b"") == b'{"sent":1}'
    assert settlement.started_at is not None
    assert settlement.completed_at is not None


def test_no_result_is_not_sent() -> None:
    assert b"result" not in msgspec.json.encode(handlers.succeeded(hold(), None))


@pytest.mark.parametrize(
    ("result", "says"),
    [(object(), "cannot be written as JSON"), ("x" * 70_000, "at most 65,536"), ("\ud800", "cannot")],
)
def test_a_result_that_cannot_be_kept_is_a_permanent_failure(result: object, says: str) -> None:
    message, kind = failure(handlers.succeeded(hold(), result))

    assert says in message
    assert kind == "permanent"


def test_any_exception_is_a_transient_failure_with_its_trace() -> None:
    def broken(payload: object) -> None:
        raise LookupError("no such user")

    held = hold(broken)
    try:
        held.handler.function(None)
    except LookupError as error:
        settlement = handlers.failed(held, error)

    assert failure(settlement) == ("LookupError: no such user", "transient")
    assert settlement.error is not None
    assert "in broken" in (settlement.error.detail or "")
    assert "test_any_exception" not in (settlement.error.detail or "")


def test_a_long_trace_is_cut_in_the_middle() -> None:
    settlement = handlers.failed(hold(), ValueError("é" * 20_000))

    assert settlement.error is not None
    assert len(settlement.error.message.encode()) <= 2 * 1024
    assert len((settlement.error.detail or "").encode()) <= 8 * 1024
    assert "[...]" in settlement.error.message


def test_text_that_json_or_the_database_cannot_hold_is_written_out() -> None:
    message, _ = failure(handlers.failed(hold(), ValueError("a\x00b\ud800")))

    assert message == "ValueError: a\\x00b\\ud800"
    msgspec.json.encode(message)


def test_signals_are_outcomes_of_their_own() -> None:
    again = handlers.failed(hold(), Retry("busy", after="2m"))
    whenever = handlers.failed(hold(), Retry("busy"))
    never = handlers.failed(hold(), Permanent("gone"))
    later = handlers.failed(hold(), Snooze("5m"))

    assert (failure(again), again.retry_after) == (("busy", "transient"), 120.0)
    assert (failure(whenever), whenever.retry_after) == (("busy", "transient"), None)
    assert failure(never) == ("gone", "permanent")
    assert (later.outcome, later.retry_after, later.error) == ("snoozed", 300.0, None)


def test_a_signal_keeps_the_trace_of_what_it_was_raised_from() -> None:
    try:
        try:
            raise ConnectionError("refused")
        except ConnectionError as cause:
            raise Retry("busy") from cause
    except Retry as error:
        settlement = handlers.failed(hold(), error)

    assert settlement.error is not None
    assert "ConnectionError: refused" in (settlement.error.detail or "")


def test_a_wrong_duration_in_a_signal_is_a_failure_that_says_so() -> None:
    message, kind = failure(handlers.failed(hold(), Snooze("tomorrow")))

    assert 'tomorrow" is not a duration' in message
    assert kind == "transient"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), TaskCancelled("stop")])
def test_a_stopped_handler_is_reported_by_the_reason(error: BaseException) -> None:
    timed_out, shut_down, by_itself = hold(timeout=2.0), hold(), hold()
    timed_out.stop, shut_down.stop = Stop.TIMED_OUT, Stop.SHUTDOWN

    ended = handlers.failed(shut_down, error)
    assert failure(handlers.failed(timed_out, error))[0] == "timed out after 2 s"
    assert (ended.outcome, ended.retry_after, ended.started_at) == ("released", None, shut_down.started_us)
    assert ended.error is not None
    assert ended.error.message == "worker is shutting down"
    assert failure(handlers.failed(by_itself, error))[0] == "the handler was cancelled"


def test_what_a_handler_raises_when_it_is_cut_off_is_no_failure_of_the_task() -> None:
    held = hold()
    held.stop = Stop.SHUTDOWN
    try:
        raise ConnectionError("closed under me")
    except ConnectionError as error:
        ended = handlers.failed(held, error)

    assert ended.outcome == "released"
    assert ended.error is not None
    assert "closed under me" in (ended.error.detail or "")
    # Its own word counts all the same.
    assert handlers.failed(held, Permanent("no such user")).outcome == "failed"


def test_the_context_tells_when_to_stop() -> None:
    held = hold(timeout=5.0)
    context = Context(held, "w")

    assert not context.is_cancelled
    context.check()
    assert held.started_us is not None
    assert context.deadline is not None
    assert context.deadline.timestamp() == held.started_us / 1e6 + 5.0

    held.stop = Stop.CANCELLED
    assert context.is_cancelled
    with pytest.raises(TaskCancelled, match="cancelled"):
        context.check()


def test_a_handlers_timeout_can_only_shorten_the_tasks_own() -> None:
    task = LeasedTask("task-1", "test", 1, timeout=10.0)

    assert Held(task, Handler("t", lambda payload: None, "3s")).timeout == 3.0
    assert Held(task, Handler("t", lambda payload: None, "1m")).timeout == 10.0
