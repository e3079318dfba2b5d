"""The load of `duetime bench`: one phase after another, in a queue that nothing else uses.

The load is bounded: the backlog by `BACKLOG`, running requests by `UNDER_WAY`, and
every phase by its share of the time.  Submitted tasks that have not run when the
bench ends, for whatever reason, are cancelled.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec

from duetime.cli.bench.hands import Hands
from duetime.cli.bench.machine import Cpu, Machine
from duetime.cli.bench.worker import TASK_TYPE
from duetime.cli.connect import RETRY_SECONDS, Refused
from duetime.cli.output import print_note
from duetime.errors import DuetimeError
from duetime.sdk.calls.tasks import probe
from duetime.sdk.client.async_client import AsyncClient
from duetime.sdk.errors import SdkError

#: Tasks per second while the lag is measured: far below any limit, and enough for a p99.
LAG_RATE = 20
LAG_DELAY_SECONDS = 1.0
AT_A_TIME = 20
BATCH = 1_000
PRODUCERS = 3
BACKLOG = 100_000
UNDER_WAY = 10_000
#: About 150 bytes, as a small e-mail task has.
PAYLOAD = {"to": "user@example.com", "template": "welcome", "n": 12345, "pad": "x" * 80}
#: For steps that should take milliseconds: a first task, the last tasks of a phase.
PATIENCE_SECONDS = 20.0
_CLEANUP_SECONDS = 60.0
_CANCEL_STEP = 10_000
#: The states in which a task can still be cancelled.
_OPEN_STATES = ("running", "retrying", "scheduled", "ready")

#: Name of a phase → its share of the time.
SHARES = {
    "round_trip": 0.05,
    "one_by_one": 0.10,
    "twenty_at_a_time": 0.12,
    "bulk": 0.12,
    "drain": 0.15,
    "sustained": 0.16,
    "start_after_submit": 0.15,
    "start_after_run_at": 0.15,
}


class Phase(msgspec.Struct, frozen=True):
    """The result of one phase. `rate` is per second, times are in milliseconds."""

    name: str
    seconds: float
    count: int
    rate: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    #: Tasks that had not run when the phase's time was over.
    missing: int = 0
    cpu: Cpu = Cpu()


class Bench:
    """One measurement of one server."""

    def __init__(self, url: str, key: str, *, workers: int, seconds: float, say: Callable[[str], None]) -> None:
        self._url, self._key = url, key
        self._workers = workers
        self._seconds = seconds
        self._say = say
        self._client = AsyncClient(url, key, retry_for=RETRY_SECONDS)
        self._hands: Hands | None = None
        self._submitted = 0
        self.queue = f"duetime-bench-{secrets.token_hex(4)}"
        self.machine = Machine(url)
        self.phases: list[Phase] = []
        self.cancelled = 0

    async def run(self) -> None:
        async with self._client:
            try:
                await self._try_out()
                await self._submit_phases()
                async with Hands(self._url, self._key, self.queue, self._workers) as hands:
                    self._hands = hands
                    await self._work_phases(hands)
            finally:
                self._hands = None
                if self._submitted:
                    await self._clean_up()

    async def _try_out(self) -> None:
        """Run one task from submission to completion, to check that the installation works before it is measured."""
        self._say("trying one task")
        await self._client.send(probe("readyz"))
        await self._submit_one()
        async with Hands(self._url, self._key, self.queue, 1) as hands:
            if not await hands.wait_for(1, PATIENCE_SECONDS):
                raise Refused(
                    f"a task that was submitted did not run within {PATIENCE_SECONDS:.0f} s, although a worker waited "
                    "for it: look at the node's log, and check the database with `duetime doctor`"
                )

    async def _submit_phases(self) -> None:
        await self._phase("round_trip", lambda seconds: self._repeat(seconds, 1, self._ask))
        # Without workers: the tasks that are submitted here are the backlog that is drained afterwards.
        self._submitted = 0
        await self._phase("one_by_one", lambda seconds: self._repeat(seconds, 1, self._submit_one))
        await self._phase("twenty_at_a_time", lambda seconds: self._repeat(seconds, AT_A_TIME, self._submit_one))
        await self._phase("bulk", self._submit_in_bulk)

    async def _work_phases(self, hands: Hands) -> None:
        await self._phase("drain", lambda seconds: self._drain(hands, seconds))
        await self._phase("sustained", lambda seconds: self._sustain(hands, seconds))
        await self._phase("start_after_submit", lambda seconds: self._lag(hands, seconds, None))
        await self._phase("start_after_run_at", lambda seconds: self._lag(hands, seconds, LAG_DELAY_SECONDS))

    async def _phase(self, name: str, measure: Callable[[float], Awaitable[Phase]]) -> None:
        left = self._seconds * sum(share for each, share in SHARES.items() if each not in self._names())
        self._say(f"{len(self.phases) + 1} of {len(SHARES)}: {name.replace('_', ' ')}, about {left:.0f} s left")
        found = await measure(self._seconds * SHARES[name])
        self.phases.append(msgspec.structs.replace(found, name=name))

    def _names(self) -> set[str]:
        return {phase.name for phase in self.phases}

    def _workers_cpu(self) -> float:
        return 0.0 if self._hands is None else self._hands.cpu()

    # What is sent

    async def _ask(self) -> None:
        """Send a request that does not use the database."""
        await self._client.send(probe("healthz"))

    async def _submit_one(self) -> None:
        await self._client.submit(TASK_TYPE, PAYLOAD, queue=self.queue)
        self._submitted += 1

    async def _submit_batch(self) -> None:
        batch = [{"type": TASK_TYPE, "queue": self.queue, "payload": PAYLOAD}] * BATCH
        result = await self._client.submit_many(batch)
        self._submitted += result.accepted
        result.raise_for_errors()

    # What is measured

    async def _repeat(self, seconds: float, at_a_time: int, send: Callable[[], Awaitable[None]]) -> Phase:
        """Run this many senders. Each sends one request after another."""
        times: list[float] = []
        watch = self.machine.watch(self._workers_cpu)
        began_at = time.perf_counter()

        async def repeat() -> None:
            while True:
                sent_at = time.perf_counter()
                await send()
                times.append(time.perf_counter() - sent_at)
                if time.perf_counter() - began_at >= seconds:
                    return

        await asyncio.gather(*[repeat() for _ in range(at_a_time)])
        elapsed = time.perf_counter() - began_at
        return Phase("", elapsed, len(times), len(times) / elapsed, *_percentiles(times), cpu=watch.read())

    async def _submit_in_bulk(self, seconds: float) -> Phase:
        watch = self.machine.watch(self._workers_cpu)
        before, began_at = self._submitted, time.perf_counter()

        async def produce() -> None:
            while True:
                await self._submit_batch()
                if time.perf_counter() - began_at >= seconds or self._submitted >= BACKLOG:
                    return

        await asyncio.gather(*[produce() for _ in range(PRODUCERS)])
        elapsed, count = time.perf_counter() - began_at, self._submitted - before
        return Phase("", elapsed, count, count / elapsed, cpu=watch.read())

    async def _drain(self, hands: Hands, seconds: float) -> Phase:
        """Drain the backlog, measured from the first finished task: starting the processes does not count."""
        if not await hands.wait_for(1, PATIENCE_SECONDS):
            raise Refused(f"no task was run within {PATIENCE_SECONDS:.0f} s, although workers waited")
        watch = self.machine.watch(self._workers_cpu)
        first, began_at = hands.done, time.perf_counter()
        await hands.wait_for(self._submitted, seconds)
        elapsed, count = time.perf_counter() - began_at, hands.done - first
        found = Phase("", elapsed, count, count / elapsed if count else None, cpu=watch.read())
        return await self._without_rest(found, hands, self._submitted - hands.done)

    async def _sustain(self, hands: Hands, seconds: float) -> Phase:
        """Submit and run tasks at once. The first fifth of the time is a warm-up."""
        before, done_before = self._submitted, hands.done
        ends_at = time.perf_counter() + seconds

        async def produce() -> None:
            while time.perf_counter() < ends_at:
                if self._submitted - before - (hands.done - done_before) < UNDER_WAY:
                    await self._submit_batch()
                else:
                    await hands.news(0.1)

        producing = asyncio.gather(*[produce() for _ in range(PRODUCERS)])
        try:
            await asyncio.sleep(seconds / 5)
            watch = self.machine.watch(self._workers_cpu)
            first, began_at = hands.done, time.perf_counter()
            await producing
        finally:
            producing.cancel()
        elapsed, count = time.perf_counter() - began_at, hands.done - first
        found = Phase("", elapsed, count, count / elapsed, cpu=watch.read())
        wanted = done_before + self._submitted - before
        await hands.wait_for(wanted, PATIENCE_SECONDS)
        return await self._without_rest(found, hands, wanted - hands.done)

    async def _lag(self, hands: Hands, seconds: float, delay: float | None) -> Phase:
        """Measure how soon handlers start, at a rate far below any limit."""
        hands.starts.clear()
        watch = self.machine.watch(self._workers_cpu)
        submits: list[asyncio.Task[Sent]] = []
        began_at = time.perf_counter()
        for number in range(max(2, round(seconds * LAG_RATE))):
            await asyncio.sleep(began_at + number / LAG_RATE - time.perf_counter())
            submits.append(asyncio.create_task(self._submit_numbered(number, delay)))
        sent = await asyncio.gather(*submits)
        ends_at = time.perf_counter() + (delay or 0.0) + PATIENCE_SECONDS
        while len(hands.starts) < len(sent) and time.perf_counter() < ends_at:
            await hands.news(0.1)
        clock_ahead = find_clock_difference(sent)
        lags = [hands.starts[each.number] - each.due_at(clock_ahead) for each in sent if each.number in hands.starts]
        elapsed = time.perf_counter() - began_at
        found = Phase("", elapsed, len(sent), None, *_percentiles(lags), cpu=watch.read())
        return await self._without_rest(found, hands, len(sent) - len(lags))

    async def _submit_numbered(self, number: int, delay: float | None) -> "Sent":
        sent_at = time.time()
        payload = {**PAYLOAD, "number": number}
        task = await self._client.submit(TASK_TYPE, payload, queue=self.queue, delay=delay)
        self._submitted += 1
        run_at = None if delay is None or task.run_at is None else task.run_at.timestamp()
        return Sent(number, sent_at, time.time(), delay or 0.0, run_at)

    # What is left behind

    async def _without_rest(self, found: Phase, hands: Hands, missing: int) -> Phase:
        """Run the phase, and leave none of its tasks for the next one."""
        if missing <= 0:
            return found
        await self._cancel_open()
        await hands.quiet(PATIENCE_SECONDS)
        return msgspec.structs.replace(found, missing=missing)

    async def _clean_up(self) -> None:
        """Cancel what is left, within a time limit, however the measurement ended."""
        self._say("cleaning up")
        try:
            async with asyncio.timeout(_CLEANUP_SECONDS):
                await self._cancel_open()
        except (SdkError, DuetimeError, TimeoutError):
            print_note(
                "what was submitted and has not run could not be cancelled; "
                f"`duetime tasks cancel --queue {self.queue} --yes` does it"
            )

    async def _cancel_open(self) -> None:
        for state in _OPEN_STATES:
            cursor = None
            while True:
                step = await self._client.bulk(
                    "cancel", queue=self.queue, state=state, limit=_CANCEL_STEP, cursor=cursor
                )
                self.cancelled += step.changed
                if (cursor := step.next) is None:
                    break


class Sent(msgspec.Struct, frozen=True):
    """One submission: when it was sent and answered by our clock, and when its task is due by the server's clock."""

    number: int
    sent_at: float
    answered_at: float
    delay: float
    run_at: float | None

    def due_at(self, clock_ahead: float) -> float:
        """Return the earliest time by our clock at which its handler could start."""
        return self.sent_at if self.run_at is None else self.run_at - clock_ahead


def find_clock_difference(sent: list[Sent]) -> float:
    """Return how many seconds the server's clock is ahead of ours. It is 0 unless the answers rule that out.

    The server set each time between a request and its answer, so each answer bounds the difference on both sides.
    """
    taken = [(each.run_at - each.delay, each) for each in sent if each.run_at is not None]
    if not taken:
        return 0.0
    least = max(set_at - each.answered_at for set_at, each in taken)
    most = min(set_at - each.sent_at for set_at, each in taken)
    # The API returns times in whole milliseconds, rounded up.
    return 0.0 if least <= 0.001 and most >= -0.001 else (least + most) / 2


def _percentiles(times: list[float]) -> tuple[float | None, float | None]:
    """Return the median and the 99th percentile in milliseconds."""
    if not times:
        return None, None
    ordered = sorted(1000 * each for each in times)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
