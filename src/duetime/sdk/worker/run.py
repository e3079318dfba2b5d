"""One run of a worker, from its first beat to its last report.

Everything here happens on one event loop.  What must hold:
- every held attempt is named in every beat until its settlement is acknowledged;
- no attempt begins unless an acknowledged beat is recent;
- an attempt that is later than its lease allows, or that was leased under another
  identity of the worker, begins only after a beat has named it and it was not
  called lost;
- a recovered attempt begins only after a beat has named it as started (`recovery`);
- an attempt that the server calls lost or cancelled is stopped, and never reported.
"""

import asyncio
import logging
import time

import msgspec

from duetime.sdk.calls.call import Tries
from duetime.sdk.errors import ApiError, InvalidRequest, ServerUnavailable
from duetime.sdk.transport.http import HttpClient
from duetime.sdk.worker import attempt_log, handlers
from duetime.sdk.worker.beats import SIGN_OFF_SECONDS, Beats, Named
from duetime.sdk.worker.context import Held, Stop
from duetime.sdk.worker.handler_pool import HandlerPool
from duetime.sdk.worker.handlers import NO_HANDLER, Handler
from duetime.sdk.worker.lost import dropped_by
from duetime.sdk.worker.protocol import (
    LEASE_PATH,
    MAX_LEASE,
    MAX_TYPES,
    Lease,
    LeaseRequest,
    Settlement,
    Verdicts,
    encode,
    read_lease,
)
from duetime.sdk.worker.recovery import Recovery
from duetime.sdk.worker.reports import Reports
from duetime.sdk.worker.settings import WorkerSettings

logger = logging.getLogger("duetime.worker")

_POLL_SECONDS = 20.0
_POLL_MARGIN_SECONDS = 10.0
#: If the loop was blocked this long, a lease may have stayed unread until its tasks were given to another worker.
_STALL_SECONDS = 2.0
_TICK_SECONDS = 0.5
#: Without a given prefetch, about this much work waits in addition to what runs.
_PREFETCH_SECONDS = 0.1
#: At most this many tasks begin before the next lease request. With more, the request goes first, so that the server
#: works meanwhile.
_FEW_TASKS = 8
#: The server accepts beats that name at most 10,000.
_MOST_HELD = 8_000
#: How long stopped handlers have to clean up before they are reported without them.
_CLEANUP_SECONDS = 2.0


