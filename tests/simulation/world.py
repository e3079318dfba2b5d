"""A seeded simulation of nodes, holders and a database that all fail, one event at a time.

The nodes are the shipping code (`node`) on simulated time (`loop`); doubles stand
only for the database's tables (`node_statements`), for the lines to it (`server`)
and between nodes (`lines`).  Commits become visible minutes late, answers get lost,
nodes and holders crash, stop and come back, two processes share a name, the
database goes away, its clock jumps.  Nothing here depends on anything but the seed.

What must hold is checked all the time, and at the end, when the world has
calmed down and everything has drained.  A failure names its seed and the last
events; from the folder `tests` it can be repeated:

    python -m simulation.world --seed 7 --steps 100000 [--fault charges_by_task]
"""

import argparse
import asyncio
import random
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, fields
from typing import Any, cast

import structlog

from duetime import ids
from duetime.cluster.shards import assign
from duetime.errors import DuetimeError, Unavailable, Unknown
from duetime.ids import SCHEDULE_LANES_END, due_ms_of, lane_of
from duetime.lifecycle.submission.storing import MINT_AHEAD_MS
from duetime.model.schedule import Overlap
from duetime.model.task import LaneKey, LeasedTask, Outcome
from duetime.scheduler.liveness import SILENCE_SECONDS
from simulation.clients import HANDLED, LIMITED_TENANT, LIMITS, Clients
from simulation.faults import Faults
from simulation.holder import Holder
from simulation.lines import Lines
from simulation.loop import Process, VirtualLoop
from simulation.node import Lease, Life, Node
from simulation.node_statements import Store
from simulation.rows import Record
from simulation.server import CALL, Server
from simulation.tables import Attempt, Broken, Claim, End, Transaction

#: Statements about holders lock a row that every beat needs: they do not last.
_SHORT = frozenset({"peek", "note", "keep_hints", "register", "beat", "end_silent", "sign_off", "join", "leave"})
_CALL_LIMIT = 12.0
#: After a change of nodes, limits need so long until they hold.
_SETTLING_SECONDS = 15.0
#: A look that stalls is given up after ten seconds, and made again.
_FOUND_WITHIN_SECONDS = 25.0
#: A database that was away for so long has been missed by every node.
_NOTICED_SECONDS = 2.9
_TRACE = 40_000
_SHOWN = 60


class SimulationFailure(AssertionError):
    """A rule was broken; the message says how to see it again."""


@dataclass(frozen=True)
class Figures:
    """What a run did, so that a test can see that it did something."""

    steps: int
    tasks: int
    simulated_seconds: float
    outcomes: Counter[Outcome]
    events: Counter[str]


