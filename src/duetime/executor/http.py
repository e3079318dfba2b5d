"""A small HTTP/1.1 client for calls to targets.

It sends each request at most once, to a vetted address, directly (no proxies),
follows no redirect, and always ends by the deadline.  A call over a kept
connection uses callbacks only: no task, no future and no timer for each call.
"""

import asyncio
import functools
import time
from collections.abc import Callable

import structlog

from duetime.executor.dial import CONNECT_TIMEOUT_SECONDS, Dialler
from duetime.executor.egress import EgressError, Guard, RefusedError
from duetime.executor.messages import NoResponse, Request, Response, Timings, to_ms
from duetime.executor.resolver import Address
from duetime.http1.connection import Connection
from duetime.http1.deadlines import Deadlines
from duetime.http1.kept import KeptConnections
from duetime.http1.messages import ExchangeError, Reason
from duetime.model.origin import Origin

# Shorter than the 5 s after which Node.js, Apache and uvicorn close an idle connection:
# a request that crosses with such a close fails, and costs its task an attempt.
IDLE_SECONDS = 4.0
_MAX_KEPT = 512

Answered = Callable[[Response | NoResponse], None]

log = structlog.get_logger(__name__)


class HttpCall:
    """One call under way, on its connection or waiting for one."""

    __slots__ = (
        "_answered",
        "_client",
        "begun_at",
        "connecting",
        "deadline",
        "is_over",
        "line",
        "request",
        "timeout_seconds",
        "timings",
    )

    def __init__(
        self, client: "HttpClient", request: Request, timeout_seconds: float, deadline: float, answered: Answered
    ) -> None:
        self._client = client
        self._answered = answered
        self.request = request
        self.timeout_seconds = timeout_seconds
        self.deadline = deadline
        # The loop's own time is too coarse for measuring: uvloop's stands still within a turn.
        self.begun_at = time.perf_counter()
        self.timings = Timings(total_ms=0.0, reused=False)
        self.connecting: asyncio.Task[tuple[Connection, Address]] | None = None
        self.line: tuple[Connection, Address] | None = None
        self.is_over = False

    def cancel(self) -> None:
        """Cancel it; `answered` is not called any more."""
        if not self.is_over:
            self.is_over = True
            self._client.drop(self)

    def end(self, answer: Response | NoResponse) -> None:
        if not self.is_over:
            self.is_over = True
            self._answered(answer)

    def fail(self, reason: Reason, message: str) -> None:
        if reason is Reason.TIMEOUT:
            message = f"{message} ({self.timeout_seconds:g} s)"
        self.timings.total_ms = to_ms(time.perf_counter() - self.begun_at)
        self.end(NoResponse(reason, message, self.timings))

    def time_out(self) -> None:
        assert self.line is not None
        self.line[0].time_out()


