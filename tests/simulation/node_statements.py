"""The statements about holders, lanes and nodes on tables in memory, each under its name in the SQL files."""

import uuid
from bisect import bisect_left, bisect_right
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from duetime.clock import to_us
from duetime.ids import LATEST_MS, just_before, lane_of
from duetime.lifecycle.holders.lapse import LOOKBACK
from duetime.model.task import Kind, LaneKey, PriorityClass
from simulation.rows import record_of
from simulation.schedule_statements import Scheduling
from simulation.statements import Rows
from simulation.tables import Holder, Transaction

_OWNED = record_of("id", "owner")
_COUNTED = record_of("id", "beats")
_STARTED = record_of("id", "beats", "running", "running_numbers", "running_us")
_HELD = record_of("holder", "task", "number", "looked_at")
_BEATS = record_of("id", "beats", "tenant", "name", "max_silence")
_LEFT = record_of(
    *("lane", "task", "number", "holder", "failures", "crashes", "releases", "was_started", "signed_off", "options"),
    "first_picked_at",
)
_LANE = record_of("id", "tenant", "name", "queue", "class", "kind", "requires", "gate", "part")
_TENANT = record_of("name", "shard", "spread")
_COUNTS = record_of("homes", "gates", "gates_of_part")
_WAKES = record_of("wake")
_RUNNING = record_of("lane", "task", "number", "type", "payload", "options")
_PAST = record_of("task", "number")
_SIFTED = record_of("looked_at", "last", "moved", "wakes")
_NODE = record_of("name", "incarnation", "address", "beats")


