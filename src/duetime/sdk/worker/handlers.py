"""Handlers: the functions that the tenant registered, and how their results and errors become settlements."""

import asyncio
import inspect
import traceback
import typing
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
import msgspec.inspect

from duetime.sdk.errors import Duration, Permanent, Retry, Snooze, TaskCancelled
from duetime.sdk.shapes.durations import seconds_of
from duetime.sdk.worker.context import Context, Held, Stop, now_us
from duetime.sdk.worker.protocol import MAX_DETAIL_BYTES, MAX_MESSAGE_BYTES, MAX_RESULT_BYTES, Failure, Settlement

_encode = msgspec.json.Encoder().encode
_NO_PAYLOAD = msgspec.Raw(b"null")
#: The most frames of a traceback, for each exception in it.
_MAX_FRAMES = 40


class Handler:
    """One registered function: plain or async, of (payload) or (payload, context)."""

    def __init__(self, type: str, function: Callable[..., Any], timeout: Duration | None = None) -> None:
        self.type = type
        self.function = function
        self.timeout = None if timeout is None else seconds_of(timeout)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
        )
        parameters = _positional_parameters(function)
        self.takes_context = len(parameters) > 1
        self._decode = _payload_decoder(function, parameters)

    def read_payload(self, raw: msgspec.Raw) -> Any:
        try:
            return self._decode(raw)
        except msgspec.DecodeError as error:
            raise Permanent(f"the payload does not fit the handler of {self.type}: {error}") from error


def _never(payload: object) -> None:
    raise AssertionError("a task without a handler is never run")


def _positional_parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())
    fitting = [each for each in parameters if each.kind in positional]
    needed = [each for each in fitting if each.default is inspect.Parameter.empty]
    keywords = [
        each
        for each in parameters
        if each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
    ]
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters) and not fitting:
        return []
    if not fitting or len(needed) > 2 or keywords:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name} has to take (payload) or (payload, context)")
    # A second parameter with a default belongs to the handler, unless its name is context.
    return [each for place, each in enumerate(fitting[:2]) if place == 0 or each in needed or each.name == "context"]


def _payload_decoder(
    function: Callable[..., object], parameters: list[inspect.Parameter]
) -> Callable[[msgspec.Raw], Any]:
    """Decode into the type of the handler's first parameter, if msgspec knows the type."""
    if parameters:
        try:
            kind = typing.get_type_hints(function).get(parameters[0].name, Any)
            if not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
                return msgspec.json.Decoder(kind).decode
        except (NameError, TypeError, AttributeError):
            pass  # A name that exists only for type checkers, or a class that msgspec cannot build.
    return msgspec.json.Decoder().decode


#: Stands in for a type that the worker does not know.
NO_HANDLER = Handler("", _never)


def arguments_of(held: Held, worker: str) -> tuple[Any, ...]:
    """Return the handler's arguments. The raw payload, and the answer that contains it, can be freed."""
    payload = held.handler.read_payload(held.task.payload)
    held.task.payload = _NO_PAYLOAD
    return (payload, Context(held, worker)) if held.handler.takes_context else (payload,)


