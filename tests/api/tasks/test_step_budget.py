"""No operation holds the event loop up for long, whatever it is asked: all tenants share it."""

import json
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from api.client import Api, Reply
from api.sweep import Caller, Steps

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: What an operation may use of the processor at a time.  The machine of a test may be three times as slow.
BUDGET_SECONDS = 0.05
PATIENCE = 3
MIB = 1024 * 1024
LATER = {"type": "a", "delay": "1h"}
ND = {"Content-Type": "application/x-ndjson"}
DOCUMENT = Path(__file__).parents[3] / "openapi.json"
#: What is asked and answered is one thing of bounded size, as a task, a queue or a limit.
OF_ONE = {
    *("get_task", "explain_task", "cancel_task", "pause_task", "resume_task", "reschedule_task", "run_now_task"),
    *("retry_task", "delete_schedule", "trigger_schedule", "backfill_schedule", "get_backfill", "cancel_backfill"),
    *("delete_calendar", "get_signing_secret", "make_key", "revoke_key", "rotate_key", "put_breaker", "get_limit"),
    *("delete_limit", "get_queue", "put_queue", "delete_queue", "get_tenant", "put_tenant", "get_tier", "put_tier"),
    *("delete_tier", "delete_type", "get_outbox", "retry_outbox", "delete_outbox", "health", "ready", "docs", "start"),
    "rotate_signing_secret",
}

Call = Callable[..., Coroutine[Any, Any, Reply]]


async def test_no_operation_holds_the_event_loop_up(api: Api) -> None:
    steps = Steps()
    caller = Caller(api, steps)
    with steps.watch():
        await submit(caller.call)
        await submit_what_is_wrong(caller.call)
        held = await work(caller.call)
        await steer(caller.call, held)
        await schedule(caller.call)
        await administer(caller.call)
        await read_full_pages(api, caller.call)

    operations = {
        each["operationId"]
        for path in json.loads(DOCUMENT.read_bytes())["paths"].values()
        for each in path.values()
        if isinstance(each, dict) and "operationId" in each
    }
    assert {each.partition(" ")[0] for each in caller.longest} | OF_ONE >= operations
    slow = {
        name: f"{1000 * step.seconds:.0f} ms in {step.what}"
        for name, step in caller.longest.items()
        if step.seconds > PATIENCE * BUDGET_SECONDS
    }
    assert slow == {}


def right(reply: Reply, *, status: tuple[int, ...] = (200, 201, 202, 204)) -> Any:
    assert reply.status in status, (reply.status, reply.body[:500])
    return reply.json if reply.body else None


async def submit(call: Call) -> None:
    """The largest batches, each of something else."""
    labels = {f"label{number}": "x" * 40 for number in range(32)}
    brackets: list[Any] = [[number, {"k": number}] for number in range(700)]
    unlike = {"delay": "1h", "retry": {"max_attempts": 3}, "concurrency_key": "x", "requires": ["gpu"]}
    batches: dict[str, list[dict[str, Any]]] = {
        "small": [{"type": "a", "payload": {"n": 1}}] * 5_000,
        "large": [LATER | {"payload": "y" * 15_000}] * 1_000,
        "labels": [LATER | {"labels": labels}] * 5_000,
        "not plain": [{"type": "a", **unlike}] * 5_000,
        "brackets": [LATER | {"payload": brackets}] * 1_000,
        # As few that they are read at once, and as much to read as can be.
        "few": [LATER | {"payload": [[]] * 15_000}] * 240,
        "keys": [LATER | {"idempotency_key": f"k{number}"} for number in range(5_000)],
        "keys again": [LATER | {"idempotency_key": f"k{number}"} for number in range(5_000)],
    }
    for name, items in batches.items():
        reply = await call(f"submit_tasks {name}", "POST", "/v1/tasks/batch", compact(items))
        assert right(reply)["accepted"] == len(items), name
    lines = b"\n".join([compact(LATER | {"payload": "y" * 15_000})] * 1_000)
    right(await call("submit_tasks lines", "POST", "/v1/tasks/batch", lines, ND))
    right(await call("submit_tasks atomic", "POST", "/v1/tasks/batch?atomic=true", [LATER] * 5_000))
    right(await call("submit_task", "POST", "/v1/tasks", LATER | {"payload": "y" * 65_000}))
    for query in ("", "&type=nothing", "&label=a%3Db"):
        right(await call("list_tasks", "GET", f"/v1/tasks?limit=200{query}"))