class HttpClient:
    """The client; it must be made within the loop that uses it."""

    def __init__(
        self,
        guard: Guard,
        *,
        ca_file: str | None = None,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.guard = guard
        self._dialler = Dialler(ca_file=ca_file, connect_timeout_seconds=connect_timeout_seconds)
        #: Keyed by the addresses that the guard gives now, so no kept connection leads where its host no longer is.
        self._kept: KeptConnections[tuple[Origin, Address]] = KeptConnections(self._loop, idle_seconds, _MAX_KEPT)
        self._deadlines: Deadlines[HttpCall] = Deadlines(self._loop, HttpCall.time_out)
        self._connecting: set[asyncio.Task[tuple[Connection, Address]]] = set()

    def begin(self, request: Request, timeout_seconds: float, answered: Answered) -> HttpCall | None:
        """Begin one call; `answered` is called once with the result, never from within this method.

        The call ends after `timeout_seconds` whatever happens.  None: nothing was
        done, because the tenant has reached its limit of look-ups.
        """
        try:
            addresses = self.guard.known(request.tenant, request.origin.host)
            if addresses is None and not self.guard.look_up(request.tenant, request.origin.host):
                return None
        except EgressError:
            # The task below meets the same refusal, and reports it.
            addresses = None
        call = HttpCall(self, request, timeout_seconds, self._loop.time() + timeout_seconds, answered)
        line = self._take_kept(request.origin, addresses) if addresses is not None else None
        if line is not None:
            self._send(call, line)
        else:
            call.connecting = self._loop.create_task(self._connect(call))
            self._connecting.add(call.connecting)
            call.connecting.add_done_callback(functools.partial(self._connected, call))
        return call

    def drop(self, call: HttpCall) -> None:
        """Drop a call that is no longer wanted."""
        if call.connecting is not None:
            call.connecting.cancel()
        if call.line is not None:
            self._deadlines.discard(call)
            call.line[0].leave()

    async def close(self) -> None:
        """Close every connection and the guard; calls under way fail."""
        self.guard.close()
        self._kept.clear()
        for connecting in self._connecting:
            connecting.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await self._dialler.close()
        self._deadlines.close()

    # Before there is a connection.

    def _take_kept(self, origin: Origin, addresses: tuple[Address, ...]) -> tuple[Connection, Address] | None:
        for address in addresses:
            if (connection := self._kept.take((origin, address))) is not None:
                return connection, address
        return None

    async def _connect(self, call: HttpCall) -> tuple[Connection, Address]:
        origin = call.request.origin
        addresses = self.guard.known(call.request.tenant, origin.host)
        if addresses is None:
            addresses = await self._vet(call.request.tenant, origin.host, call.deadline)
            call.timings.dns_ms = to_ms(time.perf_counter() - call.begun_at)
        line = self._take_kept(origin, addresses)
        return line or await self._dialler.dial(origin, addresses, call.deadline, call.timings)

    async def _vet(self, tenant: int, host: str, deadline: float) -> tuple[Address, ...]:
        try:
            async with asyncio.timeout_at(deadline):
                return await self.guard.vet(tenant, host)
        except TimeoutError:
            raise ExchangeError(Reason.TIMEOUT, f"the name {host} was not resolved in time") from None

    def _connected(self, call: HttpCall, connecting: asyncio.Task[tuple[Connection, Address]]) -> None:
        self._connecting.discard(connecting)
        call.connecting = None
        if connecting.cancelled():
            call.fail(Reason.CLOSED, "the call was broken off")
            return
        match connecting.exception():
            case None if call.is_over:
                connecting.result()[0].close()
            case None:
                self._send(call, connecting.result())
            case EgressError() as error:
                reason = Reason.REFUSED if isinstance(error, RefusedError) else Reason.RESOLVE
                call.fail(reason, str(error))
            case ExchangeError() as error:
                call.fail(error.reason, str(error))
            case error:
                log.error("a call broke", host=call.request.origin.host, exc_info=error)
                call.fail(Reason.INTERNAL, "the executor could not make the call")

    # On a connection.

    def _send(self, call: HttpCall, line: tuple[Connection, Address]) -> None:
        call.line = line
        self._deadlines.add(call, call.deadline)
        connection = line[0]
        call.timings.reused = connection.exchanges > 0
        connection.exchange(call.request.content, functools.partial(self._ended, call), is_head=call.request.is_head)

    def _ended(self, call: HttpCall, problem: ExchangeError | None) -> None:
        self._deadlines.discard(call)
        assert call.line is not None
        (connection, address), call.line = call.line, None
        if problem is not None:
            call.fail(problem.reason, str(problem))
            return
        timings = call.timings
        timings.first_byte_ms = to_ms(connection.first_byte_at - call.begun_at)
        timings.total_ms = to_ms(time.perf_counter() - call.begun_at)
        response = Response(connection.status, connection.headers, connection.body, connection.is_truncated, timings)
        # Keep it before the answer is reported: the next call may want it at once.
        self._kept.put_back((call.request.origin, address), connection)
        call.end(response)
