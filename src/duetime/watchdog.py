"""Who holds the event loop up: everything else that the node does waits for it.

The loop sets a beat every few hundredths of a second.  A thread looks whether it
comes; when one is late, the thread takes the stack of the loop's thread and
reads from it what is running, and for whom.  So nothing is noted on the way of a
request.  The beat that comes at last knows how long it took, and why: a thread
that used the processor, or that waited in a call, has only itself to blame; one
that the machine did not let run (a busy machine, a stopped process) is counted
apart and blamed on nobody.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

import structlog

from duetime import metrics
from duetime.telemetry import Sparing

log = structlog.get_logger()
#: How often the loop beats, and the thread looks.
BEAT_SECONDS = 0.05
#: A beat that is later than this is told of.
BLOCKED_SECONDS = 0.1
#: From here on the thread does not wait for the beat to tell of it.
STUCK_SECONDS = 5.0
#: One line in so many seconds; what is left out is counted.
LINE_EVERY_SECONDS = 5.0
#: How many of our frames a line shows, from the innermost on.
FRAMES = 5

_OURS = str(Path(__file__).parent)

#: `busy`: it used the processor; `waiting`: it waited in a call; `starved`: the machine did not let it run.
Reason = Literal["busy", "waiting", "starved"]
#: Gives the operation and the tenant, as far as they are known, from the local variables of a frame.
Describe = Callable[[Mapping[str, Any]], "tuple[str, str | None]"]


class Sample(NamedTuple):
    """What the loop's thread was doing."""

    operation: str
    tenant: str | None
    #: Of our own code, the innermost first.
    frames: tuple[str, ...]
    #: The beat that was late, and whether the thread that looks was late itself.
    beat: int
    is_late: bool


class Used(NamedTuple):
    """What the loop's thread had of the processor so far, and how long it waited for it; in seconds."""

    cpu: float
    queued: float


class Meter:
    """What the thread that made it uses."""

    def __init__(self) -> None:
        try:
            # Open once: a look costs 2 µs then.
            self._file: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # A system that does not tell.
            self._file = None

    def read(self) -> Used:
        queued = 0.0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        return Used(time.thread_time(), queued)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


_known: dict[CodeType, Describe] = {}


def describe_by(code: CodeType, describe: Describe) -> None:
    """Let a function that is found on the stack say which operation runs, and for which tenant."""
    _known[code] = describe


def judge(late: float, used: Used, *, is_looker_late: bool) -> Reason:
    """Why a beat came so late, by what the loop's thread used meanwhile."""
    if used.cpu >= BLOCKED_SECONDS or used.cpu >= late / 2:
        return "busy"
    # Where the other thread could not run either, the whole process was stopped.
    return "starved" if is_looker_late or used.queued >= late / 2 else "waiting"


def read_stack(frame: FrameType | None, starters: Collection[CodeType] = ()) -> tuple[str, str | None, tuple[str, ...]]:
    """The operation, the tenant, and our frames of a stack, from the innermost frame on.

    `starters` run the loop: they and what called them say nothing of what the loop does.
    """
    operation, tenant, outermost = "", None, ""
    frames: list[str] = []
    while frame is not None and (code := frame.f_code) not in starters:
        if code.co_filename.startswith(_OURS):
            outermost = f"{_module(code)}.{code.co_name}"
            if len(frames) < FRAMES:
                frames.append(f"{_module(code)}:{frame.f_lineno} {code.co_name}")
        describe = _known.get(code)
        if describe is not None and not operation:
            try:
                operation, tenant = describe(frame.f_locals)
            except (AttributeError, KeyError):
                # Its variables are not there yet.
                operation = ""
        frame = frame.f_back
    return operation or outermost or "other", tenant, tuple(frames)