class World:
    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.faults = faults or Faults()
        self.has_jumps = seed % 2 == 1
        #: The nodes share the shards; else each feeds all of them.
        self.is_sharing = seed // 2 % 2 == 0
        self.loop = VirtualLoop()
        self.failure: AssertionError | None = None
        self.is_calm = self.is_quiet = self.is_next_late = False
        self.away_at = self.back_at = self.jumped_at = self.moved_at = float("-inf")
        self.healthy_since = self.blocked_at = 0.0
        self.trace: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=_TRACE)
        self.events: Counter[str] = Counter()
        self._processes = 0
        self._requests: dict[asyncio.Future[Any], Process] = {}
        #: The holders' own logs: who began an attempt; what was named as started.
        self.runs: dict[Attempt, int] = {}
        self.declared: set[Attempt] = set()
        self.handed: dict[Attempt, int] = {}
        self.outcomes: Counter[Outcome] = Counter()
        #: Calls of verbs that had their effect, and those that were answered.
        self._carried_out: set[int] = set()
        self._answered: set[int] = set()
        self.store = Store(self.chance, self.faults, self.loop.time)
        self.store.on_visible = self._on_visible
        self.store.on_locked = self._on_locked
        self.store.on_claimed = self._on_claimed
        self.store.on_end = self._on_end
        self.server = Server(self.loop, self.store, self)
        self.lines = Lines(self.loop, self.latency)
        self.loop.network = self.lines
        self.loop.set_exception_handler(self._on_loop_error)
        names = ("node-1", "node-2")
        owners = assign(frozenset(names))
        self.store.tenants = {tenant: owners.index(name) for tenant, name in enumerate((*names, names[0]), 1)}
        self.nodes = [Node(self, name) for name in names]
        gpu = frozenset({"gpu"})
        self.holders = [
            Holder(self, "careful", 1, gpu, is_careful=True, keeps_name=False),
            Holder(self, "careless", 1, frozenset(), is_careful=False, keeps_name=False),
            Holder(self, "renamed", 2, gpu, is_careful=True, keeps_name=False),
            Holder(self, "stable", 2, frozenset(), is_careful=False, keeps_name=True),
            Holder(self, "twin", 1, gpu, is_careful=True, keeps_name=True),
            Holder(self, "twin", 1, frozenset(), is_careful=False, keeps_name=True),
            Holder(self, "open", LIMITED_TENANT, frozenset(), is_careful=False, keeps_name=False),
            Holder(self, "picky", LIMITED_TENANT, frozenset(), is_careful=True, keeps_name=False, types=HANDLED),
        ]
        self.clients = Clients(self)

    @property
    def now(self) -> float:
        return self.loop.now

    def begin_schedules(self, lanes: list[LaneKey]) -> None:
        """The first two tenants have some, whose tasks go to their first lanes."""
        by_key = {key: lane for lane, key in self.store.lane.items()}
        for tenant, shard in list(self.store.tenants.items())[:2]:
            lane = by_key[next(key for key in lanes if key.tenant == tenant)]
            for every, overlap in ((5.0, Overlap.ALLOW), (20.0, Overlap.SKIP), (7.0, Overlap.BUFFER_ALL)):
                self.store.add_schedule(tenant, every, overlap, shard, lane)

    # Events

    def after(self, seconds: float, act: Callable[..., object], *arguments: object) -> None:
        self.loop.call_later(seconds, act, *arguments, context=Context())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Something of the world's own, which never stands still."""
        Context().run(self.loop.create_task, self._watch(work))

    async def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._fail_by(error)

    def fail(self, text: str) -> None:
        """A rule is broken."""
        broken = Broken(text)
        self._fail_by(broken)
        raise broken

    def _fail_by(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error if isinstance(error, AssertionError) else Broken(f"{type(error).__name__}: {error}")
            self.failure.__cause__ = error if error is not self.failure else None

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, DuetimeError):
            self._fail_by(error)

    def note(self, text: str, *arguments: object) -> None:
        self.trace.append((self.now, text, arguments))

    def next_process(self) -> int:
        self._processes += 1
        return self._processes

    # What befalls messages and statements

    def random(self) -> float:
        return self.chance.random()

    def latency(self) -> float:
        draw = self.chance.random()
        return draw * 0.004 if draw < 0.97 or self.is_calm else draw * 1.5

    def is_unlucky(self, share: float) -> bool:
        return not self.is_calm and self.chance.random() < share

    def count(self, event: str) -> None:
        self.events[event] += 1

    def queueing(self, name: str) -> float:
        """How long a statement waits at the server."""
        if self.is_next_late and name.startswith("submit"):
            # Nearly as long as its ids may be old.
            return 4.9 + 0.08 * self.chance.random()
        if name.startswith("submit") and self.is_unlucky(0.01):
            return self.chance.random() * 9.0
        return self.chance.random() * 1.5 if name == "end_silent" else 0.0

    def delay(self, name: str, rows: list[Record]) -> float:
        """How long a commit takes beyond its time."""
        if self.is_next_late and name.startswith("submit") and rows:
            self.is_next_late = False
            return 15.0 + 100.0 * self.chance.random()
        draw = self.chance.random()
        if self.is_calm or draw < 0.97:
            return 0.0
        if name == "commit" and draw > 0.985:
            # Longer than anybody waits for its answer.
            return 5.0 + 15.0 * self.chance.random()
        # Minutes are rare: while one such is open, no note becomes firm.
        longest = 0.5 if name in _SHORT or draw < 0.99 else 8.0 if draw < 0.99997 else 400.0
        return self.chance.random() * longest

    def done(self, process: Process, name: str, rows: list[Record], transaction: Transaction) -> None:
        """A statement has ended well."""
        if name != "end_silent" or not rows:
            return
        if not transaction.is_late:
            self._check_silence([row["id"] for row in rows])
        if self.has_jumps and self.is_unlucky(0.1):
            self.spawn(self._fail_over())

    # Requests to nodes

    def pick_node(self) -> Node | None:
        up = [node for node in self.nodes if node.life is not None]
        return self.chance.choice(up) if up else None

    async def request(
        self, call: Callable[[Life], Awaitable[object]], limit: float = _CALL_LIMIT, number: int | None = None
    ) -> object:
        """A holder's or client's request to some node, over a network that loses things."""
        node = self.pick_node()
        if self.is_unlucky(0.003):
            await asyncio.sleep(1.0)
            raise Unknown("the request was lost")
        await asyncio.sleep(self.latency())
        life = None if node is None else node.ready
        if life is None:
            await asyncio.sleep(0.05)
            raise Unavailable("no such node")
        answer: asyncio.Future[object] = self.loop.create_future()
        self._requests[answer] = life.process
        serving = life.process.spawn(self._serve(life, call, answer, number))
        try:
            async with asyncio.timeout(limit):
                return await answer
        except TimeoutError as error:
            raise Unknown("the node does not answer") from error
        finally:
            self._requests.pop(answer, None)
            if not serving.done() and self.is_unlucky(0.5):
                # The node notices that its client has gone.
                life.process.call(serving.cancel)

    async def _serve(
        self,
        life: Life,
        call: Callable[[Life], Awaitable[object]],
        answer: "asyncio.Future[object]",
        number: int | None,
    ) -> None:
        CALL.set(number)
        value: object = None
        error: Exception | None = None
        try:
            value = await call(life)
        except DuetimeError as expected:
            error = expected
        except Exception as unexpected:
            self._fail_by(unexpected)
            raise
        if number is not None and not isinstance(error, Unknown):
            self._answered.add(number)
        is_lease = isinstance(value, Lease) and bool(value.tasks)
        if self.is_unlucky(0.006):
            self.note("an answer of %s was lost: %s", life.process, value)
            self.after(1.0, _fail, answer, Unknown("the answer was lost"))
            if is_lease and self.is_unlucky(0.5):
                try:
                    await life.feeder.give_back(cast(Lease, value).tasks)
                except Unavailable:
                    pass
        elif is_lease and self.is_unlucky(0.02):
            self.note("a lease of %s arrives late: %s", life.process, value)
            self.after(1.0 + 10.0 * self.chance.random(), _give, answer, value)
        elif error is not None:
            self.after(self.latency(), _fail, answer, error)
        else:
            self.after(self.latency(), _give, answer, value)

    def fail_requests(self, process: Process) -> None:
        """Whoever waits for a process that has died hears so."""
        for answer, by in list(self._requests.items()):
            if by is process:
                self.after(0.05, _fail, answer, Unknown("the connection broke"))

    def carried_out(self, call: int, verb: str) -> None:
        if call in self._carried_out:
            raise Broken(f"{verb} was carried out twice for one call")
        if call in self._answered:
            raise Broken(f"{verb} was carried out after its call had been answered")
        self._carried_out.add(call)

    # Running

    def run(self, steps: int) -> Figures:
        try:
            with self._captured(), ids.repeatable(self.chance):
                state = random.getstate()
                random.seed(self.seed)
                try:
                    self._run(steps)
                finally:
                    random.setstate(state)
        except AssertionError as broken:
            raise SimulationFailure(self._tell(broken, steps)) from broken
        return Figures(self.loop.steps, len(self.store.task), self.now, self.outcomes, self.events)

    def _run(self, steps: int) -> None:
        try:
            self.loop.run_until(self._begin(steps))
            self._raise_failure()
            self._calm_down()
            # A round from the start that was slow once rests for long.
            calm_until = self.now + 8_000.0
            looked_at = self.loop.steps

            def has_ended() -> bool:
                nonlocal looked_at
                if self.failure is not None or self.now > calm_until:
                    return True
                if self.loop.steps < looked_at + 1_000:
                    return False
                looked_at = self.loop.steps
                return self._has_drained()

            self.loop.run_until(has_ended)
            self._raise_failure()
            self._check_end()
        finally:
            self._throw_away()

    def _begin(self, steps: int) -> Callable[[], bool]:
        for each in (*self.nodes, *self.holders):
            each.boot()
        self.clients.start()
        self.spawn(self._audit_for_ever())
        for trouble, mean in (
            (self._crash_node, 90.0),
            (self._pause_node, 120.0),
            (self._crash_holder, 4.0),
            (self._pause_holder, 8.0),
            (self._take_database_away, 240.0),
            *([(self._jump_clock, 60.0)] if self.has_jumps else []),
            (self._fall_quiet, 50.0),
            (self._break_line, 60.0),
        ):
            self.spawn(self._trouble_for_ever(trouble, mean))
        return lambda: self.loop.steps >= steps or self.failure is not None

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _throw_away(self) -> None:
        """Everything ends, and reaches nobody any more."""
        self.is_calm = True
        for each in (*self.nodes, *self.holders):
            each.crash()
        # On their way out they may begin others.
        while tasks := asyncio.all_tasks(self.loop):
            until = self.loop.steps + 20_000
            for task in tasks:
                task.cancel()
            self.loop.run_until(
                lambda tasks=tasks, until=until: self.loop.steps > until or all(t.done() for t in tasks)
            )
        self.loop.close()

    @contextmanager
    def _captured(self) -> Iterator[None]:
        """What the nodes log belongs to the trace; an error is a failure."""
        before = structlog.get_config()

        def capture(_: object, method: str, event: Any) -> Any:
            process = Process.current()
            self.note("%s: %s", process, event)
            if isinstance(event, dict) and str(event.get("event")).startswith("nodes that share"):
                self.count("moved shards")
                self.moved_at = self.now
            if method in ("error", "critical") and not (process is not None and process.is_dead):
                self._fail_by(Broken(f"{process} logs an error: {event}"))
            raise structlog.DropEvent

        structlog.configure(processors=[capture], cache_logger_on_first_use=False)
        try:
            yield
        finally:
            structlog.configure(**before)

    def _tell(self, broken: AssertionError, steps: int) -> str:
        faults = "".join(f" --fault {each.name}" for each in fields(Faults) if getattr(self.faults, each.name))
        lines = [f"{at:10.3f} {text % arguments}"[:400] for at, text, arguments in self.trace]
        about = [word for word in str(broken).replace("'", " ").replace("(", " ").split() if word.count("-") == 4]
        told = [line for line in lines if any(word.strip("),") in line for word in about)]
        return "\n".join(
            [
                f"{broken}",
                f"at {self.now:.3f} s, after {self.loop.steps} steps; in the folder tests:",
                f"python -m simulation.world --seed {self.seed} --steps {steps}{faults}",
                "the last events:",
                *lines[-_SHOWN:],
                *(["about it:", *told[-_SHOWN:]] if told else []),
            ]
        )

    # Trouble

    async def _trouble_for_ever(self, trouble: Callable[[], Coroutine[Any, Any, None]], mean: float) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1.0 / mean))
            if self.is_calm:
                return
            self.events[trouble.__name__.strip("_")] += 1
            await trouble()

    async def _crash_node(self) -> None:
        node = self.chance.choice(self.nodes)
        self.note("%s crashes", node.name)
        node.crash()
        await asyncio.sleep(self.chance.choice((0.1, 3.0, 20.0)))
        if node.life is None:
            node.boot()
        self.healthy_since = self.now
        self.note("%s is up again", node.name)

    async def _pause_node(self) -> None:
        node = self.chance.choice(self.nodes)
        seconds = self.chance.choice((2.0, 5.0, 30.0))
        self.note("%s stands still for %.0f s", node.name, seconds)
        node.pause(seconds)
        await asyncio.sleep(seconds)

    async def _crash_holder(self) -> None:
        holder = self.chance.choice(self.holders)
        if not holder.is_up or self.is_quiet:
            return
        self.note("%s %s dies", holder.name, holder.number)
        if self.chance.random() < 0.3:
            holder.leave()
            await asyncio.sleep(3.0)
        holder.crash()
        await asyncio.sleep(self.chance.choice((0.1, 2.0, 15.0)))
        if not holder.is_up and not self.is_quiet:
            holder.boot()

    async def _pause_holder(self) -> None:
        holder = self.chance.choice(self.holders)
        seconds = self.chance.choice((1.0, 5.0, 6.0 + 6.0 * self.chance.random(), 40.0))
        self.note("%s %s stands still for %.0f s", holder.name, holder.number, seconds)
        holder.pause(seconds)

    async def _fall_quiet(self) -> None:
        """Nobody is there; one last task becomes visible long after it was stored."""
        self.note("the world falls quiet")
        self.is_quiet = True
        for holder in self.holders:
            holder.crash()
        await asyncio.sleep(20.0)
        self.is_next_late = True
        self.clients.submit_one_at_once()
        await asyncio.sleep(25.0)
        self.is_quiet = self.is_next_late = False
        for holder in self.holders:
            if not holder.is_up:
                holder.boot()

    async def _break_line(self) -> None:
        self.lines.break_some(self.chance.choice)

    async def _take_database_away(self) -> None:
        self.note("the database is away")
        self.away_at = self.now
        self.server.go_away(restarts=self.chance.random() < 0.5)
        await asyncio.sleep(self.chance.choice((3.0, 10.0, 65.0)))
        self._bring_database_back()

    def _bring_database_back(self) -> None:
        if self.server.is_away:
            self.server.is_away = False
            self.healthy_since = self.now
            if self.now - self.away_at > _NOTICED_SECONDS:
                self.back_at = self.now
            self.note("the database is back")

    async def _fail_over(self) -> None:
        """The database is gone between a holder's end and the sweep, and another takes its place."""
        self.events["fail_over"] += 1
        if not self.server.is_away:
            await self._take_database_away()
        self._jump_by(900_000)

    async def _jump_clock(self) -> None:
        self._jump_by(self.chance.choice((-60_000, -3_000, -200, 200, 3_000, 60_000, 900_000)))

    def _jump_by(self, jump_ms: int) -> None:
        self.note("the database's clock jumps by %d ms", jump_ms)
        self.store.offset_us += 1000 * jump_ms
        self.jumped_at = self.now

    # What must hold

    def log_hand_out(self, task: LeasedTask, holder: Holder) -> None:
        attempt = (task.id, task.number)
        self.note("%s %d gets %s", holder.name, holder.number, attempt)
        if self.handed.setdefault(attempt, holder.number) != holder.number:
            self.fail(f"attempt {attempt} was handed out to {self.handed[attempt]} and to {holder.number}")
        if holder.tenant == LIMITED_TENANT:
            self._check_limit(task.type)

    def _check_limit(self, type: str) -> None:
        """As many run as may, while one node feeds the tenant and has done so for a while."""
        limits = LIMITS[type]
        if limits is None or limits.max_running is None or not self.is_sharing:
            return
        lives = [life for node in self.nodes if (life := node.life) is not None]
        settled_at = max(self.healthy_since, self.jumped_at, self.moved_at, *(life.disturbed_at for life in lives))
        if self.now - settled_at < _SETTLING_SECONDS:
            return
        running = [
            claim.task
            for claim in self.store.claim.values()
            if (claim.task, claim.number) in self.handed
            and self.store.task[claim.task].type == type
            and self.store.lane[lane_of(claim.task)].tenant == LIMITED_TENANT
        ]
        if len(running) > limits.max_running:
            self.fail(f"{len(running)} tasks of the type {type} run at once: {[str(task) for task in running]}")

    def log_run(self, attempt: Attempt, holder: Holder) -> None:
        self.note("%s %d runs %s", holder.name, holder.number, attempt)
        if attempt in self.runs:
            self.fail(f"attempt {attempt} was begun by {self.runs[attempt]} and by {holder.number}")
        if self.handed.get(attempt) != holder.number:
            self.fail(f"attempt {attempt} was begun by {holder.number}, to whom it was not given")
        end = self.store.attempt.get(attempt)
        is_elsewhere = end is not None and end.outcome in (Outcome.RELEASED, Outcome.LAPSED)
        if is_elsewhere and holder.is_careful and not holder.keeps_name:
            self.fail(f"attempt {attempt} was begun by {holder.number} after it was given to somebody else: {end}")
        self.runs[attempt] = holder.number

    def log_settled(self, attempt: Attempt, holder: Holder) -> None:
        """A report that was accepted, now or before, is the only end that the attempt has."""
        end = self.store.attempt.get(attempt)
        if end is None or end.by != holder.number:
            self.fail(f"{holder.number} was told that its report of {attempt} counts, but it ended as {end}")

    def _on_end(self, attempt: Attempt, end: End) -> None:
        self.outcomes[end.outcome] += 1
        if end.outcome is Outcome.LAPSED and attempt not in self.declared:
            raise Broken(f"attempt {attempt} never started, and costs the crash budget")
        if end.by is not None and self.handed.get(attempt) != end.by:
            raise Broken(f"attempt {attempt} was settled by {end.by}, and was given to {self.handed.get(attempt)}")

    def _on_visible(self, wake: uuid.UUID) -> None:
        if not self.has_jumps:
            lane = lane_of(wake)
            for node in self.nodes:
                if node.life is not None and (low := node.life.low(lane)) >= wake:
                    raise Broken(f"{wake} became visible behind the low of {node}, {low}")
            low = self.store.lane_hint.get(lane)
            if low is not None and low >= wake:
                raise Broken(f"{wake} became visible behind the kept low {low}")

    def _check_lows(self, life: Life) -> None:
        if not self.has_jumps:
            for lane, wakes in self.store.lanes.items():
                if wakes and wakes[0] <= life.low(lane):
                    self.fail(f"{wakes[0]} lies behind the low of {life.process}, {life.low(lane)}")

    def _on_locked(self, wake: uuid.UUID) -> None:
        for node in self.nodes:
            if node.life is not None:
                node.life.core.reported.discard(wake)

    def _on_claimed(self, transaction: Transaction, claim: Claim) -> None:
        """Nothing is early by the database's clock, wherever that has jumped."""
        early_ms = due_ms_of(claim.wake) - transaction.at_ms
        if claim.is_handed_over:
            self.count("handed over")
            early_ms -= MINT_AHEAD_MS
        if early_ms > 0:
            raise Broken(f"{claim.wake} was claimed {early_ms} ms early")

    def _check_silence(self, ended: list[int]) -> None:
        """Who is ended had been silent, while the database was there."""
        for holder in ended:
            silent_for = self.now - self.store.holder[holder].beaten_at
            if silent_for < SILENCE_SECONDS - 0.001:
                raise Broken(f"holder {holder} was ended {silent_for:.1f} s after its last beat")
            if self.now - self.back_at < SILENCE_SECONDS - 2.0:
                raise Broken(f"holder {holder} was ended {self.now - self.back_at:.1f} s after the database came back")

    async def _audit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(2.0)
            self._check_found_in_time()
            self._check_left_behind()
            for node in self.nodes:
                if (life := node.ready) is not None:
                    self._check_lows(life)
                    if life.core.known_lanes() > len(self.store.lane):
                        self.fail("the core knows more lanes than there are")

    def _check_found_in_time(self) -> None:
        """What is due and visible is found within seconds."""
        bound = 75.0 if self.has_jumps else _FOUND_WITHIN_SECONDS
        store, now_ms = self.store, self.store.now_ms()
        if self.server.is_away or self.now - self.healthy_since < bound or self.now - self.jumped_at < bound:
            return
        for lane, wakes in list(store.lanes.items()):
            if lane < SCHEDULE_LANES_END:
                continue
            # At a gate they wait for their limit.
            for wake in wakes[:3] if not store.lane[lane].gate else ():
                if due_ms_of(wake) > now_ms - bound * 1000 or self.now - store.visible_at[wake] < bound:
                    continue
                if not store.is_locked("due", wake) and any(self._neglects(node, lane, wake) for node in self.nodes):
                    self.fail(f"{wake} is due, and nobody has found it for {bound:.0f} s")

    def _neglects(self, node: Node, lane: int, wake: uuid.UUID) -> bool:
        """Whether a node should have found it; what a jump left behind the low is found by a round from the start."""
        life = node.ready
        return (
            life is not None
            and self.now - life.disturbed_at > 8.0
            and life.feeder.feeds(lane)
            # Nodes that do not share their shards do not tell each other of new lanes.
            and life.lanes.key_of(lane) is not None
            and life.low(lane) < wake
            and life.feeder._free_claims > 0
            and life.core.keeps_waiting(lane, self.store.lane[lane])
        )

    def _check_left_behind(self) -> None:
        """What an ended holder held goes on, as long as some node sweeps and no commit stands in its way."""
        since = self.now - 75.0
        if any(table == "claim" for table, _ in self.store.locks):
            self.blocked_at = self.now
        lives = [life for node in self.nodes if (life := node.ready) is not None]
        if (
            not self.server.is_away
            and max(self.back_at, self.blocked_at) < since
            and any(life.disturbed_at < since for life in lives)
        ):
            for claim in self.store.claim.values():
                holder = self.store.holder[claim.holder]
                is_old = holder.ended_us is not None and max(holder.ended_at, claim.visible_at) < since
                if is_old and not self.store.is_locked("claim", claim.task):
                    self.fail(f"task {claim.task} was left behind by holder {holder.id}, and nobody moves it on")

    def _calm_down(self) -> None:
        """No more trouble; the clock stands where it was furthest, and what is paused goes on."""
        self.note("the world calms down")
        self.is_calm = self.store.schedules_end = True
        self._bring_database_back()
        if self.has_jumps:
            furthest_ms = max((due_ms_of(wake) for wake in self.store.due), default=0)
            self.store.offset_us += 1000 * max(0, furthest_ms - self.store.now_ms())
            self.jumped_at = self.now
        for node in self.nodes:
            if node.life is None:
                node.boot()
            else:
                node.life.process.resume()
        for holder in self.holders:
            if holder.process is None:
                holder.boot()
            else:
                holder.process.resume()
        self.spawn(self._resume_everything())

    async def _resume_everything(self) -> None:
        while True:
            await asyncio.sleep(20.0)
            for task in list(self.store.held):
                await self.clients.steer("resume", task)

    def _has_drained(self) -> bool:
        store = self.store
        return not (
            store.open
            or store.due
            or store.claim
            or store.held
            or any(life.core.known_lanes() for node in self.nodes if (life := node.ready) is not None)
        )

    def _check_end(self) -> None:
        store = self.store
        if not self.has_jumps:
            store.check_fires()
        for task in store.task:
            store.check_place(task)
            if task not in store.over and task not in store.dead:
                raise Broken(f"task {task} has not ended")
        for submission, task in self.clients.acknowledged.items():
            if task not in store.task:
                raise Broken(f"task {task} of submission {submission} was acknowledged, and is not there")
        for node in self.nodes:
            if (life := node.ready) is not None and life.core.known_lanes():
                raise Broken(f"{node.name} remembers {life.core.known_lanes()} lanes, and all are empty")


def _give(answer: "asyncio.Future[Any]", value: object) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        # Whoever waited may have gone.
        answer.exception()


def simulate(seed: int, steps: int, faults: Faults | None = None) -> Figures:
    """Run one world; raises `SimulationFailure` when a rule is broken."""
    return World(seed, faults).run(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate nodes, holders and a database that all fail.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fault", action="append", default=[], choices=[each.name for each in fields(Faults)])
    arguments = parser.parse_args()
    print(simulate(arguments.seed, arguments.steps, Faults(**dict.fromkeys(arguments.fault, True))))


if __name__ == "__main__":
    main()
