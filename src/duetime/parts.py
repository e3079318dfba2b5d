"""The parts of a node that belong to one history of the database's writes: everything that remembers rows.

What a part has learned from the database is held by the `Parts` that it belongs to,
and nowhere else.  So when the database fails over (`database/lineage.py`), the node
drops its parts and makes new ones, and everything they remembered is forgotten, also
in parts that are added later.  What a node keeps beyond that (`serve.py`) knows no database.
"""

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from duetime.admin.breakers import ForcedBreakers
from duetime.admin.keyring import Keys
from duetime.admin.limits import LimitRules
from duetime.admin.rules import TenantRules
from duetime.admin.signing import Signing, SigningSecrets
from duetime.admin.types import Types
from duetime.api.app import App
from duetime.api.server.connections import Connections
from duetime.api.server.peers import Peers
from duetime.api.server.unsent import Unsent
from duetime.api.service.outbox import reading
from duetime.api.tasks.validation import TaskReader
from duetime.budgets.adapters import open_budgets
from duetime.budgets.allowance import Allowance
from duetime.cluster.contract import NodeView
from duetime.cluster.postgres import PostgresCoordinator
from duetime.config import Config
from duetime.database.lineage import failing_over
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.errors import NotFound
from duetime.executor.executor import Executor
from duetime.executor.http import HttpClient
from duetime.executor.supervision import ExecutorSupervisor
from duetime.ids import SHARDS
from duetime.lifecycle.admission.admission import Admission
from duetime.lifecycle.admission.pressure import Pressure
from duetime.lifecycle.admission.waiting import WaitingRoom, bound_waiting, count_waiting
from duetime.lifecycle.holders.holders import Holders
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.schedules.backfill import Backfills
from duetime.lifecycle.schedules.changes import Schedules
from duetime.lifecycle.schedules.recurrences import Recurrences
from duetime.lifecycle.submission import storing
from duetime.lifecycle.submission.outbox import Outbox
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks import onward
from duetime.lifecycle.tasks.onward import Onward
from duetime.lifecycle.tasks.settle import Settler
from duetime.lifecycle.tasks.steer import Steering
from duetime.long_work import LongWork
from duetime.memory import Memory
from duetime.model.attempt import Past
from duetime.model.breaker_status import TENANT_HOST, Forced
from duetime.model.tenant_breaker import BreakerRules
from duetime.model.vault import Vault
from duetime.scheduler.breaker_states import BreakerStates
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.clock_sync import ClockSync
from duetime.scheduler.dead_log import DeadLog
from duetime.scheduler.feed import Feeder
from duetime.scheduler.feeding_nodes import FeedingNodes
from duetime.scheduler.firing import Firing
from duetime.scheduler.forwarding import Forwarding
from duetime.scheduler.liveness import Liveness
from duetime.scheduler.membership import Membership
from duetime.scheduler.messenger import Messenger
from duetime.scheduler.readiness import Readiness
from duetime.scheduler.relay import Relay
from duetime.scheduler.routing import OtherNodes, Routing
from duetime.scheduler.rule_watch import RuleWatch
from duetime.scheduler.shared_holders import SharedHolders
from duetime.scheduler.survey import Survey
from duetime.scheduler.tenant_breakers import TenantBreakers
from duetime.scheduler.tenant_shards import TenantShards
from duetime.scheduler.upkeep import Upkeep
from duetime.service import Background, Loop, Service, Services
from duetime.signals import AwaitedSignal, Signal, ignore

_LOOK_FOR_COLD_EVERY = timedelta(seconds=1)
#: The statements that a task passes through when it is handed over at once.  The claim is not among them: planned
#: while nothing waits, it would read a whole lane where it should read a share of it.
_DATA_PATH = (
    *(storing.SQL[name] for name in ("submit", "submit_one", "submit_plain", "submit_plain_keyed", "submit_keyed")),
    onward.SQL["end_succeeded"],
)


@dataclass(frozen=True)
class Sharing:
    """The cluster of nodes that share the shards, and the secret by which they know each other."""

    cluster: str
    secret: bytes


@dataclass(frozen=True)
class Outside:
    """The parts of a node that know no database."""

    config: Config
    name: str
    vault: Vault
    peers: Peers
    connections: Connections
    unsent: Unsent
    client: HttpClient
    sharing: Sharing | None = None