class Store(Scheduling):
    """All tables, and every statement that the simulated nodes run."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._holders = 0
        #: By tenant, its shard.
        self.tenants: dict[int, int] = {}
        self._nodes: dict[str, tuple[int, str, int]] = {}

    # Holders

    def register(self, transaction: Transaction, tenant: int, name: str, key: int | None) -> Rows:
        if (found := self.living.get((tenant, name))) is not None:
            self.lock(transaction, "holder", found)
            return [_OWNED([found, None])]
        self.lock(transaction, "name", (tenant, name))
        self._holders += 1
        holder = Holder(self._holders, tenant, name, beaten_at=self.now)

        def effect() -> None:
            self.holder[holder.id] = holder
            self.living[tenant, name] = holder.id

        transaction.effects.append(effect)
        return [_OWNED([holder.id, None])]

    def names_find(self, transaction: Transaction, tenant: int, name: str) -> Rows:
        found = self.living.get((tenant, name))
        return [] if found is None else [_OWNED([found, None])]

    def holders_beat(
        self,
        transaction: Transaction,
        holders: list[int],
        counts: list[int],
        started_holders: list[int],
        started_tasks: list[uuid.UUID],
        started_numbers: list[int],
        started_us: list[int],
    ) -> Rows:
        heard = []
        for id, count in sorted(zip(holders, counts, strict=True)):
            self.lock(transaction, "holder", id)
            holder = self.holder[id]
            if holder.ended_us is None and holder.beats == count:
                heard.append(_COUNTED([id, count + 1]))
        started = list(zip(started_holders, started_tasks, started_numbers, started_us, strict=True))

        def effect() -> None:
            for id, beats in heard:
                holder = self.holder[id]
                holder.beats, holder.beaten_at = beats, self.now
                holder.running = {(task, number): us for by, task, number, us in started if by == id}

        transaction.effects.append(effect)
        return heard

    def read_started(self, transaction: Transaction, holders: list[int]) -> Rows:
        rows = []
        for id in holders:
            holder = self.holder.get(id)
            if holder is not None and holder.ended_us is None:
                running = holder.running
                columns = [task for task, _ in running], [number for _, number in running], list(running.values())
                rows.append(_STARTED([id, holder.beats, *columns]))
        return rows

    def read_held(
        self,
        transaction: Transaction,
        holders: list[int],
        sinces: list[datetime],
        lanes: list[int],
        tasks: list[uuid.UUID],
        numbers: list[int],
    ) -> Rows:
        rows = [_HELD([None, None, None, transaction.at])]
        for holder, since in zip(holders, sinces, strict=True):
            since_us = to_us(since)
            for claim in self.claims_of[holder].values():
                if claim.picked_us > since_us:
                    rows.append(_HELD([holder, claim.task, claim.number, None]))
        for task, number in zip(tasks, numbers, strict=True):
            asked = self.claim.get(task)
            if asked is not None and asked.number == number:
                rows.append(_HELD([asked.holder, task, number, None]))
        return rows

    def read_beats(self, transaction: Transaction) -> Rows:
        living = [self.holder[id] for id in self.living.values()]
        return [_BEATS([each.id, each.beats, each.tenant, each.name, each.max_silence]) for each in living]

    def end_silent(self, transaction: Transaction, ids: list[int], beats: list[int]) -> Rows:
        ended = []
        for id, count in sorted(zip(ids, beats, strict=True)):
            self.lock(transaction, "holder", id)
            holder = self.holder[id]
            if holder.ended_us is None and (holder.beats == count or self.faults.lapses_without_counter):
                ended.append(id)
        self._end_holders(transaction, ended)
        return [_COUNTED([id, 0]) for id in ended]

    def sign_off(
        self,
        transaction: Transaction,
        tenant: int,
        name: str,
        key: int | None,
        started_tasks: list[uuid.UUID],
        started_numbers: list[int],
    ) -> Rows:
        id = self.living.get((tenant, name))
        if id is None:
            return []
        self.lock(transaction, "holder", id)
        holder = self.holder[id]
        if holder.ended_us is not None:
            return []

        def effect() -> None:
            holder.signed_off = True
            holder.running |= dict.fromkeys(zip(started_tasks, started_numbers, strict=True), 0)

        transaction.effects.append(effect)
        self._end_holders(transaction, [id])
        return [_COUNTED([id, 0])]

    def _end_holders(self, transaction: Transaction, ids: list[int]) -> None:
        def effect() -> None:
            for id in ids:
                holder = self.holder[id]
                holder.ended_us, holder.ended_at = transaction.at_us, self.now
                del self.living[holder.tenant, holder.name]

        transaction.effects.append(effect)

    def read_signed_off(self, transaction: Transaction, holder: int, batch: int) -> Rows:
        return self._left_behind(self.holder[holder], batch)

    def read_left_behind(self, transaction: Transaction, lookback: timedelta, batch: int) -> Rows:
        if self.faults.sweeps_lately_ended:
            lookback = min(lookback, LOOKBACK)
        since_us = transaction.at_us - lookback // timedelta(microseconds=1)
        rows: Rows = []
        for id in [id for id, claims in self.claims_of.items() if claims]:
            holder = self.holder[id]
            if holder.ended_us is not None and holder.ended_us > since_us:
                rows += self._left_behind(holder, batch)
        return rows[:batch]

    def _left_behind(self, holder: Holder, batch: int) -> Rows:
        rows = []
        for claim in list(self.claims_of[holder.id].values())[:batch]:
            was_started = (claim.task, claim.number) in holder.running
            if self.faults.charges_by_task:
                was_started = any(task == claim.task for task, _ in holder.running)
            *columns, options, first_picked_at = self.claim_columns(claim)
            rows.append(_LEFT([*columns, was_started, holder.signed_off, options, first_picked_at]))
        return rows

    # Lanes

    def _lane_row(self, id: int) -> Any:
        key = self.lane[id]
        columns = key.queue, int(key.priority), int(key.kind), list(key.requires), key.gate, key.part
        return _LANE([id, key.tenant, f"tenant-{key.tenant}", *columns])

    def lanes_read_all(self, transaction: Transaction) -> Rows:
        return [self._lane_row(id) for id in self.lane]

    def lanes_read_one(self, transaction: Transaction, lane: int) -> Rows:
        return [self._lane_row(lane)] if lane in self.lane else []

    def lanes_read_of_tenant(self, transaction: Transaction, tenant: int) -> Rows:
        return [self._lane_row(id) for id, key in self.lane.items() if key.tenant == tenant]

    def lanes_lock_tenant(self, transaction: Transaction, tenant: int) -> Rows:
        self.lock(transaction, "tenant", tenant)
        return [_TENANT([f"tenant-{tenant}", self.tenants[tenant], 1])]

    def lanes_count(self, transaction: Transaction, tenant: int, part: int) -> Rows:
        keys = [key for key in self.lane.values() if key.tenant == tenant]
        gates = [key for key in keys if key.gate]
        of_part = [key for key in gates if key.part == part]
        return [_COUNTS([len(keys) - len(gates), len(gates), len(of_part)])]

    def lanes_make(self, transaction: Transaction, shard: int, **columns: Any) -> Rows:
        key = _key_of(**columns)
        if key not in self.lane.values():

            def effect() -> None:
                if key not in self.lane.values():
                    self.lane[(len(self.lane) + 1) * 256 + shard] = key

            transaction.effects.append(effect)
        return []

    def give(self, transaction: Transaction, **columns: Any) -> Rows:
        return []

    def tenant_shards_read_shards(self, transaction: Transaction, tenant: int) -> Rows:
        shards = {self.tenants[tenant]} | {id % 256 for id, key in self.lane.items() if key.tenant == tenant}
        kind = record_of("shard")
        return [kind([shard]) for shard in sorted(shards)]

    def tenants_read_names(self, transaction: Transaction, **_: Any) -> Rows:
        kind = record_of("id", "name")
        return [kind([id, f"tenant-{id}"]) for id in self.tenants]

    # Gates

    def park(self, transaction: Transaction, **asked: Any) -> Rows:
        parked = []
        columns = ("tasks", "numbers", "holders", "picked_ats", "gates", "waits_ms")
        for task, number, holder, picked_at, gate, wait_ms in zip(*(asked[name] for name in columns), strict=True):
            claim = self.claim.get(task)
            if claim is None or (claim.number, claim.holder) != (number, holder):
                continue
            if claim.picked_us == to_us(picked_at):
                self.take(transaction, "claim", task)
                wake = self.mint(transaction.at_ms + wait_ms, gate)
                parked.append(_WAKES([self.put_due(transaction, task, wake, claim.waiting)]))
        return parked

    def read_running(self, transaction: Transaction, lanes: list[int]) -> Rows:
        rows, wanted = [], set(lanes)
        for claim in self.claim.values():
            if (lane := lane_of(claim.task)) in wanted:
                task = self.task[claim.task]
                rows.append(_RUNNING([lane, task.id, claim.number, task.type, task.payload, task.options]))
        return rows

    def park_read_ended(
        self, transaction: Transaction, lanes: list[int], tasks: list[uuid.UUID], numbers: list[int]
    ) -> Rows:
        ended = []
        for task, number in zip(tasks, numbers, strict=True):
            claim = self.claim.get(task)
            if claim is None or claim.number != number or self.faults.takes_what_runs_for_ended:
                ended.append(_PAST([task, number]))
        return ended

    def sift(self, transaction: Transaction, **asked: Any) -> Rows:
        """Of the rows at the front of a lane, those of these types go to other lanes."""
        wakes = self.lanes[asked["lane"]]
        behind = wakes[bisect_right(wakes, asked["hint"]) : bisect_left(wakes, asked["until"])]
        front = [wake for wake in behind if not self.is_locked("due", wake)][: asked["most"]]
        columns = (asked[name] for name in ("types", "homes", "lanes", "waits_ms"))
        moves = {(type, home): (lane, wait_ms) for type, home, lane, wait_ms in zip(*columns, strict=True)}
        first: dict[int, uuid.UUID] = {}
        moved = 0
        for wake in front:
            self.lock(transaction, "due", wake)
            row = self.due[wake]
            move = moves.get((self.task[row.task].type, lane_of(row.task)))
            if move is not None:
                lane, wait_ms = move
                moved += 1
                self.take(transaction, "due", wake)
                new = self.mint(transaction.at_ms + (wait_ms + asked["step_ms"] * moved if wait_ms else 0), lane)
                self.put_due(transaction, row.task, new, row.waiting)
                first[lane] = min(first.get(lane, new), new)
        return [_SIFTED([len(front), front[-1] if front else None, moved, list(first.values())])]

    # Nodes

    def postgres_join(self, transaction: Transaction, cluster: str, name: str, incarnation: int, address: str) -> Rows:
        self.lock(transaction, "node", name)
        transaction.effects.append(lambda: self._nodes.__setitem__(name, (incarnation, address, 0)))
        return []

    def postgres_beat(self, transaction: Transaction, cluster: str, name: str, incarnation: int) -> Rows:
        rows = [_NODE([each, *self._nodes[each]]) for each in sorted(self._nodes)]
        found = self._nodes.get(name)
        if found is not None and found[0] == incarnation:
            self.lock(transaction, "node", name)
            transaction.effects.append(lambda: self._nodes.__setitem__(name, (incarnation, found[1], found[2] + 1)))
        return rows

    def postgres_leave(self, transaction: Transaction, cluster: str, name: str, incarnation: int) -> Rows:
        if self._nodes.get(name, (0, ""))[0] == incarnation:
            self.lock(transaction, "node", name)
            transaction.effects.append(lambda: self._nodes.pop(name, None))
        return []

    def postgres_forget(self, transaction: Transaction) -> Rows:
        return []

    # The server itself

    def ask(self, transaction: Transaction) -> Rows:
        kind = record_of("now_us", "system", "database", "timeline", "written")
        return [kind([transaction.at_us, 1, 1, 1, self.last_completed])]

    def partitions_lock(self, transaction: Transaction) -> Rows:
        return []

    def read_bounds(self, transaction: Transaction, table: str) -> Rows:
        kind = record_of("name", "bound")
        return [kind([f"{table}_oldest", f"FOR VALUES FROM (MINVALUE) TO ('{just_before(LATEST_MS)}')"])]

    def wait_for_standbys(self, transaction: Transaction) -> Rows:
        return []

    def begin_change(self, transaction: Transaction, operation: uuid.UUID) -> Rows:
        if not self.put(transaction, "operation", operation, False):
            raise asyncpg.UniqueViolationError("the change was given up")
        return []

    def find_or_give_up(self, transaction: Transaction, id: uuid.UUID) -> Rows:
        kind = record_of("is_given_up")
        if self.faults.repeats_verbs_in_doubt:
            return [kind([id not in self.tables["operation"]])]
        is_given_up = self.put(transaction, "operation", id, True) or self.tables["operation"][id]
        return [kind([is_given_up])]


def _key_of(tenant: int, queue: str, kind: int, requires: list[str], gate: str, part: int, **columns: Any) -> LaneKey:
    return LaneKey(tenant, queue, PriorityClass(columns["class"]), Kind(kind), tuple(requires), gate, part)