class WorkerRun:
    def __init__(
        self, settings: WorkerSettings, registered: dict[str, Handler], name: str, stop_wanted: asyncio.Event
    ) -> None:
        self._settings = settings
        self._handlers = registered
        #: The parameters of its lease requests.
        self._types: tuple[str, ...] | msgspec.UnsetType = (
            tuple(sorted(registered)) if len(registered) <= MAX_TYPES else msgspec.UNSET
        )
        self._name = name
        self._stop_wanted = stop_wanted
        self._loop = asyncio.get_running_loop()
        #: Named in beats.
        self._held: set[Held] = set()
        self._beats = Beats(settings.route, name, self._held, self._on_beat, self._on_beat_error)
        self._pool = HandlerPool(settings, name, self._may_begin, self._on_finished, self._report, self._beats.beat_now)
        self._reports = Reports(name, self._post, self._on_settled)
        self._recovery = Recovery(self._pool, self._beats.beat_now)
        self._first_beat: asyncio.Future[None] = self._loop.create_future()
        has_async = any(handler.is_async for handler in registered.values())
        has_plain = any(not handler.is_async for handler in registered.values())
        self._capacity = has_async * settings.concurrency + has_plain * settings.threads
        self._prefetch = settings.prefetch or 0
        self._room_made = asyncio.Event()
        self._has_leased = False
        #: The identity under which the server knew this worker at the last beat.
        self._holder: str | None = None
        self._is_stopping = False
        self._ticked_at = self._stalled_at = time.monotonic()
        self._finished_count = 0
        self._rate = 0.0
        self._tick_timer: asyncio.TimerHandle | None = None
        self._http = HttpClient(settings.route)

    async def run(self) -> None:
        """Work until a stop is requested. Raises an error that makes working impossible."""
        self._beats.start()
        self._tick()
        reporting = asyncio.create_task(self._reports.run(), name="duetime-reports")
        working = asyncio.create_task(self._lease_forever(), name="duetime-lease")
        stopping = asyncio.create_task(self._stop_wanted.wait(), name="duetime-stop")
        try:
            await asyncio.wait({reporting, working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await self._wind_up(working, reporting, self._settings.shutdown_timeout)
            for loop_task in (working, reporting):
                if loop_task.done() and not loop_task.cancelled() and (error := loop_task.exception()):
                    raise error
        except asyncio.CancelledError:
            # On Ctrl-C in a program that runs the loop itself, running attempts are released, not left to expire.
            await self._wind_up(working, reporting, 0.0)
            raise
        finally:
            working.cancel()
            reporting.cancel()
            stopping.cancel()
            await asyncio.gather(working, reporting, stopping, return_exceptions=True)
            if self._tick_timer is not None:
                self._tick_timer.cancel()
            self._pool.close()
            self._beats.close()
            await asyncio.to_thread(self._beats.join, SIGN_OFF_SECONDS)
            if not self._first_beat.done():
                self._first_beat.cancel()
            await self._http.close()

    # Taking

    async def _lease_forever(self) -> None:
        await self._first_beat
        logger.info("worker %s takes tasks of %s", self._name, ", ".join(self._settings.queues or ("all queues",)))
        tries = Tries(float("inf"))
        while True:
            room = self._room()
            if not self._is_worth_asking(room) or not self._beats.is_fresh(time.monotonic()):
                self._room_made.clear()
                await self._room_made.wait()
                continue
            asked_at = time.monotonic()
            body = encode(
                LeaseRequest(
                    self._name,
                    self._settings.queues,
                    self._settings.tags,
                    min(room, MAX_LEASE),
                    _POLL_SECONDS,
                    max_silence=msgspec.UNSET if self._settings.max_silence is None else self._settings.max_silence,
                    types=self._types,
                )
            )
            try:
                lease = read_lease(await self._post(LEASE_PATH, body, _POLL_SECONDS + _POLL_MARGIN_SECONDS))
            except ServerUnavailable as error:
                logger.warning("cannot take tasks, trying again: %s", error)
                await asyncio.sleep(tries.wait_after(error))
            except (ApiError, msgspec.DecodeError) as error:
                if self._are_types_refused(error):
                    continue
                if not self._has_leased:
                    raise
                logger.error("cannot take tasks, trying again: %s", error)
                await asyncio.sleep(tries.wait_after(ServerUnavailable(str(error))))
            else:
                tries = Tries(float("inf"))
                self._has_leased = True
                self._beats.every = lease.beat_every
                if lease.max_silence is not None:
                    self._beats.max_silence = lease.max_silence
                begin_by = self._begin_by(lease, asked_at)
                for task in lease.tasks:
                    self._take(Held(task, self._handlers.get(task.type, NO_HANDLER), begin_by))
                self._pool.begin_waiting()
                self._recovery.announce()
                if 0 < len(lease.tasks) <= _FEW_TASKS:
                    # Their handlers begin in the next round of the loop, before the next lease request.
                    await asyncio.sleep(0)

    def _are_types_refused(self, error: Exception) -> bool:
        """A server that does not know `types` refuses the field. Without it, tasks of other types are reported."""
        if self._types is msgspec.UNSET or not isinstance(error, InvalidRequest):
            return False
        if not any(each.path.split("[")[0] == "types" for each in error.errors):
            return False
        logger.warning("the server does not take the types that are handled here, asking for all: %s", error)
        self._types = msgspec.UNSET
        return True

    def _room(self) -> int:
        if len(self._held) >= _MOST_HELD:
            return 0
        # Attempts that may not begin yet take no room, up to the number of slots.
        kept_back = max(0, self._recovery.waiting - self._capacity)
        return self._capacity + self._prefetch - self._pool.load - self._recovery.announced - kept_back

    def _is_worth_asking(self, room: int) -> bool:
        """Do not ask for a few tasks while others can still begin."""
        return room > 0 and (not self._pool.has_waiting or 4 * room >= self._capacity + self._prefetch)

    def _begin_by(self, lease: Lease, asked_at: float) -> float:
        """When its tasks may have been given to another worker because no beat has named them."""
        if self._holder is not None and lease.holder not in (None, self._holder):
            return float("-inf")
        if lease.begin_within is not None:
            return asked_at + lease.begin_within
        # The server is too old to say, but the answer may have stayed unread for as long as the loop was blocked.
        return float("-inf") if asked_at < self._stalled_at else float("inf")

    def _take(self, held: Held) -> None:
        self._held.add(held)
        if held.handler is NO_HANDLER:
            self._report(held, handlers.missing(held, self._name))
        elif held.task.recovered:
            self._recovery.add(held)
        else:
            self._pool.add(held)

    def _may_begin(self) -> bool:
        return not self._is_stopping and self._beats.is_fresh(time.monotonic())

    # Beats

    def _on_beat(self, named: Named, verdicts: Verdicts) -> None:
        if not self._first_beat.done():
            self._first_beat.set_result(None)
        if verdicts.lost or verdicts.cancelled:
            self._drop(dropped_by(verdicts, named, self._held))
        if verdicts.holder is not None and verdicts.holder != self._holder:
            self._holder = verdicts.holder
            # The attempts that this beat named are confirmed below.
            for held in self._held:
                held.begin_by = float("-inf")
        self._pool.confirm(held for held, _ in named)
        self._recovery.acknowledge(named)
        self._pool.begin_waiting()
        # No tasks are requested while they could not begin, so the lease request may have waited for this beat.
        if not self._room_made.is_set() and self._is_worth_asking(self._room()):
            self._room_made.set()

    def _on_beat_error(self, error: ApiError) -> None:
        if self._first_beat.done() or isinstance(error, ServerUnavailable):
            logger.warning("a beat was not acknowledged, trying again: %s", error)
        else:
            self._first_beat.set_exception(error)

    def _drop(self, dropped: list[tuple[Held, Stop]]) -> None:
        """Stop attempts that this worker no longer holds."""
        for held, reason in dropped:
            # For a reported attempt the answer to the report decides.
            if held in self._held and held.settlement is None:
                if reason is Stop.CANCELLED:
                    logger.info("task %s: cancelled", held.task.id)
                else:
                    logger.warning("task %s: no longer ours (taken over, or its time-out is over)", held.task.id)
                self._forget(held)
                self._pool.stop(held, reason)

    def _forget(self, held: Held) -> None:
        self._held.discard(held)
        if held.started_us is None:
            self._recovery.discard(held)
            self._recovery.announce()

    # Finishing

    def _on_finished(self, held: Held) -> None:
        """A handler returned, so its slot is free."""
        self._finished_count += 1
        if self._recovery.is_busy:
            self._recovery.discard(held)
            self._recovery.announce()
        self._pool.begin_waiting()
        if not self._room_made.is_set() and self._is_worth_asking(self._room()):
            self._room_made.set()

    def _report(self, held: Held, settlement: Settlement) -> None:
        """The first report counts, and only while this worker holds the attempt."""
        if held.settlement is None and held in self._held:
            held.settlement = settlement
            self._reports.add(held)
            if settlement.outcome != "succeeded" or attempt_log.logs_successes():
                attempt_log.ended(held, settlement)
        held.error = None

    def _on_settled(self, batch: list[Held], verdicts: Verdicts) -> None:
        for task_id in verdicts.lost:
            logger.warning("task %s: the report came too late, somebody else has the task", task_id)
        if verdicts.dead:
            attempt_log.died(batch, verdicts.dead)
        for held in batch:
            self._held.discard(held)
        if not self._room_made.is_set() and self._is_worth_asking(self._room()):
            self._room_made.set()

    # Time

    def _tick(self) -> None:
        """Handle what depends on time: recovered attempts that may begin by now, a blocked loop, and the rate."""
        now = time.monotonic()
        elapsed = now - self._ticked_at
        if elapsed > _STALL_SECONDS:
            self._stalled_at = now
        if elapsed > 0:
            self._ticked_at = now
            self._rate = 0.5 * self._rate + 0.5 * self._finished_count / elapsed
            self._finished_count = 0
            if self._settings.prefetch is None:
                self._prefetch = min(MAX_LEASE, int(self._rate * _PREFETCH_SECONDS))
        self._recovery.announce()
        self._tick_timer = self._loop.call_later(_TICK_SECONDS, self._tick)

    # Stopping

    async def _wind_up(self, working: asyncio.Task[None], reporting: asyncio.Task[None], patience: float) -> None:
        """Release what has not begun, let the others finish, stop and release the rest, and report everything."""
        self._is_stopping = True
        ends_at = self._loop.time() + patience
        working.cancel()
        await asyncio.wait({working})
        idle = [*self._pool.take_waiting(), *self._recovery.take_idle()]
        for held in idle:
            held.has_started = False
            self._report(held, handlers.released(held))
        if reporting.done():
            return
        if self._pool.running:
            logger.info("worker %s is stopping; %d tasks are running", self._name, len(self._pool.running))
        await self._pool.wait_idle(patience)
        if self._pool.running:
            logger.warning("giving back %d tasks that did not finish in time", len(self._pool.running))
            self._pool.stop_all(Stop.SHUTDOWN)
            await self._pool.wait_idle(_CLEANUP_SECONDS)
            for held in list(self._pool.running):
                self._report(held, handlers.stopped(held))
        left = max(ends_at - self._loop.time(), _CLEANUP_SECONDS)
        flushed = asyncio.create_task(self._reports.flushed())
        await asyncio.wait({flushed, reporting}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not flushed.done():
            flushed.cancel()
            logger.error("%d reports could not be delivered; their tasks will run again", len(self._held))

    # Speaking

    async def _post(self, path: str, body: bytes, timeout: float) -> bytes:
        answer = await self._http.request("POST", path, body, timeout=timeout)
        answer.raise_for_status()
        return answer.body
