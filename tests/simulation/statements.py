"""The statements of the data path on tables in memory, each under its name in the SQL files."""

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import asyncpg

from duetime.clock import from_us
from duetime.ids import due_ms_of, just_after, lane_of
from duetime.model.task import Outcome, Waiting
from simulation.rows import Record, column, record_of
from simulation.tables import Blocked, Broken, Claim, End, Tables, Task, Transaction

_STORED = record_of("at", "count", "ids")
_AT = record_of("at")
_KEY = record_of("tenant", "key", "task", "fingerprint", "has_ended")
_REQUEST = record_of("id", "tenant", "fingerprint", "tasks")
_LOOK = record_of("lane", "wake", "oldest_open", "next_new", "now_us")
_TAKEN = record_of(
    *("lane", "wake", "task", "number", "failures", "crashes", "releases", "holder", "home", "type", "payload"),
    *("options", "labels", "run_at", "expires_at", "picked_at"),
)
_MOVED = record_of("task", "number", "wake")
_WAKE = record_of("task", "wake")
_CLAIM = record_of("lane", "task", "number", "holder", "failures", "crashes", "releases", "options", "first_picked_at")
_ENDED = record_of("task", "number", "outcome", "tenant", "name", "is_dead")
_STATE = record_of("id", "state")
#: PostgreSQL counts its times from 2000.
_EPOCH_US = 946_684_800_000_000
#: A report's result is the number of the process that reports, so that its end can tell.
Rows = list[Record]