async def submit_what_is_wrong(call: Call) -> None:
    wrong = {"type": "not a name", "priority": "x", "delay": -1, "queue": "ü"}
    right(await call("submit_tasks wrong", "POST", "/v1/tasks/batch", [wrong] * 5_000), status=(200, 422))
    refused = {
        "numbers": b"[" + b"1," * (8 * MIB - 10) + b"1]",
        "nested": b"[" * (16 * MIB - 10),
        "no ASCII": json.dumps([{"type": "a", "payload": "ü" * 7_000}] * 1_000, ensure_ascii=False).encode() + b"]",
    }
    for name, body in refused.items():
        right(await call(f"submit_tasks {name}", "POST", "/v1/tasks/batch", body), status=(400, 413, 422))
    for name, body in {"empty lines": b"\n" * (16 * MIB - 10), "empty objects": b"{}\n" * (5 * MIB)}.items():
        right(await call(f"submit_tasks {name}", "POST", "/v1/tasks/batch", body, ND), status=(400, 413, 422))
    wide = LATER | {f"x{number}": number for number in range(50_000)}
    right(await call("submit_task wide", "POST", "/v1/tasks", wide), status=(422,))


async def work(call: Call) -> list[Any]:
    """Lease, beat and settle; gives the dead letters."""
    due = [{"type": "b", "queue": "w", "payload": {"n": 1}}] * 4_000
    right(await call("submit_tasks due", "POST", "/v1/tasks/batch", due))
    asked = {"worker": "w", "queues": ["w"], "types": [f"t{number}" for number in range(999)] + ["b"], "max": 1_000}
    held: list[Any] = []
    while len(held) < len(due):
        reply = await call("lease_tasks", "POST", "/v1/workers/lease", asked | {"wait": 5})
        held += (leased := right(reply)["tasks"])
        assert leased
    named = [{"id": task["id"], "attempt": task["attempt"]} for task in held]
    unknown = [{"id": str(uuid.uuid4()), "attempt": 1} for _ in range(6_000)]
    right(await call("beat", "POST", "/v1/workers/beat", {"worker": "w", "attempts": named + unknown}))
    error = {"message": "m" * 300, "kind": "permanent", "detail": {"a": [1] * 100}}
    outcomes: dict[str, list[dict[str, Any]]] = {
        "failed": [each | {"outcome": "failed", "error": error} for each in named[:3_000]],
        "results": [each | {"outcome": "succeeded", "result": "y" * 15_000} for each in named[3_000:]],
        "lost": [each | {"outcome": "succeeded"} for each in unknown[:5_000]],
    }
    for name, settlements in outcomes.items():
        report = {"worker": "w", "settlements": settlements}
        right(await call(f"settle_attempts {name}", "POST", "/v1/workers/settle", report))
    nonsense = {"worker": "w", "settlements": [{"id": "x", "attempt": 0, "outcome": "s"}] * 5_000}
    right(await call("settle_attempts wrong", "POST", "/v1/workers/settle", nonsense), status=(422,))
    return held[:3_000]


async def steer(call: Call, dead: list[Any]) -> None:
    """The verbs with as many tasks as they take."""
    right(await call("list_dead", "GET", "/v1/dead?limit=200"))
    nobodys = [str(uuid.uuid4()) for _ in range(8_500)]
    first, others = ([each["id"] for each in some] for some in (dead[:1_500], dead[1_500:]))
    right(await call("redrive_dead ids", "POST", "/v1/dead/redrive", {"ids": first + nobodys}))
    right(await call("drop_dead", "POST", "/v1/dead/drop", {"ids": others[:500] + nobodys}))
    right(await call("redrive_dead all", "POST", "/v1/dead/redrive", {"all": True, "limit": 10_000}))
    for verb in ("pause", "resume", "reschedule", "run-now", "retry", "cancel"):
        more = {"delay": "2h"} if verb == "reschedule" else {}
        asked = {"filter": {"type": "a"}, "limit": 10_000, **more}
        right(await call(f"{verb.replace('-', '_')}_tasks", "POST", f"/v1/tasks/bulk/{verb}", asked))


