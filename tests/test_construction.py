"""Parts are complete when they are constructed, and what they begin in the background is watched."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "duetime"
#: Attributes of others that are set, and why: nothing here ties parts together.
SET_FROM_OUTSIDE = {
    ("api/app.py", "answer_bytes"): "the line of the access log is filled in as the request goes on",
    ("api/server/protocol.py", "answer_bytes"): "the line of the access log is filled in as the request goes on",
    ("api/server/strict.py", "disconnected"): "uvicorn's cycle, which this protocol drives",
    ("api/server/strict.py", "total_requests"): "uvicorn's own count",
    ("database/driver.py", "IterableABC"): "asyncpg's test for arrays, which has no other way in",
    ("http1/kept.py", "usable_until"): "kept beside the connection that it is about",
    ("lifecycle/submission/minting.py", "moments_ms"): "a call of this batch is a record",
    ("model/breaker.py", "is_felt"): "its own ramp",
    ("recurrence/errors.py", "left"): "the budget of steps that a search is given to use up",
    ("recurrence/sources.py", "left"): "the budget of steps that a search is given to use up",
    ("scheduler/gating.py", "is_refused"): "a meter is a record of the governor's",
    ("scheduler/limits.py", "is_refused"): "a meter is a record of the governor's",
    ("scheduler/limits.py", "is_used"): "a meter is a record of the governor's",
    ("sdk/transport/pool.py", "usable_until"): "kept beside the connection that it is about",
    ("sdk/worker/handler_pool.py", "deadline"): "a task that the worker holds is a record",
    ("sdk/worker/recovery.py", "has_started"): "a task that the worker holds is a record",
    ("sdk/worker/reports.py", "settlement"): "a task that the worker holds is a record",
    ("sdk/worker/run.py", "has_started"): "a task that the worker holds is a record",
    ("sdk/worker/run.py", "settlement"): "a task that the worker holds is a record",
    ("serve.py", "should_exit"): "how uvicorn is told to stop",
}
#: Modules that begin tasks by themselves, and who hears when one of them dies.
BEGINS_TASKS = {
    "admin/lookups.py": "callers wait for what it looks up, and the next one begins it anew",
    "api/server/protocol.py": "the connection's own answer, which logs what fails",
    "api/server/strict.py": "uvicorn's cycle, which logs what fails",
    "api/workers/handlers.py": "awaited beside the poll",
    "budgets/allowance.py": "catches and logs all; the next caller asks again",
    "cluster/mesh.py": "one call of another node: catches and logs all",
    "database/connections.py": "awaited",
    "database/embedded.py": "the supervisor of PostgreSQL, which catches and logs all",
    "database/gather.py": "its callers get its errors",
    "executor/target_caller.py": "awaited by what holds the task, which reports it",
    "executor/executor.py": "watched by `run`, which breaks with any of them and is started again",
    "executor/supervision.py": "awaited by background work",
    "executor/http.py": "its call gets its errors",
    "executor/lookups.py": "its callers get its errors",
    "executor/resolver.py": "awaited",
    "lifecycle/admission/waiting.py": "awaited by its callers, and begun anew by the next",
    "listening.py": "one connection, whose errors close it",
    "scheduler/clock_sync.py": "goes on until the clock was read; the next jump begins it anew",
    "scheduler/firing.py": "awaited by the next step",
    "scheduler/forwarding.py": "awaited",
    "scheduler/readiness.py": "awaited by those who ask, and begun anew by the next",
    "service.py": "the one that watches",
    "serve.py": "uvicorn, awaited on the way down; the end of parts that are gone, which logs what fails",
    "supervise.py": "one for each process; it catches and logs what can fail",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text("utf-8"))


def targets(node: ast.AST) -> list[ast.expr]:
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        found = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        found = [node.target]
    return [
        each for target in found for each in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    ]


def is_record(definition: ast.ClassDef) -> bool:
    marks = [ast.unparse(each) for each in (*definition.decorator_list, *definition.bases)]
    return any(word in mark for mark in marks for word in ("dataclass", "Struct", "NamedTuple"))


def declared() -> dict[str, set[tuple[str, bool]]]:
    """By name of an attribute: the modules whose classes have one, and whether that is a record's field."""
    found: defaultdict[str, set[tuple[str, bool]]] = defaultdict(set)
    for module, tree in modules():
        for definition in [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]:
            fields = {
                each.target.id
                for each in definition.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            own = {
                each.attr
                for node in ast.walk(definition)
                for each in targets(node)
                if isinstance(each, ast.Attribute) and is_self(each.value)
            }
            for name in fields | own:
                found[name].add((module, is_record(definition) and name in fields))
    return found


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def constructed(function: Function) -> set[str]:
    """What the function has made by a call, and so owns."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in targets(node)
        if isinstance(target, ast.Name)
    }


def set_from_outside() -> set[tuple[str, str]]:
    """Attributes that are set of an object that is neither the function's own nor a record."""
    known, found = declared(), set()
    for module, tree in modules():
        for function in [each for each in ast.walk(tree) if isinstance(each, Function)]:
            own = constructed(function)
            for target in [each for node in ast.walk(function) for each in targets(node)]:
                if not isinstance(target, ast.Attribute) or is_self(target.value):
                    continue
                if isinstance(target.value, ast.Name) and target.value.id in own:
                    continue
                owners = known.get(target.attr, set())
                # What a module keeps of its own objects is its own affair, if it is no callback.
                is_own = any(is_field or owner == module for owner, is_field in owners)
                if not is_own or target.attr.startswith("on_"):
                    found.add((module, target.attr))
    return found


def test_no_attribute_of_a_part_is_set_after_its_construction() -> None:
    found = set_from_outside()

    assert found - SET_FROM_OUTSIDE.keys() == set(), "give it to the constructor, or tell by a signal"
    assert SET_FROM_OUTSIDE.keys() - found == set(), "not set any more: take it from the list"


def test_work_in_the_background_is_watched() -> None:
    found = {
        module
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future")
        if not module.startswith(("sdk/", "cli/"))
    }

    assert found - BEGINS_TASKS.keys() == set(), "use Background, Loop or Errands of duetime.service"
    assert BEGINS_TASKS.keys() - found == set(), "begins none any more: take it from the list"