@dataclass(frozen=True)
class Shared:
    """The parts of a node that shares the shards with others."""

    membership: Membership
    routing: Routing
    forwarding: Forwarding
    holders: SharedHolders

    async def close(self) -> None:
        await self.membership.close()
        await self.routing.close()
        await self.forwarding.close()
        await self.holders.close()


class Parts:
    def __init__(self, outside: Outside, database: Database, calls_beside: Callable[[], int] = lambda: 0) -> None:
        self._outside = outside
        self._calls_beside = calls_beside
        config, sharing = outside.config, outside.sharing
        self.database = database
        self.partitions = Partitions(database)
        self.lanes = Lanes(database)
        self.keys = Keys(database)
        turns = LongWork()
        self.types = Types(database, turns=turns)
        self.limits = LimitRules(database)
        self.rules = TenantRules(database)
        self.breakers = Breakers(self.lanes.key_of, database.clock.now_ms, name_of=self.lanes.tenant_name)
        #: Rows were put into due, and attempts ended: by this node (first pair), and in lanes that it feeds (second).
        rows_put, attempts_ended = Signal[Collection[uuid.UUID]](), Signal[Sequence[Past]]()
        rows_here, ended_here = (
            (rows_put, attempts_ended)
            if sharing is None
            else (Signal[Collection[uuid.UUID]](), Signal[Sequence[Past]]())
        )
        messenger = None if sharing is None else Messenger(outside.name, sharing.secret)
        self.dead_log = DeadLog(database)
        self.onward = Onward(database, self.partitions, rows_put, on_ended=attempts_ended, on_dead=self.dead_log.note)
        self.breaker_states = BreakerStates(database, self.lanes, self.breakers)
        nodes, breaker_rows_changed = FeedingNodes(), AwaitedSignal[[]]()
        self.tenant_breakers = TenantBreakers(
            database,
            self.lanes,
            self.onward,
            _breaker_rules(config),
            nodes=nodes,
            changed=breaker_rows_changed,
            ask_others=None if messenger is None else OtherNodes(messenger).records,
        )
        self.forced_breakers = ForcedBreakers(database, self._obey, self.tenant_breakers.refresh)
        breaker_rows_changed.listen(self.forced_breakers.changed)
        is_sharing = sharing is not None or config.redis_url is not None
        budgets = open_budgets(database, config.redis_url) if is_sharing else None
        self.feeder = Feeder(
            database,
            self.lanes,
            self.onward,
            breakers=self.breakers,
            tenant_breakers=self.tenant_breakers,
            nodes=nodes,
            budgets=budgets,
            prepare=self.breaker_states.recall,
            turns=turns,
        )
        rows_here.listen(self.feeder.wake)
        ended_here.listen(self.feeder.ended)
        self.holders = Holders(database, self.onward, on_ended=self.feeder.polls.forget)
        self.settler = Settler(database, self.holders, self.onward, turns=turns)
        self.submitter = Submitter(database, self.lanes, self.partitions, rows_put, holders=self.feeder, turns=turns)
        self.allowance = Allowance(budgets)
        self.room = WaitingRoom(
            partial(count_waiting, database), partial(bound_waiting, database), name_of=self.lanes.tenant_name
        )
        self.admission = Admission(Pressure(lambda: self.submitter.backlog), self.allowance, self.room)
        self.steering = Steering(database, self.partitions, rows_put, on_ended=attempts_ended)
        reader = TaskReader(self.types, outside.vault, self.rules.egress_of)
        self.outbox = Outbox(database, self.lanes, self.submitter, reading(reader, turns), self.admission)
        self.relay = Relay(self.outbox, has_duty=self._has_duty)
        self.shared: Shared | None = None
        if sharing is not None and messenger is not None:
            coordinator = PostgresCoordinator(database, sharing.cluster)
            membership = Membership(messenger, coordinator, database, self.feeder, self.lanes)
            shards = TenantShards(database)
            routing = Routing(
                messenger,
                membership,
                shards,
                self.feeder,
                self.lanes,
                self.breakers,
                self.forced_breakers,
                woken=rows_here,
                ended=ended_here,
                records_of=self.tenant_breakers.records,
            )
            rows_put.listen(routing.wake)
            attempts_ended.listen(routing.ended)
            self.shared = Shared(
                membership,
                routing,
                Forwarding(messenger, membership, routing, shards, self.feeder, self.lanes, self.holders),
                SharedHolders(messenger, membership, self.holders),
            )
        self.recurrences = Recurrences(database, turns)
        self.schedules = Schedules(
            database, self.partitions, self.lanes, self.steering, self.recurrences, rows_put, self.admission
        )
        self.backfills = Backfills(database, self.partitions, self.recurrences, self.admission)
        self.firing = Firing(
            database,
            self.partitions,
            self.schedules,
            self.backfills,
            self.recurrences,
            self.steering,
            rows_put,
            feeds=self.feeder.feeds,
            has_duty=self._has_duty,
            room=self.admission,
        )
        rows_here.listen(self.firing.wake)
        self.liveness = Liveness(
            database,
            self.holders,
            self.onward,
            self.feeder.polls,
            silence_seconds=config.max_silence,
            on_lapsed=ignore if self.shared is None else self.shared.holders.tell_ended,
        )
        self.clock_sync = ClockSync(database)
        self.survey = Survey(database, self.feeder, self.limits.paused_queues)
        self.readiness = Readiness(database, outside.name, self._why_not_serving)
        self._signing = SigningSecrets(database, lambda: self.rules.current.signing)
        self._executor = ExecutorSupervisor(self._make_executor)
        self.rule_watch = RuleWatch(
            database,
            self.rules,
            self.types,
            self.limits,
            self.breakers,
            self.forced_breakers,
            feeder=self.feeder,
            tenant_breakers=self.tenant_breakers,
            submitter=self.submitter,
            admission=self.admission,
            share=None if self.shared is None else self.shared.routing.share,
            on_rotated=self._executor.forget_secrets,
        )
        self._memory = Memory(turns)
        self.upkeep = Upkeep(
            database,
            self.partitions,
            self.lanes,
            self.steering,
            retention=timedelta(days=config.retention_days),
            dead_retention=timedelta(days=config.dead_retention_days),
            has_duty=self._has_duty,
        )
        self.app = App(
            database=database,
            lanes=self.lanes,
            submitter=self.submitter,
            admission=self.admission,
            feeder=self.feeder if self.shared is None else self.shared.forwarding,
            holders=self.holders if self.shared is None else self.shared.holders,
            settler=self.settler,
            steering=self.steering,
            schedules=self.schedules,
            recurrences=self.recurrences,
            backfills=self.backfills,
            types=self.types,
            limits=self.limits,
            outbox=self.outbox,
            breakers=self.forced_breakers,
            breakers_of=self.breakers.describe if self.shared is None else self.shared.routing.describe_breakers,
            tenant_breaker_of=self.tenant_breakers.status,
            keys=self.keys,
            turns=turns,
            is_ready=self.readiness.why_not_ready,
            nodes=self.nodes,
            node=outside.name,
            vault=outside.vault,
            egress_of=self.rules.egress_of,
            max_silence=config.max_silence,
            peers=outside.peers,
            connections=outside.connections,
            unsent=outside.unsent,
        )
        self._is_stopping = False
        self._is_over = False
        #: All background work of these parts was ended, because the database has failed over.
        self.is_dropped = False
        #: These run until the calls have ended.
        self._base = Services(self._list_base())
        self._calling = Services(
            [
                Service("breaker states", start=self.breaker_states.start, stop=self.breaker_states.close),
                Service("calls", stop=partial(self._executor.stop, config.shutdown_seconds)),
            ]
        )
        #: These take new work, and so stop first.
        self._taking = Services(self._list_taking())

    def _list_base(self) -> list[Service | Background]:
        shared = self.shared
        return [
            Service("database", stop=self.database.close),
            *([] if shared is None else [Service("lines to other nodes", stop=shared.close)]),
            Service("last lines of dead letters", stop=self.dead_log.close),
            self.dead_log.loop,
            Service("settler", stop=self.settler.close),
            Service("submitter", stop=self.submitter.close),
            Service("admission", stop=self.admission.close),
            Service("key look-ups", stop=self.keys.close),
            Service("readiness", stop=self.readiness.close),
            Service("partitions", start=self.partitions.make_ahead),
            Service("lanes", start=self.lanes.load),
            Service("clock", start=self.clock_sync.start, stop=self.clock_sync.stop),
            *([] if shared is None else [Service("membership", start=shared.membership.join)]),
            Service("rules", start=self.rule_watch.step),
            self.rule_watch.loop,
            Service("waiting tasks", start=self.room.look),
            self.room.loop,
            self.tenant_breakers.loop,
            self.keys.loop,
            self.keys.uses.loop,
            Loop("connections", self._warm_connections),
            self._memory.loop,
            self.survey.loop,
            self.liveness.loop,
            *self.upkeep.loops,
        ]

    def _list_taking(self) -> list[Service | Background]:
        return [
            Service("polls", stop=self._end_polls),
            Service("feeder", self.feeder.start, self.feeder.stop),
            Service("firing", self.firing.start, self.firing.stop),
            self.relay.loop,
            self.relay.aside_loop,
            Service("executor", start=self._executor.start),
            # Other nodes take the shards over before this one stops feeding them.
            *([] if self.shared is None else [Service("shards", stop=self.shared.membership.leave)]),
        ]

    async def _end_polls(self) -> None:
        self.app.end_polls()

    async def start(self) -> None:
        for services in (self._base, self._calling, self._taking):
            await services.start()

    async def stop_taking(self) -> None:
        """Stop feeding and firing, and answer the waiting polls."""
        self._is_stopping = True
        await self._taking.stop()

    async def stop_calling(self) -> None:
        """Let calls end within the deadline, and release the rest."""
        await self._calling.stop()

    async def close(self) -> None:
        """Stop everything that still runs; no calls come after this."""
        await self._calling.stop()
        await self._base.stop()

    def drop(self) -> None:
        """Keep these parts from reaching the database from now on."""
        self.is_dropped = True
        self.database.abandon()

    def retire_executor(self) -> tuple[Executor, asyncio.Task[None]] | None:
        """Take out the executor, whose calls go on without these parts; None if there is none."""
        self._is_stopping = self._is_over = True
        return self._executor.retire()

    def _why_not_serving(self) -> str | None:
        """Why this node cannot serve requests, the database aside; None if it can."""
        if self._is_over:
            return failing_over().detail
        if self._is_stopping:
            return "the node is stopping"
        if not self.feeder.has_looked or (self.shared is not None and not self.shared.membership.owns_shards):
            return "the node owns no shard yet"
        return self.feeder.trouble or self.firing.trouble or self._executor.trouble

    def nodes(self) -> list[NodeView]:
        """The nodes that share the shards, as this one sees them."""
        return [NodeView(self._outside.name, SHARDS, True)] if self.shared is None else self.shared.membership.nodes()

    def _has_duty(self, duty: str) -> bool:
        return self.shared is None or self.shared.membership.has_duty(duty)

    def _make_executor(self) -> Executor:
        return Executor(
            self.feeder,
            self.holders,
            self.settler,
            self._outside.client,
            clock=self.database.clock,
            secret_of=self._secret_of,
            key_of=self.lanes.key_of,
            node=self._outside.name,
            max_calls=self._outside.config.executor_calls,
            max_calls_per_host=self._outside.config.executor_calls_per_host,
            tell_health=self.breakers.report,
            beside=self._calls_beside,
            vault=self._outside.vault,
            egress_of=self.rules.egress_of,
        )

    async def _warm_connections(self) -> timedelta:
        """Open all connections and prepare the statements of the data path before a request needs them."""
        return timedelta(0) if await self.database.warm_one(_DATA_PATH) else _LOOK_FOR_COLD_EVERY

    def _obey(self, forced: Mapping[tuple[int, str], Forced]) -> None:
        self.breakers.obey({place: state for place, state in forced.items() if place[1] != TENANT_HOST})
        self.tenant_breakers.obey(forced)

    async def _secret_of(self, lane: int) -> Signing:
        key = await self.lanes.resolve(lane)
        if key is None:
            raise NotFound(f"lane {lane} is unknown")
        return await self._signing.of(key.tenant)


def _breaker_rules(config: Config) -> BreakerRules:
    """The breaker rules of a tenant that sets none."""
    return BreakerRules(
        config.tenant_breaker_failure_rate,
        config.tenant_breaker_window_seconds,
        config.tenant_breaker_probe_seconds,
        config.tenant_breaker_min_attempts,
    )