async def schedule(call: Call) -> None:
    dates = [f"2030-01-{1 + n % 28:02}T{n % 24:02}:{n % 60:02}" for n in range(1_000)]
    spec = {"cron": [f"{n % 60} {n % 24} * * *" for n in range(100)], "dates": dates}
    zone = {"timezone": "Europe/Berlin"}
    task = {"type": "a", "payload": {"x": "{{fire_time}}" * 4_000}}
    right(await call("put_schedule", "PUT", "/v1/schedules/s", {"spec": spec, "task": task, **zone}))
    right(await call("preview_schedule", "POST", "/v1/schedules/preview", {"spec": spec, "count": 100, **zone}))
    items = [
        {"name": f"b{n}", "spec": {"cron": "0 0 * * *"}, "task": {"type": "a", "payload": "y" * 1_000}, **zone}
        for n in range(1_000)
    ]
    for name in ("", " again"):
        right(await call(f"put_schedules{name}", "POST", "/v1/schedules/batch", {"items": items}))
    right(await call("list_schedules", "GET", "/v1/schedules?limit=200"))
    right(await call("get_schedule", "GET", "/v1/schedules/s"))
    right(await call("preview_stored_schedule", "GET", "/v1/schedules/s/preview?count=100"))
    right(await call("list_runs", "GET", "/v1/schedules/s/runs?limit=200"))
    right(await call("list_backfills", "GET", "/v1/schedules/s/backfills"))
    right(await call("pause_schedule", "POST", "/v1/schedules/s/pause", {}))
    right(await call("resume_schedule", "POST", "/v1/schedules/s/resume", {}))
    left_out = [f"20{30 + n // 300}-{1 + (n // 28) % 12:02}-{1 + n % 28:02}" for n in range(1_000)]
    right(await call("put_calendar", "PUT", "/v1/calendars/c", {"dates": left_out}))
    right(await call("list_calendars", "GET", "/v1/calendars"))
    right(await call("get_calendar", "GET", "/v1/calendars/c"))


async def administer(call: Call) -> None:
    schema = {"properties": {f"p{n}": {"type": "string", "maxLength": 10} for n in range(1_000)}}
    for n in range(20):
        right(await call("put_type", "PUT", f"/v1/types/t{n}", {"schema": schema}))
    right(await call("preview_type", "POST", "/v1/types/a/preview", {"schema": schema}))
    right(await call("get_type", "GET", "/v1/types/t1"))
    for name, value in (("typed", "x"), ("typed and wrong", 1)):
        items = [{"type": "t1", "delay": "1h", "payload": {f"p{n}": value for n in range(300)}}] * 1_000
        right(await call(f"submit_tasks {name}", "POST", "/v1/tasks/batch", items))
    for n in range(200):
        right(await call("put_limit", "PUT", f"/v1/limits/k{n}", {"max_running": 1}))
    lists = {
        "list_limits": "limits",
        "list_types": "types",
        "list_queues": "queues",
        "list_acts": "audit",
        "list_tenants": "tenants",
        "list_tiers": "tiers",
        "list_refused": "outbox",
    }
    for name, path in lists.items():
        right(await call(name, "GET", f"/v1/{path}?limit=200"))
    others = {"list_keys": "/v1/keys", "list_breakers": "/v1/breakers", "list_nodes": "/v1/cluster"}
    for name, path in {**others, "openapi": "/openapi.json", "metrics": "/metrics"}.items():
        await call(name, "GET", path)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def read_full_pages(api: Api, call: Call) -> None:
    """Lists of so large things that their pages are full."""
    task = await api.attempted(200, 60_000)
    right(await call("get_task", "GET", f"/v1/tasks/{task}"))
    right(await call("list_attempts", "GET", f"/v1/tasks/{task}/attempts?limit=200"))
    minutes = ",".join(map(str, range(60)))
    dates = [{"cron": f"{minutes} {n % 24} 1 1 *".ljust(700)} for n in range(1_000)]
    for n in range(8):
        right(await call("put_calendar", "PUT", f"/v1/calendars/full{n}", {"dates": dates}))
    right(await call("list_calendars", "GET", "/v1/calendars?limit=200"))
    for n in range(100):
        body = {"spec": {"every": 3600}, "task": {"type": "a", "payload": "y" * 60_000}, "paused": True}
        right(await call("put_schedule", "PUT", f"/v1/schedules/full{n:03}", body))
    right(await call("list_schedules", "GET", "/v1/schedules?limit=200&prefix=full"))
