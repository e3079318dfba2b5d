"""A seeded simulation of nodes, holders and a database that all fail, one event at a time.

It drives the real core, hints, watch and rules of attempts (`node_double`)
against a double of the statements (`store_double`): commits become visible
minutes late, answers get lost, nodes and holders crash, stop and come back,
two processes share a name, the database goes away, its clock jumps.  Nothing
here depends on anything but the seed.

What must hold is checked all the time, and at the end, when the world has
calmed down and everything has drained.  A failure names its seed and the last
events; from the folder `tests` it can be repeated:

    python -m properties.simulation --seed 7 --steps 100000 [--fault charges_by_task]
"""

import argparse
import heapq
import random
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from duetime.errors import Unavailable, Unknown
from duetime.ids import due_ms_of, lane_of
from duetime.model.retry import RetryPolicy
from duetime.model.task import Kind, LaneKey, Options, Outcome, PriorityClass, Waiting
from duetime.scheduler.liveness import SILENCE_SECONDS
from properties.holder_double import Holder
from properties.node_double import Answer, Call, Lease, NewTask, Node, Process, Sleep
from properties.store_double import Attempt, Broken, Claim, End, Faults, Store, Transaction

_READS = frozenset({"read_hints", "read_clock", "read_tasks", "read_keys", "find", "read_held", "read_claims"})
_READS |= {"read_ends", "read_beats", "read_left_behind", "read_signed_off"}
#: Statements about holders lock a row that every beat needs: they do not last.
_SHORT = frozenset({"peek", "keep_hints", "register", "beat", "end_silent", "sign_off"})
#: They run in a transaction whose COMMIT is a message of its own: who has given up does not send it.
_IN_TWO_MESSAGES = frozenset({"change", "keep_hints", "sign_off"})
_CALL_LIMIT = 10.0
_TRACE = 40_000
_SHOWN = 60
_OPTIONS = (
    None,
    Options(retry=RetryPolicy(max_attempts=3, min_backoff=0.05, max_backoff=2.0)),
    Options(retry=RetryPolicy(max_attempts=2, min_backoff=1.0)),
    Options(delivery="at_most_once"),
)


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


class _Running:
    """A process of some owner: resumed with answers, dropped when its owner has died."""

    __slots__ = ("generator", "incarnation", "on_end", "owner", "world")

    def __init__(self, world: "World", owner: Any, generator: Process[Any], on_end: Callable[..., None] | None) -> None:
        self.world, self.owner, self.generator, self.on_end = world, owner, generator, on_end
        self.incarnation = owner.incarnation

    def step(self, value: Any = None, error: BaseException | None = None) -> None:
        if self.incarnation != self.owner.incarnation:
            return
        world = self.world
        if self.owner.paused_until > world.now:
            world.after(self.owner.paused_until - world.now, self.step, value, error)
            return
        try:
            wanted = self.generator.send(value) if error is None else self.generator.throw(error)
        except StopIteration as stop:
            if self.on_end is not None:
                self.on_end(stop.value, None)
            return
        except Unavailable as unavailable:
            if self.on_end is not None:
                self.on_end(None, unavailable)
            return
        if type(wanted) is Sleep:
            world.after(wanted.seconds, self.step)
        elif type(wanted) is Call:
            world.call(wanted, self)
        elif type(wanted) is Answer:
            self._await_answer(wanted)
        else:
            wanted.begin(self)

    def _await_answer(self, poll: Answer) -> None:
        is_done = False

        def resume() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                self.world.after(0.0, self.step)

        if poll.value is not None:
            resume()
        else:
            poll.resume = resume
            self.world.after(poll.wait_seconds, resume)


class _Once:
    """An answer that is given to its process at most once."""

    __slots__ = ("is_given", "running")

    def __init__(self, running: _Running) -> None:
        self.running = running
        self.is_given = False

    @property
    def is_over(self) -> bool:
        """Nobody waits for it any more."""
        return self.is_given or self.running.incarnation != self.running.owner.incarnation

    def give(self, value: Any = None, error: BaseException | None = None) -> None:
        if not self.is_given:
            self.is_given = True
            self.running.step(value, error)