class Watchdog:
    def __init__(self, report: "Callable[[Reason, float, Used, Sample | None], None] | None" = None) -> None:
        """`report` is told of each late beat, in the loop; None: the log and the metrics are."""
        self._report = report or tell
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._beats = 0
        #: What runs the loop, known from the first beat on.
        self._starters: frozenset[CodeType] = frozenset()
        self._due_at = 0.0
        self._meter: Meter | None = None
        self._used = Used(0.0, 0.0)
        self.sample: Sample | None = None
        self._is_stuck = False

    def start(self) -> None:
        """Watch the loop that runs, from its own thread."""
        self._watched = threading.get_ident()
        self._meter = Meter()
        self._used = self._meter.read()
        self._set_beat(asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join(1.0)
        if self._meter is not None:
            self._meter.close()

    def _set_beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beats += 1
        self._due_at = time.monotonic() + BEAT_SECONDS
        self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        late = max(0.0, time.monotonic() - self._due_at)
        metrics.LOOP_DELAY.observe(late)
        if not self._starters:
            self._starters = frozenset(_codes_below(sys._getframe()))
        assert self._meter is not None
        used, before = self._meter.read(), self._used
        self._used = used
        if late >= BLOCKED_SECONDS:
            sample, self.sample = self.sample, None
            if sample is not None and sample.beat != self._beats:
                sample = None
            spent = Used(used.cpu - before.cpu, used.queued - before.queued)
            reason = judge(late, spent, is_looker_late=sample is None or sample.is_late)
            self._report(reason, late, spent, sample)
        self._is_stuck = False
        self._set_beat(loop)

    def _look(self) -> None:
        """In a thread of its own: whenever a beat is late, see what the loop's thread does."""
        look_at = time.monotonic()
        while not self._stopped.wait(max(0.0, look_at - time.monotonic())):
            now, meant_at = time.monotonic(), look_at
            beat, late = self._beats, now - self._due_at
            # Not before the next beat can be late, so that a loop that goes on is looked at rarely.
            look_at = now + max(BEAT_SECONDS - late, BEAT_SECONDS)
            if late < BEAT_SECONDS:
                continue
            sample = self.sample
            if sample is None or sample.beat != beat:
                # The first look at a beat is what counts: later ones may see what comes behind it.
                is_late = now - meant_at > BEAT_SECONDS
                operation, tenant, frames = read_stack(sys._current_frames().get(self._watched), self._starters)
                self.sample = sample = Sample(operation, tenant, frames, beat, is_late)
            if late >= STUCK_SECONDS and not self._is_stuck:
                self._is_stuck = True
                log.error(
                    "the event loop is blocked and does not go on",
                    operation=sample.operation,
                    tenant=sample.tenant,
                    seconds=round(late, 1),
                    at=sample.frames,
                )


_spared = Sparing(1, seconds=LINE_EVERY_SECONDS)


def tell(reason: Reason, late: float, used: Used, sample: Sample | None) -> None:
    """Count a late beat, and write a line of it."""
    if reason == "starved":
        metrics.LOOP_STARVED.inc()
        metrics.LOOP_STARVED_SECONDS.inc(late)
        return
    operation = "unknown" if sample is None else sample.operation
    metrics.LOOP_BLOCKED.labels(operation).inc()
    metrics.LOOP_BLOCKED_SECONDS.labels(operation).inc(late)
    left_out = _spared.take()
    if left_out is not None:
        log.warning(
            "the event loop was blocked",
            operation=operation,
            tenant=None if sample is None else sample.tenant,
            reason=reason,
            seconds=round(late, 3),
            cpu_seconds=round(used.cpu, 3),
            at=() if sample is None else sample.frames,
            left_out=left_out,
        )


def _codes_below(frame: FrameType) -> Iterator[CodeType]:
    """What called a callback of the loop."""
    below = frame.f_back
    while below is not None:
        yield below.f_code
        below = below.f_back


def _module(code: CodeType) -> str:
    """A file of ours as one imports it, without the package."""
    return code.co_filename[len(_OURS) + 1 :].removesuffix(".py").replace("/", ".")
