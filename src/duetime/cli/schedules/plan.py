"""The plan of applying a schedules file: compare the wanted schedules with the stored ones.  No I/O."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from duetime.cli.schedules.documents import Path, dotted
from duetime.cli.schedules.fields import STEERED, canonical
from duetime.cli.schedules.files import Wanted, WantedCalendar
from duetime.model.headers import HIDDEN, secret_names

_SHOWN = 72
_BEFORE_DIFFERENCE = 16
_GONE = "(none)"


class StepKind(Enum):
    CREATE = "create"
    CHANGE = "change"
    UNCHANGED = "unchanged"
    DELETE = "delete"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Change:
    path: str
    before: object
    after: object

    def words(self) -> str:
        before, after = _pair(_shown(self.before), _shown(self.after))
        return f"{self.path}: {before} → {after}"


@dataclass(frozen=True)
class Step:
    """The step for one schedule or one calendar."""

    action: StepKind
    name: str
    noun: str = "schedule"
    changes: tuple[Change, ...] = ()
    #: The reason of a conflict, or a description of a new one.
    remark: str = ""
    #: The version of the stored schedule that is to be deleted.
    version: int | None = None
    #: The body to send.
    body: Mapping[str, object] | None = None


def plan_schedules(
    wanted: Iterable[Wanted], stored: Mapping[str, Mapping[str, object]], *, prune: bool
) -> Iterator[Step]:
    """Return a step for each wanted schedule, and with `prune` for each that is no longer wanted."""
    names = set()
    for each in wanted:
        names.add(each.name)
        yield _plan_one(each, stored.get(each.name))
    if prune:
        for name in sorted(stored.keys() - names):
            found = dict(stored[name])
            version = found.get("version")
            remark = summary(canonical(found, is_lenient=True))
            yield Step(StepKind.DELETE, name, remark=remark, version=version if isinstance(version, int) else None)


def _plan_one(wanted: Wanted, found: Mapping[str, object] | None) -> Step:
    body = {"name": wanted.name, **wanted.definition, "origin": "file", "source": wanted.source}
    if found is None:
        return Step(StepKind.CREATE, wanted.name, remark=summary(wanted.canonical), body=body)
    if (found.get("origin"), found.get("source")) != ("file", wanted.source):
        return Step(StepKind.CONFLICT, wanted.name, remark=owner_of(found))
    before = canonical(dict(found), is_lenient=True)
    steered = {"paused": found.get("state") == "paused", "note": "", **_only_given(before, STEERED)}
    after = dict(wanted.canonical)
    for name, value in steered.items():
        before[name] = value
        after.setdefault(name, value)
        # An operator's pause stays if the file changes but does not mention it.
        if name not in body and value:
            body[name] = value
    changes = tuple(differences(before, after))
    return Step(StepKind.CHANGE if changes else StepKind.UNCHANGED, wanted.name, changes=changes, body=body)


def has_secrets(step: Step) -> bool:
    """Whether the comparison cannot cover its secrets, which cannot be read."""
    task = (step.body or {}).get("task")
    target = task.get("target") if isinstance(task, dict) else None
    headers = target.get("headers") if isinstance(target, dict) else None
    if not isinstance(target, dict) or not isinstance(headers, dict):
        return False
    marked = target.get("secret_headers")
    return bool(secret_names(map(str, headers), map(str, marked if isinstance(marked, list) else ())))


def with_other_secrets(step: Step) -> Step:
    """Return the step of a schedule of which only the secrets change."""
    return replace(step, action=StepKind.CHANGE, changes=(Change("task.target.headers", HIDDEN, "other secrets"),))


def plan_calendar(wanted: WantedCalendar, stored: object) -> Step:
    """`stored` are its canonical entries, or None if there is no such calendar."""
    body = {"dates": wanted.dates}
    if stored is None:
        return Step(StepKind.CREATE, wanted.name, "calendar", remark=f"{len(wanted.dates)} entries", body=body)
    changes = tuple(differences({"dates": stored}, {"dates": wanted.canonical}))
    return Step(StepKind.CHANGE if changes else StepKind.UNCHANGED, wanted.name, "calendar", changes, body=body)


def owner_of(found: Mapping[str, object]) -> str:
    """Return the owner of a schedule that this source may not change."""
    origin, source = found.get("origin") or "api", found.get("source")
    return f"it belongs to origin {origin}" + (f", source {source}" if source else "")


def totals(steps: Iterable[Step]) -> dict[StepKind, int]:
    found = dict.fromkeys(StepKind, 0)
    for step in steps:
        found[step.action] += 1
    return found


def differences(before: object, after: object, path: Path = ()) -> Iterator[Change]:
    """Compare field by field, down to the smallest differing fields."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), (*path, key))
        return
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after) and _has_mappings(before):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, (*path, place))
        return
    if not is_same(before, after):
        yield Change(dotted(path), before, after)


def _has_mappings(values: list[object]) -> bool:
    return any(isinstance(each, dict) for each in values)


def is_same(one: object, other: object) -> bool:
    """Compare as JSON: 1 equals 1.0 but not true."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(is_same, one, other))
        case _:
            return one == other and isinstance(one, bool) == isinstance(other, bool)


def summary(definition: Mapping[str, object]) -> str:
    """Describe on one line when it fires and what it does."""
    spec, task = definition.get("spec"), definition.get("task")
    parts = []
    if isinstance(spec, dict):
        for name in ("cron", "every", "after", "rrule"):
            if name in spec:
                value = spec[name]
                parts.append(f"{name} {' | '.join(map(str, value)) if isinstance(value, list) else value}")
        parts += [
            f"{len(spec[name])} {word}"
            for name, word in (("calendar", "calendar rules"), ("dates", "dates"))
            if isinstance(spec.get(name), list) and spec[name]
        ]
    if definition.get("timezone"):
        parts.append(str(definition["timezone"]))
    if isinstance(task, dict) and task.get("type"):
        parts.append(str(task["type"]))
    return ", ".join(parts)


def _only_given(fields: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def _shown(value: object) -> str:
    match value:
        case None:
            return _GONE
        case str() if value and value == value.strip() and value != _GONE:
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)


def _pair(before: str, after: str) -> tuple[str, str]:
    """Show two values. Long ones are shown from where they differ."""
    if len(before) <= _SHOWN and len(after) <= _SHOWN:
        return before, after
    pairs = enumerate(zip(before, after, strict=False))
    same = next((place for place, (old, new) in pairs if old != new), min(len(before), len(after)))
    start = max(0, same - _BEFORE_DIFFERENCE)
    return _cut(before, start), _cut(after, start)


def _cut(text: str, start: int) -> str:
    if len(text) <= _SHOWN:
        return text
    part = text[start : start + _SHOWN]
    return ("…" if start else "") + part + ("…" if start + _SHOWN < len(text) else "")