class _Request:
    """A holder's or client's request to a node, over a network that loses things."""

    __slots__ = ("generator", "node", "world")

    def __init__(self, world: "World", node: Node, generator: Process[Any]) -> None:
        self.world, self.node, self.generator = world, node, generator

    def begin(self, caller: _Running) -> None:
        world, once = self.world, _Once(caller)
        if world.is_unlucky(0.003):
            world.after(1.0, once.give, None, Unknown("the request was lost"))
        else:
            world.after(world.latency(), self._arrive, once)

    def _arrive(self, once: _Once) -> None:
        world, node = self.world, self.node
        if not node.is_up or not node.has_looked:
            world.after(0.05, once.give, None, Unavailable("no such node"))
            return
        if node.paused_until > world.now:
            world.after(4.0, once.give, None, Unknown("the node does not answer"))
        node.requests[once] = None
        incarnation = node.incarnation

        def on_end(value: Any, error: BaseException | None) -> None:
            node.requests.pop(once, None)
            if world.is_unlucky(0.006):
                world.note("an answer of %s was lost: %s", node.name, value)
                world.after(1.0, once.give, None, Unknown("the answer was lost"))
                if isinstance(value, list) and value and isinstance(value[0], Claim) and world.is_unlucky(0.5):
                    # The node notices that its client has gone.
                    world.spawn(node, node.give_back(value))
            elif isinstance(value, Lease) and value and world.is_unlucky(0.02):
                world.note("a lease of %s arrives late: %s", node.name, value)
                world.after(1.0 + 10.0 * world.chance.random(), once.give, value, error)
            else:
                world.after(world.latency(), once.give, value, error)

        if incarnation == node.incarnation:
            world.spawn(node, self.generator, on_end)


