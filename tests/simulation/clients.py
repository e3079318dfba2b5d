"""The clients of the simulation: they submit tasks and steer them, and note what they were told."""

import asyncio
import uuid
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from duetime.clock import from_ms
from duetime.errors import DuetimeError, Unavailable
from duetime.ids import SCHEDULE_LANES_END, lane_of, make_id
from duetime.lifecycle.submission.batch import Submission, Submitted
from duetime.model.limits import TypeLimits
from duetime.model.retry import RetryPolicy
from duetime.model.task import Kind, LaneKey, NewTask, Options, PriorityClass, make_task

if TYPE_CHECKING:
    from simulation.world import World

_OPTIONS = (
    None,
    None,
    Options(retry=RetryPolicy(max_attempts=3, min_backoff=0.05, max_backoff=2.0)),
    Options(retry=RetryPolicy(max_attempts=2, min_backoff=1.0)),
    Options(delivery="at_most_once"),
)
_VERBS = ("cancel", "pause", "pause", "resume", "resume", "resume", "reschedule", "redrive", "redrive")


LIMITED_TENANT = 3
#: Its types, and how many of each may run at once.
LIMITS = MappingProxyType({"work": None, "capped": TypeLimits(max_running=3), "paced": TypeLimits(rate=2.0, burst=2)})
#: What a worker of it handles that does not handle everything.
HANDLED = frozenset({"work", "capped"})


class Clients:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._submissions = self._calls = 0
        #: Those with keys of their own, by payload.
        self._keyed: set[bytes] = set()
        #: By its payload, the task that somebody was told of.
        self.acknowledged: dict[bytes, uuid.UUID] = {}
        self._lanes = [
            LaneKey(tenant, queue, PriorityClass((3 * tenant + place) % 4), Kind.PULL, requires)
            for tenant in (1, 2)
            for place, (queue, requires) in enumerate((("a", ()), ("b", ()), ("c", ("gpu",))))
        ]
        # What the third tenant has is limited.
        self._lanes += [LaneKey(LIMITED_TENANT, queue, PriorityClass.NORMAL, Kind.PULL) for queue in ("a", "b")]

    def start(self) -> None:
        self._world.spawn(self._submit_for_ever())
        self._world.spawn(self._steer_for_ever())

    # Submitting

    async def _submit_for_ever(self) -> None:
        chance = self._world.chance
        lanes, rate = self._lanes, 10.0
        for lane in lanes:
            # One by one, so that the lanes are made in this order.
            while lane not in self._world.store.lane.values():
                await self._submit([self._new_task(lane, is_plain=True)])
        self._world.begin_schedules(self._lanes)
        while not self._world.is_calm:
            if chance.random() < 0.02:
                lanes = chance.sample(self._lanes, chance.randint(1, len(self._lanes)))
                rate = chance.choice((1.0, 5.0, 30.0, 60.0))
            await asyncio.sleep(chance.expovariate(rate))
            if self._world.is_quiet:
                continue
            tenant = chance.choice(lanes).tenant
            of_tenant = [lane for lane in lanes if lane.tenant == tenant]
            count = chance.choice((1, 1, 1, 5))
            tasks = [self._new_task(chance.choice(of_tenant)) for _ in range(count)]
            self._world.spawn(self._submit(tasks))

    def submit_one_at_once(self) -> None:
        self._world.spawn(self._submit([self._new_task(self._world.chance.choice(self._lanes), is_plain=True)]))

    def _new_task(self, lane: LaneKey, is_plain: bool = False) -> NewTask:
        chance = self._world.chance
        self._submissions += 1
        payload = b"%d" % self._submissions
        type = chance.choice(list(LIMITS)) if lane.tenant == LIMITED_TENANT else "work"
        if is_plain or chance.random() < 0.4:
            return make_task(lane, type, payload)
        delay = chance.choice((0, 0, 0, 0.5, 5.0, 60.0))
        expires_at = None
        if chance.random() < 0.08:
            expires_at = from_ms(self._world.store.now_ms() + int(delay * 1000) + chance.choice((100, 20_000)))
        key = None
        if chance.random() < 0.4:
            key = f"key-{self._submissions}"
            self._keyed.add(payload)
        return make_task(
            lane,
            type,
            payload,
            delay=delay or None,
            expires_at=expires_at,
            options=chance.choice(_OPTIONS),
            idempotency_key=key,
            fingerprint=payload,
        )

    async def _submit(self, tasks: list[NewTask]) -> None:
        """Who names its tasks, or the request, asks until it is told; who does not gives up."""
        world = self._world
        request = None
        if world.chance.random() < 0.3:
            request = make_id(world.store.now_ms(), world.chance.getrandbits(42), 0)
        while tasks:
            world.note("a client submits %s, request %s", [task.payload for task in tasks], request)
            try:
                answers = await world.request(
                    lambda life, tasks=tasks: life.submitter.submit(tasks, request, b"request"),
                )
            except Unavailable:
                pass
            else:
                if self._note_answers(tasks, cast(Sequence[Submission], answers)) and world.chance.random() > 0.05:
                    return
            if request is None:
                tasks = [task for task in tasks if task.payload in self._keyed]
            await asyncio.sleep(1.0)

    def _note_answers(self, tasks: list[NewTask], answers: Sequence[Submission]) -> bool:
        for task, answer in zip(tasks, answers, strict=True):
            if isinstance(answer, Submitted):
                if self.acknowledged.setdefault(task.payload, answer.id) != answer.id:
                    self._world.fail(f"submission {task.payload!r} is {answer.id} and another task")
            elif not isinstance(answer, Unavailable):
                self._world.fail(f"submission {task.payload!r} was refused: {answer}")
        return all(isinstance(answer, Submitted) for answer in answers)

    # Steering

    async def _steer_for_ever(self) -> None:
        world, chance, store = self._world, self._world.chance, self._world.store
        while not world.is_calm:
            await asyncio.sleep(chance.expovariate(3.0))
            verb = chance.choice(_VERBS)
            source: dict[uuid.UUID, object] = {"resume": store.held, "redrive": store.dead}.get(  # type: ignore[assignment]
                verb, store.due_of
            )
            if chance.random() < 0.2:
                source = store.claim  # type: ignore[assignment]
            if not source or world.is_quiet:
                continue
            # Whoever steers chose a moment ago: the task may have moved on since.
            task = next(iter(source)) if chance.random() < 0.5 else next(reversed(source))
            if lane_of(task) < SCHEDULE_LANES_END:
                # The turn of a schedule is no task.
                continue
            await asyncio.sleep(chance.choice((0.0, 0.002, 0.02)))
            world.spawn(self.steer(verb, task))

    async def steer(self, verb: str, task: uuid.UUID) -> None:
        self._calls += 1
        run_at_ms = self._world.store.now_ms() + self._world.chance.choice((-1_000, 0, 2_000, 30_000))
        try:
            await self._world.request(lambda life: life.steer(verb, task, run_at_ms), limit=60.0, number=self._calls)
        except DuetimeError:
            pass