def succeeded(held: Held, result: object) -> Settlement:
    """Return the settlement for a return value. A value that cannot be stored becomes a failure that says so."""
    raw: msgspec.Raw | None = None
    if result is not None:
        try:
            encoded = _encode(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return _failed(held, f"the result cannot be written as JSON: {error}", kind="permanent")
        if len(encoded) > MAX_RESULT_BYTES:
            message = f"the result has {len(encoded):,} bytes of JSON; at most {MAX_RESULT_BYTES:,} are kept"
            return _failed(held, message, kind="permanent")
        raw = msgspec.Raw(encoded)
    task = held.task
    # In the order of the fields: keyword arguments take twice as long.
    return Settlement(task.id, task.attempt, "succeeded", raw, None, None, held.started_us, now_us())


def stopped(held: Held) -> Settlement:
    """Return the settlement for a handler that had to stop (if its report still counts)."""
    match held.stop:
        case Stop.TIMED_OUT:
            return _failed(held, f"timed out after {held.timeout:g} s")
        case Stop.SHUTDOWN:
            return released(held)
        case Stop.CANCELLED | Stop.LOST | None:
            return _failed(held, "the handler was cancelled" if held.stop is None else held.stop.value)


def released(held: Held, error: BaseException | None = None) -> Settlement:
    """Release an attempt because the worker stops. If it had begun, the report says so, and how its handler ended."""
    task = held.task
    if held.started_us is None:
        return Settlement(task.id, task.attempt, "released")
    detail = None if error is None else bounded(_trace(error), MAX_DETAIL_BYTES)
    failure = Failure("worker is shutting down", detail=detail)
    return Settlement(
        task.id, task.attempt, "released", error=failure, started_at=held.started_us, completed_at=now_us()
    )


def failed(held: Held, error: BaseException) -> Settlement:
    """Return the settlement for an exception."""
    held.error = error
    try:
        match error:
            case Snooze():
                seconds = seconds_of(error.after)
                return _settle(held, "snoozed", retry_after=seconds)
            case Retry():
                after = None if error.after is None else seconds_of(error.after)
                return _failed(held, str(error), detail=_chain(error), retry_after=after)
            case Permanent():
                return _failed(held, str(error), kind="permanent", detail=_chain(error))
    except (TypeError, ValueError) as wrong:
        return _failed(held, str(wrong), detail=_trace(error))
    if isinstance(error, asyncio.CancelledError | TaskCancelled):
        return stopped(held)
    if held.stop is Stop.SHUTDOWN:
        # An exception that a handler raises because it is interrupted is not the task's failure.
        return released(held, error)
    name = type(error).__qualname__
    text = _text_of(error)
    return _failed(held, f"{name}: {text}" if text else name, detail=_trace(error))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"(its message cannot be read: {type(broken).__qualname__})"


def refused(held: Held, reason: str) -> Settlement:
    """Return a replacement for a report that the server would not accept."""
    return _failed(held, f"the server refused the report: {reason}", kind="permanent")


def missing(held: Held, worker: str) -> Settlement:
    return _failed(held, f"no handler for type {held.task.type} in worker {worker}")


def _failed(
    held: Held,
    message: str,
    *,
    kind: typing.Literal["transient", "permanent"] = "transient",
    detail: str | None = None,
    retry_after: float | None = None,
) -> Settlement:
    error = Failure(
        bounded(message, MAX_MESSAGE_BYTES), kind, None if detail is None else bounded(detail, MAX_DETAIL_BYTES)
    )
    return _settle(held, "failed", error, retry_after)


def _settle(
    held: Held,
    outcome: typing.Literal["failed", "snoozed"],
    error: Failure | None = None,
    retry_after: float | None = None,
) -> Settlement:
    task = held.task
    return Settlement(
        task.id,
        task.attempt,
        outcome,
        error=error,
        retry_after=None if retry_after is None else max(0.0, retry_after),
        started_at=held.started_us,
        completed_at=now_us(),
    )


def _chain(error: BaseException) -> str | None:
    """Return the traceback of the exception that a signal was raised from. The signal itself needs none."""
    cause = cause_of(error)
    return None if cause is None else _format(cause, cause.__traceback__)


def cause_of(error: BaseException) -> BaseException | None:
    """Return the exception from which it was raised, or during whose handling it was raised."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _trace(error: BaseException) -> str:
    # Leave out the worker's own frame, which is always the first.
    return _format(error, None if error.__traceback__ is None else error.__traceback__.tb_next)


def _format(error: BaseException, frames: TracebackType | None) -> str:
    try:
        # Keep the last frames, which show where it was raised.
        return "".join(traceback.format_exception(type(error), error, frames, limit=-_MAX_FRAMES))
    except Exception as broken:
        return f"(the traceback cannot be written: {type(broken).__qualname__})"


def bounded(text: str, limit: int) -> str:
    """Shorten to at most `limit` bytes of UTF-8. Keep the beginning, and more of the end."""
    text = text.replace("\x00", "\\x00")
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= limit:
        return encoded.decode("utf-8")
    gap = b"\n[...]\n"
    head = limit // 4
    tail = limit - head - len(gap)
    return (encoded[:head] + gap + encoded[-tail:]).decode("utf-8", "ignore")