class World:
    incarnation = 0
    paused_until = 0.0

    def __init__(self, seed: int, faults: Faults | None = None, *, has_jumps: bool | None = None) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.faults = faults or Faults()
        self.has_jumps = seed % 2 == 1 if has_jumps is None else has_jumps
        self.now = 0.0
        self.steps = 0
        self.is_calm = False
        self.is_away = self.is_quiet = self.is_next_late = False
        self.away_at = self.back_at = float("-inf")
        self.jumped_at = float("-inf")
        self.healthy_since = self.blocked_at = 0.0
        self.trace: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=_TRACE)
        self.events: Counter[str] = Counter()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._processes = 0
        self._submissions = self._numbers = 0
        self._in_doubt: dict[int, _Once] = {}
        #: The holders' own logs: who began an attempt; what was named as started.
        self.runs: dict[Attempt, int] = {}
        self.declared: set[Attempt] = set()
        self.handed: dict[Attempt, int] = {}
        self.acknowledged: dict[int, uuid.UUID] = {}
        self.outcomes: Counter[Outcome] = Counter()
        self.store = Store(self.chance, self.faults, lambda: self.now)
        self.store.on_visible = self._on_visible
        self.store.on_locked = self._on_locked
        self.store.on_end = self._on_end
        self.lanes: dict[int, LaneKey] = {}
        for tenant in (1, 2):
            for queue, requires in (("a", ()), ("b", ()), ("c", ("gpu",))):
                lane = (len(self.lanes) + 1) * 256 + tenant
                priority = PriorityClass(len(self.lanes) % 4)
                self.lanes[lane] = LaneKey(tenant, queue, priority, Kind.PULL, requires)
        self.nodes = [Node(self, "node-1"), Node(self, "node-2")]
        gpu = frozenset({"gpu"})
        self.holders = [
            Holder(self, "careful", 1, gpu, is_careful=True, keeps_name=False),
            Holder(self, "careless", 1, frozenset(), is_careful=False, keeps_name=False),
            Holder(self, "renamed", 2, gpu, is_careful=True, keeps_name=False),
            Holder(self, "stable", 2, frozenset(), is_careful=False, keeps_name=True),
            Holder(self, "twin", 1, gpu, is_careful=True, keeps_name=True),
            Holder(self, "twin", 1, frozenset(), is_careful=False, keeps_name=True),
        ]

    # Events

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + seconds, self._sequence, act, arguments))

    def spawn(self, owner: Any, process: Process[Any], on_end: Callable[..., None] | None = None) -> None:
        _Running(self, owner, process, on_end).step()

    def request(self, node: Node, process: Process[Any]) -> _Request:
        return _Request(self, node, process)

    def note(self, text: str, *arguments: object) -> None:
        self.trace.append((self.now, text, arguments))

    def next_process(self) -> int:
        self._processes += 1
        return self._processes

    def latency(self) -> float:
        draw = self.chance.random()
        return draw * 0.004 if draw < 0.97 else draw * 1.5

    def is_unlucky(self, share: float) -> bool:
        return not self.is_calm and self.chance.random() < share

    def take_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def pick_node(self) -> Node | None:
        ready = [node for node in self.nodes if node.is_up]
        return self.chance.choice(ready) if ready else None

    def run(self, steps: int) -> Figures:
        try:
            for each in (*self.nodes, *self.holders):
                each.boot()
            for process in (self._submit_for_ever, self._steer_for_ever, self._audit_for_ever):
                self.spawn(self, process())
            for trouble, mean in (
                (self._crash_node, 90.0),
                (self._pause_node, 120.0),
                (self._crash_holder, 4.0),
                (self._pause_holder, 8.0),
                (self._take_database_away, 240.0),
                (self._jump_clock, 60.0),
                (self._fall_quiet, 120.0),
            ):
                self.spawn(self, self._trouble_for_ever(trouble, mean))
            self._run_until(lambda: self.steps >= steps)
            self._calm_down()
            calm_until = self.now + 1_000.0
            self._run_until(lambda: self.steps % 1_000 == 0 and (self._has_drained() or self.now > calm_until))
            self._check_end()
        except AssertionError as broken:
            raise SimulationFailure(self._tell(broken, steps)) from broken
        finally:
            # Processes that are thrown away now must not go on.
            for each in (*self.nodes, *self.holders):
                each.crash()
        return Figures(self.steps, len(self.store.task), self.now, self.outcomes, self.events)

    def _run_until(self, is_enough: Callable[[], bool]) -> None:
        heap = self._heap
        while heap and not is_enough():
            self.now, _, act, arguments = heapq.heappop(heap)
            self.steps += 1
            act(*arguments)

    def _tell(self, broken: AssertionError, steps: int) -> str:
        faults = "".join(f" --fault {each.name}" for each in fields(Faults) if getattr(self.faults, each.name))
        lines = [f"{at:10.3f} {text % arguments}"[:400] for at, text, arguments in self.trace]
        about = [word for word in str(broken).replace("'", " ").replace("(", " ").split() if word.count("-") == 4]
        told = [line for line in lines if any(word.strip("),") in line for word in about)]
        return "\n".join(
            [
                f"{broken}",
                f"at {self.now:.3f} s, after {self.steps} steps; in the folder tests:",
                f"python -m properties.simulation --seed {self.seed} --steps {steps}{faults}",
                "the last events:",
                *lines[-_SHOWN:],
                *(["about it:", *told[-_SHOWN:]] if told else []),
            ]
        )

    # The database

    def call(self, call: Call, running: _Running) -> None:
        once = _Once(running)
        if self.is_away:
            self.after(0.2, once.give, None, Unavailable("the database does not answer"))
        else:
            self.after(self.latency() + self._queueing(call.name), self._execute, call, once)

    def _queueing(self, name: str) -> float:
        """How long a statement waits for a connection."""
        if name == "submit" and self.is_unlucky(0.01):
            return self.chance.random() * 9.0
        return self.chance.random() * 1.5 if name == "end_silent" else 0.0

    def _execute(self, call: Call, once: _Once, is_late: bool = False) -> None:
        if self.is_away:
            once.give(None, Unknown("the connection broke"))
            return
        if is_late:
            self.events["late copies"] += 1
        elif call.name not in _READS and not self.is_calm and self.is_unlucky(0.03 if call.name == "change" else 0.004):
            # The server's process stands still before it has looked at anything, or the statement is on its way.
            seconds = 5.0 + 60.0 * self.chance.random()
            self.note("%s stalls for %.1f s", call.name, seconds)
            self.after(seconds, self._execute, call, once, True)
            self.after(_CALL_LIMIT, once.give, None, Unknown("it takes too long"))
            return
        store = self.store
        if call.name in _READS or (call.name == "peek" and self.faults.trusts_snapshot_end):
            value = getattr(store, call.name)(Transaction(0, store.now_ms()), *call.arguments)
            self.after(self.latency(), once.give, value)
            return
        transaction = store.begin()
        transaction.is_late = is_late
        self._in_doubt[transaction.xid] = once
        self._try(call, once, transaction)

    def _try(self, call: Call, once: _Once, transaction: Transaction) -> None:
        store = self.store
        if transaction.xid not in store.open:
            return
        if call.name in _IN_TWO_MESSAGES and once.is_over and not self.faults.verbs_commit_themselves:
            del self._in_doubt[transaction.xid]
            store.rollback(transaction)
            return
        try:
            value = getattr(store, call.name)(transaction, *call.arguments)
        except Exception as blocked:
            owner = getattr(blocked, "by", None)
            if owner is None:
                raise
            store.let_go(transaction)
            owner.waiters.append(lambda: self._try(call, once, transaction))
            self.after(_CALL_LIMIT, once.give, None, Unknown("it takes too long"))
            return
        if call.name == "claim_due":
            self._check_claims(transaction.at_ms, value[0])
        delay = self._delay(call.name)
        if self.is_next_late and call.name == "submit" and value[1]:
            self.is_next_late = False
            delay = 15.0 + 100.0 * self.chance.random()
        if delay == 0.0:
            self._commit(call, once, transaction, value)
        else:
            self.note("%s commits %.1f s late: %s", call.name, delay, value)
            self.after(delay, self._commit, call, once, transaction, value)
            if delay > _CALL_LIMIT:
                self.after(_CALL_LIMIT, once.give, None, Unknown("it takes too long"))

    def _delay(self, name: str) -> float:
        draw = self.chance.random()
        if self.is_calm or draw < 0.97:
            return 0.0
        # Minutes are rare: while one such is open, no note becomes firm.
        longest = 0.5 if name in _SHORT or draw < 0.99 else 8.0 if draw < 0.9998 else 400.0
        return self.chance.random() * longest

    def _commit(self, call: Call, once: _Once, transaction: Transaction, value: Any) -> None:
        if transaction.xid not in self.store.open:
            return
        self.note("%s %s -> %s", once.running.owner, call.name, value)
        if call.name == "end_silent" and not transaction.is_late:
            self._check_silence(value)
        del self._in_doubt[transaction.xid]
        self.store.commit(transaction)
        if value and call.name == "end_silent" and self.has_jumps and self.is_unlucky(0.1):
            self.spawn(self, self._fail_over())
        if self.is_unlucky(0.004):
            self.events["lost answers"] += 1
            self.after(self.latency(), once.give, None, Unknown("the answer was lost"))
        else:
            self.after(self.latency(), once.give, value)

    def _take_database_away(self) -> Process[None]:
        self.is_away = True
        self.away_at = self.now
        self.note("the database is away")
        if self.chance.random() < 0.5:
            # It restarts: what is open is undone.
            doubtful, self._in_doubt = self._in_doubt, {}
            transactions = list(self.store.open.values())
            for transaction in transactions:
                transaction.waiters.clear()
            for transaction in transactions:
                self.store.rollback(transaction)
            for once in doubtful.values():
                self.after(0.1, once.give, None, Unknown("the connection broke"))
        yield Sleep(self.chance.choice((3.0, 10.0, 65.0)))
        self._bring_database_back()

    def _bring_database_back(self) -> None:
        if self.is_away:
            self.is_away = False
            self.back_at = self.healthy_since = self.now
            self.note("the database is back")

    def _fail_over(self) -> Process[None]:
        """The database is gone between a holder's end and the sweep, and another takes its place."""
        self.events["fail_over"] += 1
        if not self.is_away:
            yield from self._take_database_away()
        self._jump_by(900_000)

    def _jump_clock(self) -> Process[None]:
        if self.has_jumps:
            jump_ms = self.chance.choice((400, 3_000, 60_000, 900_000))
            self._jump_by(jump_ms if self.chance.random() < 0.6 else -jump_ms)
        yield Sleep(0.0)

    def _jump_by(self, jump_ms: int) -> None:
        self.note("the database's clock jumps by %d ms", jump_ms)
        self.store.offset_ms += jump_ms
        self.jumped_at = self.now

    # Trouble

    def _trouble_for_ever(self, trouble: Callable[[], Process[None]], mean: float) -> Process[None]:
        while True:
            yield Sleep(self.chance.expovariate(1.0 / mean))
            if self.is_calm:
                return
            self.events[trouble.__name__.strip("_")] += 1
            yield from trouble()

    def _crash_node(self) -> Process[None]:
        node = self.chance.choice(self.nodes)
        self.note("%s crashes", node.name)
        node.crash()
        for once in list(node.requests):
            self.after(0.05, once.give, None, Unknown("the connection broke"))
        yield Sleep(self.chance.choice((0.1, 3.0, 20.0)))
        if not node.is_up:
            node.boot()
        self.healthy_since = self.now
        self.note("%s is up again", node.name)

    def _pause_node(self) -> Process[None]:
        node = self.chance.choice(self.nodes)
        seconds = self.chance.choice((2.0, 5.0, 30.0))
        node.paused_until = node.disturbed_at = self.now + seconds
        self.note("%s stands still for %.0f s", node.name, seconds)
        yield Sleep(seconds)

    def _crash_holder(self) -> Process[None]:
        holder = self.chance.choice(self.holders)
        if not holder.is_up or self.is_quiet:
            return
        self.note("%s %s dies", holder.name, holder.process)
        if self.chance.random() < 0.3:
            self.spawn(holder, holder.leave())
            yield Sleep(3.0)
        holder.crash()
        yield Sleep(self.chance.choice((0.1, 2.0, 15.0)))
        if not holder.is_up and not self.is_quiet:
            holder.paused_until = 0.0
            holder.boot()

    def _pause_holder(self) -> Process[None]:
        holder = self.chance.choice(self.holders)
        seconds = self.chance.choice((1.0, 5.0, 6.0 + 6.0 * self.chance.random(), 40.0))
        self.note("%s %s stands still for %.0f s", holder.name, holder.process, seconds)
        holder.paused_until = self.now + seconds
        yield Sleep(0.0)

    def _fall_quiet(self) -> Process[None]:
        """Nobody is there; one last task becomes visible long after it was stored."""
        self.note("the world falls quiet")
        self.is_quiet = True
        for holder in self.holders:
            holder.crash()
        yield Sleep(20.0)
        self.is_next_late = True
        self._submissions += 1
        self.spawn(self, self._submit([NewTask(self._submissions, self.chance.choice(list(self.lanes)), 0)]))
        yield Sleep(25.0)
        self.is_quiet = self.is_next_late = False
        for holder in self.holders:
            if not holder.is_up:
                holder.paused_until = 0.0
                holder.boot()

    # Clients

    def _submit_for_ever(self) -> Process[None]:
        chance = self.chance
        lanes, rate = list(self.lanes), 10.0
        while not self.is_calm:
            if chance.random() < 0.02:
                lanes = chance.sample(list(self.lanes), chance.randint(1, len(self.lanes)))
                rate = chance.choice((1.0, 5.0, 30.0, 60.0))
            yield Sleep(chance.expovariate(rate))
            if self.is_quiet:
                continue
            tasks = [self._new_task(chance.choice(lanes)) for _ in range(chance.choice((1, 1, 1, 5)))]
            self.spawn(self, self._submit(tasks))

    def _new_task(self, lane: int) -> NewTask:
        chance = self.chance
        self._submissions += 1
        delay_ms = chance.choice((0, 0, 0, 500, 5_000, 60_000))
        return NewTask(
            self._submissions,
            lane,
            delay_ms,
            f"key-{self._submissions}" if chance.random() < 0.3 else None,
            chance.choice(_OPTIONS),
            delay_ms + chance.choice((100, 20_000)) if chance.random() < 0.05 else None,
        )

    def _submit(self, tasks: list[NewTask]) -> Process[None]:
        """Who names its tasks asks until it is told; who does not gives up."""
        while tasks:
            node = self.pick_node()
            if node is not None:
                try:
                    ids = yield self.request(node, node.submit(tasks))
                except Unavailable:
                    pass
                else:
                    for task, stored in zip(tasks, ids, strict=True):
                        if self.acknowledged.setdefault(task.submission, stored) != stored:
                            raise Broken(f"submission {task.submission} is {stored} and another task")
                    if self.chance.random() > 0.05:
                        return
            tasks = [task for task in tasks if task.key is not None]
            yield Sleep(1.0)

    def _steer_for_ever(self) -> Process[None]:
        chance = self.chance
        while not self.is_calm:
            yield Sleep(chance.expovariate(3.0))
            verb = chance.choice(
                ("cancel", "pause", "pause", "resume", "resume", "resume", "reschedule", "redrive", "redrive")
            )
            source = {"resume": self.store.held, "redrive": self.store.dead}.get(verb, self.store.due_of)
            if chance.random() < 0.2:
                source = self.store.claim
            if not source or self.is_quiet:
                continue
            # Whoever steers chose a moment ago: the task may have moved on since.
            task = next(iter(source)) if chance.random() < 0.5 else next(reversed(source))
            yield Sleep(chance.choice((0.0, 0.002, 0.02)))
            arguments: tuple[object, ...] = (task,)
            if verb == "reschedule":
                arguments = (task, self.store.now_ms() + chance.choice((-1_000, 0, 2_000, 30_000)))
            node = self.pick_node()
            if node is not None:
                self.spawn(self, self._steer(node, verb, arguments))

    def _steer(self, node: Node, verb: str, arguments: tuple[object, ...]) -> Process[None]:
        try:
            yield self.request(node, node.steer(verb, arguments))
        except Unavailable:
            pass

    # What must hold

    def log_hand_out(self, claim: Claim, holder: Holder) -> None:
        attempt = (claim.task, claim.number)
        self.note("%s %d gets %s", holder.name, holder.process, attempt)
        if self.handed.setdefault(attempt, holder.process) != holder.process:
            raise Broken(f"attempt {attempt} was handed out to {self.handed[attempt]} and to {holder.process}")

    def log_run(self, attempt: Attempt, holder: Holder) -> None:
        self.note("%s %d runs %s", holder.name, holder.process, attempt)
        if attempt in self.runs:
            raise Broken(f"attempt {attempt} was begun by {self.runs[attempt]} and by {holder.process}")
        if self.handed.get(attempt) != holder.process:
            raise Broken(f"attempt {attempt} was begun by {holder.process}, to whom it was not given")
        end = self.store.attempt.get(attempt)
        is_elsewhere = end is not None and end.outcome in (Outcome.RELEASED, Outcome.LAPSED)
        if is_elsewhere and holder.is_careful and not holder.keeps_name:
            raise Broken(f"attempt {attempt} was begun by {holder.process} after it was given to somebody else: {end}")
        self.runs[attempt] = holder.process

    def log_settled(self, attempt: Attempt, holder: Holder) -> None:
        """A report that was accepted, now or before, is the only end that the attempt has."""
        end = self.store.attempt.get(attempt)
        if end is None or end.by != holder.process:
            raise Broken(f"{holder.process} was told that its report of {attempt} counts, but it ended as {end}")

    def _on_end(self, attempt: Attempt, end: End, waiting: Waiting) -> None:
        self.outcomes[end.outcome] += 1
        if end.outcome is Outcome.LAPSED and attempt not in self.declared:
            raise Broken(f"attempt {attempt} never started, and costs the crash budget")
        if end.by is not None and self.handed.get(attempt) != end.by:
            raise Broken(f"attempt {attempt} was settled by {end.by}, and was given to {self.handed.get(attempt)}")

    def _on_visible(self, wake: uuid.UUID) -> None:
        if not self.has_jumps:
            lane = lane_of(wake)
            for node in self.nodes:
                if node.is_up and node.hints.low(lane) >= wake:
                    raise Broken(f"{wake} became visible behind the low of {node.name}, {node.hints.low(lane)}")
            low = self.store.lane_hint.get(lane)
            if low is not None and low >= wake:
                raise Broken(f"{wake} became visible behind the kept low {low}")

    def check_lows(self, node: Node) -> None:
        if not self.has_jumps:
            for lane, wakes in self.store.lanes.items():
                if wakes and wakes[0] <= node.hints.low(lane):
                    raise Broken(f"{wakes[0]} lies behind the low of {node.name}, {node.hints.low(lane)}")

    def _on_locked(self, wake: uuid.UUID) -> None:
        for node in self.nodes:
            if node.is_up:
                node.reported.discard(wake)

    def _check_claims(self, at_ms: int, taken: dict[int, list[Claim]]) -> None:
        """Nothing is early by the database's clock, wherever that has jumped."""
        for claims in taken.values():
            for claim in claims:
                if due_ms_of(claim.wake) > at_ms:
                    raise Broken(f"{claim.wake} was claimed {due_ms_of(claim.wake) - at_ms} ms early")

    def _check_silence(self, ended: set[int]) -> None:
        """Who is ended had been silent, while the database was there."""
        for holder in ended:
            silent_for = self.now - self.store.holder[holder].beaten_at
            if silent_for < SILENCE_SECONDS - 0.001:
                raise Broken(f"holder {holder} was ended {silent_for:.1f} s after its last beat")
            if self.now - self.back_at < SILENCE_SECONDS - 2.0:
                raise Broken(f"holder {holder} was ended {self.now - self.back_at:.1f} s after the database came back")

    def _audit_for_ever(self) -> Process[None]:
        while True:
            yield Sleep(2.0)
            self._check_found_in_time()
            self._check_left_behind()
            for node in self.nodes:
                if node.is_up and node.core.known_lanes() > len(self.lanes):
                    raise Broken("the core knows more lanes than there are")

    def _check_found_in_time(self) -> None:
        """What is due and visible is found within seconds; after jumps, by a look from the very start."""
        bound = 75.0 if self.has_jumps else 6.0
        store, now_ms = self.store, self.store.now_ms()
        if self.is_away or self.now - self.healthy_since < bound or self.now - self.jumped_at < bound:
            return
        for lane, wakes in store.lanes.items():
            for wake in wakes[:3]:
                if due_ms_of(wake) > now_ms - bound * 1000 or self.now - store.visible_at[wake] < bound:
                    continue
                if ("due", wake) not in store.locks and any(node.neglects(lane) for node in self.nodes):
                    raise Broken(f"{wake} is due, and nobody has found it for {bound:.0f} s")

    def _check_left_behind(self) -> None:
        """What an ended holder held goes on, as long as some node sweeps and no commit stands in its way."""
        since = self.now - 75.0
        if any(table == "claim" for table, _ in self.store.locks):
            self.blocked_at = self.now
        if (
            not self.is_away
            and max(self.back_at, self.blocked_at) < since
            and any(n.is_up and n.disturbed_at < since for n in self.nodes)
        ):
            for claim in self.store.claim.values():
                holder = self.store.holder[claim.holder]
                is_old = holder.ended_ms is not None and max(holder.ended_at, claim.visible_at) < since
                if is_old and ("claim", claim.task) not in self.store.locks:
                    raise Broken(f"task {claim.task} was left behind by holder {holder.id}, and nobody moves it on")

    def _calm_down(self) -> None:
        """No more trouble; the clock stands where it was furthest, and what is paused goes on."""
        self.note("the world calms down")
        self.is_calm = True
        self._bring_database_back()
        if self.has_jumps:
            furthest_ms = max((due_ms_of(wake) for wake in self.store.due), default=0)
            self.store.offset_ms += max(0, furthest_ms - self.store.now_ms())
            self.jumped_at = self.now
        for each in (*self.nodes, *self.holders):
            each.paused_until = 0.0
            if not each.is_up:
                each.boot()
        self.spawn(self, self._resume_everything())

    def _resume_everything(self) -> Process[None]:
        while True:
            yield Sleep(20.0)
            for task in list(self.store.held):
                yield from self._steer(self.nodes[0], "resume", (task,))

    def _has_drained(self) -> bool:
        store = self.store
        return not (
            store.open
            or store.due
            or store.claim
            or store.held
            or any(node.core.known_lanes() for node in self.nodes if node.has_looked)
        )

    def _check_end(self) -> None:
        store = self.store
        for task in store.task:
            store.check_place(task)
            if task not in store.over and task not in store.dead:
                raise Broken(f"task {task} has not ended")
        for submission, task in self.acknowledged.items():
            if task not in store.task:
                raise Broken(f"task {task} of submission {submission} was acknowledged, and is not there")
        keys = Counter(task.key for task in store.task.values() if task.key is not None)
        if keys and max(keys.values()) > 1:
            raise Broken(f"one key, several tasks: {keys.most_common(1)}")
        for node in self.nodes:
            if node.core.known_lanes():
                raise Broken(f"{node.name} remembers {node.core.known_lanes()} lanes, and all are empty")


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
