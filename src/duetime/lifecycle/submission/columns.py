"""New tasks as the columns that the submit statements take."""

import uuid

import msgspec

from duetime.database.arrays import same, sparse
from duetime.ids import pack_ids
from duetime.lifecycle.submission.batch import Batch, Load, has_time, key_of
from duetime.lifecycle.submission.handover import Reservation
from duetime.model.task import DetailedTask
from duetime.model.vault import FINGERPRINT_BYTES

_encode = msgspec.json.Encoder().encode
#: The value of these columns for tasks without details.
_NO_DETAILS: dict[str, object] = dict.fromkeys(("options", "labels", "expires_ats"))


def plain_columns(load: Load) -> dict[str, object]:
    """The columns of every task."""
    lanes, lane = same(load.lanes)
    types, type = same([task.type for task in load.tasks])
    return {
        "lanes": lanes,
        "lane": lane,
        "ids": load.ids,
        "types": types,
        "type": type,
        "payloads": [task.payload for task in load.tasks],
    }


def all_columns(load: Load, reservation: Reservation | None) -> dict[str, object]:
    """The columns of every task, and those for details, times and holders."""
    details = _NO_DETAILS
    if load.shape is DetailedTask:
        detailed = [task if isinstance(task, DetailedTask) else None for task in load.tasks]
        details = {
            "options": sparse([_encode(each.options) if each and each.options else None for each in detailed]),
            "labels": sparse([_encode(each.labels).decode() if each and each.labels else None for each in detailed]),
            "expires_ats": sparse([each.expires_at if each else None for each in detailed]),
        }
    run_us = None
    if not load.is_untimed:
        run_us = [us for batch in load.batches for us in batch.run_us or [None] * len(batch.tasks)]
    holders = None
    if reservation is not None:
        places = zip(load.tasks, load.lanes, load.ids, strict=True)
        holders = sparse(
            [reservation.take(lane, id, task.type) if not has_time(task) else None for task, lane, id in places]
        )
    return {**plain_columns(load), **details, "run_us": run_us, "holders": holders}


def request_columns(load: Load) -> dict[str, object]:
    """Return the requests in order, and for each task the place of its request."""
    asked: list[tuple[uuid.UUID, Batch]] = [(each.request, each) for each in load.batches if each.request is not None]
    # No two requests are equal, so the sort compares nothing else.
    asked.sort()
    # PostgreSQL numbers the elements of an array from 1.
    places: dict[uuid.UUID | None, int | None] = {request: place for place, (request, _) in enumerate(asked, 1)}
    places[None] = None
    of_tasks, of_all = same([place for each in load.batches for place in [places[each.request]] * len(each.tasks)])
    return {
        "request_ids": [request for request, _ in asked],
        "request_tenants": [batch.tenant for _, batch in asked],
        "request_fingerprints": [batch.fingerprint[:FINGERPRINT_BYTES] for _, batch in asked],
        "request_tasks": [pack_ids(batch.ids, is_row=batch.is_row) for _, batch in asked],
        "requests": of_tasks,
        "request": of_all,
    }


def key_columns(load: Load) -> dict[str, object]:
    """Return the idempotency keys in order, each with the first task that has it."""
    if not load.has_keys:
        return _NO_KEYS
    keys: dict[tuple[int, str], tuple[uuid.UUID, DetailedTask, uuid.UUID | None]] = {}
    for batch in load.batches:
        for identifier, task in zip(batch.ids, batch.tasks, strict=True):
            if isinstance(task, DetailedTask) and task.idempotency_key is not None:
                keys.setdefault((batch.tenant, task.idempotency_key), (identifier, task, batch.request))
    ordered = sorted(keys.items())
    return {
        "key_tenants": [tenant for (tenant, _), _ in ordered],
        "keys": [key for (_, key), _ in ordered],
        "key_tasks": [identifier for _, (identifier, _, _) in ordered],
        "key_fingerprints": [task.fingerprint[:FINGERPRINT_BYTES] for _, (_, task, _) in ordered],
        "key_ttls": [task.idempotency_ttl for _, (_, task, _) in ordered],
        "key_requests": [request for _, (_, _, request) in ordered],
        "is_keyed": [key_of(task) is not None for task in load.tasks],
    }


_NO_KEYS: dict[str, object] = dict.fromkeys(
    ("key_tenants", "keys", "key_tasks", "key_fingerprints", "key_ttls", "key_requests", "is_keyed")
)