class DataPath(Tables):
    """Submitting, claiming, moving onward, steering."""

    # Submitting

    def submit(self, transaction: Transaction, **asked: Any) -> Rows:
        if not self._are_fresh(transaction, **asked):
            return []
        self._store(transaction, asked)
        return [_AT([transaction.at])]

    submit_plain = submit

    def submit_one(self, transaction: Transaction, **asked: Any) -> Rows:
        if not self._are_fresh(transaction, **asked):
            return []
        self._store(transaction, {**asked, "ids": [asked["id"]], "payloads": [asked["payload"]]})
        return [_AT([1])]

    def submit_keyed(self, transaction: Transaction, **asked: Any) -> Rows:
        if not self._are_fresh(transaction, **asked):
            return []
        return self._stored(transaction, asked, self._store(transaction, asked))

    submit_plain_keyed = submit_keyed

    def submit_repeated(self, transaction: Transaction, **asked: Any) -> Rows:
        if not self._are_fresh(transaction, **asked):
            return []
        return self._stored(transaction, asked, self._store(transaction, asked, is_repeat=True))

    def _are_fresh(
        self, transaction: Transaction, minted_ms: int, tolerance_ms: int, ahead_ms: int | None = None, **_: Any
    ) -> bool:
        if transaction.at_ms > minted_ms + tolerance_ms and not self.faults.stores_old_ids:
            return False
        return ahead_ms is None or transaction.at_ms >= minted_ms - ahead_ms

    def _stored(self, transaction: Transaction, asked: dict[str, Any], stored: list[uuid.UUID]) -> Rows:
        return [_STORED([transaction.at, len(stored), stored if len(stored) < len(asked["ids"]) else None])]

    def _store(self, transaction: Transaction, asked: dict[str, Any], is_repeat: bool = False) -> list[uuid.UUID]:
        ids: list[uuid.UUID] = asked["ids"]
        count = len(ids)
        new_requests = self._store_requests(transaction, asked)
        new_keys = self._store_keys(transaction, asked, new_requests)
        request_ids = asked.get("request_ids") or []

        def get(several: str, one: str = "") -> list[Any]:
            return column(asked.get(several), asked.get(one), count)

        stored = []
        rows = zip(
            *(ids, get("lanes", "lane"), get("types", "type"), asked["payloads"], get("options"), get("run_us")),
            *(get("expires_ats"), get("requests", "request"), get("is_keyed"), get("holders")),
            strict=True,
        )
        for id, lane, type, payload, options, run_us, expires_at, request, is_keyed, holder in rows:
            if lane != lane_of(id):
                raise Broken(f"task {id} is stored in lane {lane}")
            if request is not None and request_ids[request - 1] not in new_requests:
                continue
            if is_keyed and id not in new_keys:
                continue
            task = Task(id, type, payload, options, run_us or asked["minted_ms"] * 1000, expires_at)
            if not self.put(transaction, "task", id, task):
                if not is_repeat:
                    raise asyncpg.UniqueViolationError("an id is there already")
                continue
            if payload and not self.put(transaction, "submission", payload, id):
                raise Broken(
                    f"submission {payload!r} was stored twice, as {self.tables['submission'].get(payload)} and {id}"
                )
            if holder is None:
                self.put_due(transaction, id, id, Waiting(1))
            else:
                self.put(transaction, "claim", id, Claim(id, Waiting(1), holder, id, transaction.at_us, True))
            stored.append(id)
        return stored

    def _store_requests(self, transaction: Transaction, asked: dict[str, Any]) -> set[uuid.UUID]:
        new = set()
        rows = [asked.get(f"request_{name}") or [] for name in ("ids", "tenants", "fingerprints", "tasks")]
        for id, tenant, fingerprint, tasks in zip(*rows, strict=True):
            if self.put(transaction, "request", (id, tenant), (fingerprint, tasks)):
                new.add(id)
        return new

    def _store_keys(
        self, transaction: Transaction, asked: dict[str, Any], new_requests: set[uuid.UUID]
    ) -> set[uuid.UUID]:
        new = set()
        keys = asked.get("keys") or []
        rows = [asked.get(f"key_{name}") or [] for name in ("tenants", "tasks", "fingerprints", "requests")]
        for key, tenant, task, fingerprint, request in zip(keys, *rows, strict=True):
            is_asked = request is None or request in new_requests
            if is_asked and self.put(transaction, "key", (tenant, key), (task, fingerprint)):
                new.add(task)
        return new

    def probe(self, transaction: Transaction, ids: Sequence[uuid.UUID], **_: Any) -> Rows:
        """Those that are not there, after waiting for whoever is storing them; rolled back in any case."""
        for each in ids:
            owner = self.storing("task", each)
            if owner is not None and owner is not transaction:
                raise Blocked(owner)
        return [_AT([each]) for each in ids if each not in self.task]

    def read_keys(self, transaction: Transaction, tenants: list[int], keys: list[str], **_: Any) -> Rows:
        table = self.tables["key"]
        asked = [each for each in zip(tenants, keys, strict=True) if each in table]
        return [_KEY([*each, *table[each], False]) for each in asked]

    def read_requests(self, transaction: Transaction, ids: list[uuid.UUID], tenants: list[int]) -> Rows:
        table = self.tables["request"]
        asked = [each for each in zip(ids, tenants, strict=True) if each in table]
        return [_REQUEST([*each, *table[each]]) for each in asked]

    # Claiming

    def claim_due(self, transaction: Transaction, **asked: Any) -> Rows:
        return self._claim(transaction, is_around=False, **asked)

    def claim_around(self, transaction: Transaction, **asked: Any) -> Rows:
        return self._claim(transaction, is_around=True, **asked)

    def _claim(
        self,
        transaction: Transaction,
        is_around: bool,
        lanes: list[int],
        hints: list[uuid.UUID],
        rooms: list[int],
        slots: list[int],
        until: uuid.UUID,
        now_ms: int,
        holders: list[int],
        now: None,
    ) -> Rows:
        if transaction.at_ms < now_ms and not self.faults.claims_by_the_nodes_clock:
            until = just_after(transaction.at_ms)
        if self.faults.claims_early:
            until = just_after(due_ms_of(until) + 2_000)
        given, ends = [], []
        for lane, hint, room, slot in zip(lanes, hints, rooms, slots, strict=True):
            wakes = self.lanes[lane]
            taken = 0
            first_left = None
            for place in range(bisect_right(wakes, hint), len(wakes)):
                wake = wakes[place]
                if taken == room or wake >= until:
                    break
                if self.faults.claims_without_lock:
                    transaction.deleted.append(("due", wake))
                    self.on_locked(wake)
                elif is_around and self.is_locked("due", wake):
                    continue
                else:
                    self.take(transaction, "due", wake)
                given.append(self._give(transaction, lane, wake, holders[slot + taken]))
                taken += 1
            if taken == room and not is_around:
                first_left = given[-1]["wake"] or given[-1]["task"]
            elif (place := bisect_left(wakes, until)) < len(wakes):
                first_left = wakes[place]
            ends.append(_TAKEN([lane, first_left, None, 0, 0, 0, 0, 0, *[None] * 7, transaction.at]))
        return given + ends

    def _give(self, transaction: Transaction, lane: int, wake: uuid.UUID, holder: int) -> Record:
        row = self.due[wake]
        waiting, task = row.waiting, self.task[row.task]
        self.put(transaction, "claim", row.task, Claim(row.task, waiting, holder, wake, transaction.at_us))
        home = lane_of(row.task)
        run_at = (task.run_us - _EPOCH_US).to_bytes(8, "big")
        return _TAKEN(
            [
                *(lane, None if wake == row.task else wake, row.task),
                *(waiting.number, waiting.failures, waiting.crashes, waiting.releases, holder),
                *(None if home == lane else home, task.type, task.payload, task.options, None, run_at),
                *(task.expires_at, None),
            ]
        )

    def peek(self, transaction: Transaction, lanes: list[int], hints: list[uuid.UUID], until: uuid.UUID) -> Rows:
        noted = self._note(transaction)
        rows = []
        for lane, hint in zip(lanes, hints, strict=True):
            wakes = self.lanes[lane]
            place = bisect_right(wakes, hint)
            first = wakes[place] if place < len(wakes) and wakes[place] < until else None
            rows.append(_LOOK([lane, first, *noted]))
        return rows

    def claim_note(self, transaction: Transaction) -> Rows:
        return [_LOOK([None, None, *self._note(transaction)])]

    def _note(self, transaction: Transaction) -> tuple[int, int, int]:
        """Its own number is the note: whatever has a higher one reads its clock later."""
        snapshot_end = self.last_completed + 1
        oldest_open = min((xid for xid in self.open if xid < snapshot_end), default=snapshot_end)
        next_new = snapshot_end if self.faults.trusts_snapshot_end else transaction.xid + 1
        return oldest_open, next_new, transaction.at_us

    def read_hints(self, transaction: Transaction) -> Rows:
        kind = record_of("lane", "drained")
        return [kind(each) for each in self.lane_hint.items()]

    def keep_hints(self, transaction: Transaction, lanes: list[int], drained: list[uuid.UUID]) -> Rows:
        lows = dict(zip(lanes, drained, strict=True))
        transaction.effects.append(lambda: self.lane_hint.update(lows))
        return []

    # Moving onward

    def _claim_of(self, transaction: Transaction, task: uuid.UUID, number: int, holder: int) -> Claim | None:
        """The claim that a report is about, taken."""
        claim = self.claim.get(task)
        if claim is None or claim.number != number:
            return None
        if claim.holder != holder and not self.faults.settles_for_anybody:
            return None
        self.take(transaction, "claim", task)
        return claim

    def end_succeeded(self, transaction: Transaction, **asked: Any) -> Rows:
        tasks = asked["tasks"]
        count = len(tasks)
        rows = zip(
            tasks,
            column(asked["numbers"], asked["number"], count),
            column(asked["holders"], asked["holder"], count),
            column(asked["results"], None, count),
            strict=True,
        )
        places = []
        for place, (task, number, holder, result) in enumerate(rows, 1):
            claim = self._claim_of(transaction, task, number, holder)
            if claim is not None:
                self.put_end(transaction, task, number, _end_of(claim, Outcome.SUCCEEDED, result, None), True)
                places.append(place)
        return [_AT([len(places), None if len(places) == count else places])]

    def move_onward(self, transaction: Transaction, **asked: Any) -> Rows:
        columns = (
            *("tasks", "numbers", "holders", "outcomes", "finals", "results", "details", "waits_ms"),
            *("failures", "crashes", "releases", "reasons"),
        )
        ended, again = [], []
        for task, number, holder, outcome, is_final, result, detail, wait_ms, *counts, reason in zip(
            *(asked[name] for name in columns), strict=True
        ):
            claim = self._claim_of(transaction, task, number, holder)
            if claim is None:
                continue
            self.put_end(transaction, task, number, _end_of(claim, Outcome(outcome), result, detail), is_final)
            ended.append(_MOVED([task, number, None]))
            if wait_ms is not None:
                wake = self.mint(transaction.at_ms + wait_ms, lane_of(task))
                self.put_due(transaction, task, wake, Waiting(number + 1, *counts))
                again.append(_MOVED([task, None, wake]))
            if reason is not None:
                self.put(transaction, "dead", task, number)
        return ended + again

    def read_claims(
        self, transaction: Transaction, lanes: list[int], tasks: list[uuid.UUID], numbers: list[int]
    ) -> Rows:
        rows = []
        for task, number in zip(tasks, numbers, strict=True):
            claim = self.claim.get(task)
            if claim is not None and claim.number == number:
                rows.append(_CLAIM(self.claim_columns(claim)))
        return rows

    def claim_columns(self, claim: Claim) -> list[Any]:
        waiting = claim.waiting
        first_us = claim.picked_us
        if waiting.failures:
            # The first of the failures that count.
            failed = [
                end.picked_us
                for number in range(waiting.number - 1, 0, -1)
                if (end := self.attempt.get((claim.task, number))) is not None and end.outcome is Outcome.FAILED
            ]
            if len(failed) >= waiting.failures:
                first_us = failed[waiting.failures - 1] or first_us
        return [
            *(lane_of(claim.task), claim.task, waiting.number, claim.holder, waiting.failures, waiting.crashes),
            *(waiting.releases, self.task[claim.task].options, from_us(first_us)),
        ]

    def onward_read_ends(
        self, transaction: Transaction, lanes: list[int], tasks: list[uuid.UUID], numbers: list[int]
    ) -> Rows:
        rows = []
        for attempt in zip(tasks, numbers, strict=True):
            end = self.attempt.get(attempt)
            if end is not None:
                holder = None if end.holder is None or end.is_servers else self.holder[end.holder]
                by = (None, None) if holder is None else (holder.tenant, holder.name)
                rows.append(_ENDED([*attempt, int(end.outcome), *by, self.dead.get(attempt[0]) == attempt[1]]))
        return rows

    # Steering

    def _take_waiting(self, transaction: Transaction, table: str, task: uuid.UUID) -> Any:
        key = self.due_of.get(task) if table == "due" else task
        if key is None or key not in self.tables[table]:
            return None
        self.take(transaction, table, key)
        return self.tables[table][key]

    def cancel(self, transaction: Transaction, tasks: list[uuid.UUID], **_: Any) -> Rows:
        cancelled = []

        def end(task: uuid.UUID, number: int, holder: int | None) -> None:
            self.put_end(transaction, task, number, End(Outcome.CANCELLED, holder, None, False, None, 0), True)
            cancelled.append(_MOVED([task, number, None]))

        for task in tasks:
            for table in ("due", "held"):
                if (row := self._take_waiting(transaction, table, task)) is not None:
                    end(task, row.waiting.number, None)
            if task in self.claim:
                self.take(transaction, "claim", task)
                end(task, self.claim[task].number, self.claim[task].holder)
            if task in self.dead:
                self.take(transaction, "dead", task)
                end(task, self.dead[task] + 1, None)
        return cancelled

    def pause(self, transaction: Transaction, tasks: list[uuid.UUID], **_: Any) -> Rows:
        paused = []
        for task in tasks:
            row = self._take_waiting(transaction, "due", task)
            if row is not None and self.put(transaction, "held", task, row):
                paused.append(_WAKE([task, None]))
        return paused

    def steer_resume(self, transaction: Transaction, tasks: list[uuid.UUID], **_: Any) -> Rows:
        resumed = []
        for task in tasks:
            row = self._take_waiting(transaction, "held", task)
            if row is not None:
                home, now_ms = lane_of(task), transaction.at_ms
                wake = row.wake
                if due_ms_of(wake) <= now_ms or lane_of(wake) != home:
                    wake = self.mint(max(due_ms_of(wake), now_ms), home)
                resumed.append(_WAKE([task, self.put_due(transaction, task, wake, row.waiting)]))
        return resumed

    def reschedule(self, transaction: Transaction, tasks: list[uuid.UUID], run_at_ms: int, **_: Any) -> Rows:
        moved = []
        for task in tasks:
            wake = self.mint(max(transaction.at_ms, run_at_ms), lane_of(task))
            if (row := self._take_waiting(transaction, "due", task)) is not None:
                moved.append(_WAKE([task, self.put_due(transaction, task, wake, row.waiting)]))
            elif (row := self._take_waiting(transaction, "held", task)) is not None:
                self.put(transaction, "held", task, type(row)(task, wake, row.waiting))
                moved.append(_WAKE([task, None]))
        return moved

    def redrive(self, transaction: Transaction, tasks: list[uuid.UUID], **_: Any) -> Rows:
        redriven = []
        for task in tasks:
            if task in self.dead:
                self.take(transaction, "dead", task)
                wake = self.mint(transaction.at_ms, lane_of(task))
                self.put_due(transaction, task, wake, Waiting(self.dead[task] + 1))
                redriven.append(_WAKE([task, wake]))
        return redriven

    def read_states(self, transaction: Transaction, ids: list[uuid.UUID], **_: Any) -> Rows:
        return [_STATE([each, self.state_of(each, transaction.at_ms)]) for each in ids]


def _end_of(claim: Claim, outcome: Outcome, result: bytes | None, detail: bytes | None) -> End:
    by = int(result) if result else None
    is_servers = detail is not None and detail.startswith(b'{"by":"server"')
    return End(outcome, claim.holder, by, is_servers, claim.picked_us, claim.waiting.failures)
