"""Check what submissions and types ask of flow control, and make rules and tickets from it.

What a submission says itself (`debounce`, `unique`) replaces what its type says; a
task can have only one of the two.
"""

from datetime import datetime, timedelta

from duetime.admin.types import TypeKind
from duetime.api.bodies.requests import TaskRequest
from duetime.errors import FieldError
from duetime.model.flow import (
    OPEN_STATES,
    Debounce,
    DebounceTicket,
    Flow,
    RateTicket,
    TypeDefaults,
    TypeRules,
    Unique,
    UniqueTicket,
    key_named,
    key_of,
    key_of_payload,
)

NO_DEFAULTS = TypeDefaults()
_NO_RULES = TypeRules()


def check_flow(request: TaskRequest, kind: TypeKind | None, now: datetime, errors: list[FieldError]) -> None:
    """Find options that contradict each other, or would be ignored."""
    if request.debounce is not None and request.unique is not None:
        errors.append(FieldError("unique", "give debounce or unique, not both"))
        return
    for name in ("debounce", "unique"):
        asked = getattr(request, name)
        key = None if asked is None else asked.key
        if key is not None and (not 1 <= len(key) <= 255 or not key.isprintable()):
            errors.append(FieldError(f"{name}.key", "use 1 to 255 printable characters"))
    debounce, unique = _rules_for(request, kind)
    if debounce is not None:
        _check_debounce(request, debounce, now, errors)
    if (debounce is not None or unique is not None) and request.idempotency_key is not None:
        rule = "debounced" if debounce is not None else "unique"
        errors.append(FieldError("idempotency_key", f"the task is {rule} and has the key of that; leave this one out"))


def _check_debounce(request: TaskRequest, rule: Debounce, now: datetime, errors: list[FieldError]) -> None:
    for name in ("run_at", "delay"):
        if getattr(request, name) is not None:
            errors.append(FieldError(name, "the task is debounced, which says when it runs; leave this out"))
    if rule.timeout is not None and rule.timeout < rule.period:
        errors.append(FieldError("debounce.timeout", "must not be less than period"))
    if request.expires_at is not None and request.expires_at <= now + timedelta(seconds=rule.period):
        errors.append(FieldError("expires_at", "must be later than the time at which the debounced task is due"))


def flow_of(request: TaskRequest, kind: TypeKind | None, payload: bytes) -> Flow | None:
    """The tickets by which the task is counted, unique or debounced; None if it has none."""
    rate = None if kind is None else kind.rules.rate_limit
    debounce, unique = _rules_for(request, kind)
    if rate is None and debounce is None and unique is None:
        return None
    return Flow(
        None if rate is None else RateTicket(key_of(request.type, payload, rate.key), rate.limit, rate.period),
        None if unique is None else UniqueTicket(_unique_key(request, unique, payload), unique.states, unique.period),
        None
        if debounce is None
        else DebounceTicket(_debounce_key(request, debounce, payload), debounce.period, debounce.timeout),
    )


def _rules_for(request: TaskRequest, kind: TypeKind | None) -> tuple[Debounce | None, Unique | None]:
    """The rules of the submission: its own, or those of its type."""
    if (own := request.debounce) is not None:
        timeout = None if own.timeout is None else float(own.timeout)
        return Debounce(float(own.period), own.key, timeout), None
    if request.unique is not None:
        states = OPEN_STATES if request.unique.states is None else tuple(request.unique.states)
        period = None if request.unique.period is None else float(request.unique.period)
        return None, Unique(request.unique.key, states, period)
    rules = _NO_RULES if kind is None else kind.rules
    return rules.debounce, rules.unique


def _debounce_key(request: TaskRequest, rule: Debounce, payload: bytes) -> bytes:
    if request.debounce is not None:
        return key_named(request.type, request.debounce.key)
    return key_of(request.type, payload, rule.key)


def _unique_key(request: TaskRequest, rule: Unique, payload: bytes) -> bytes:
    if rule.key is None:
        return key_of_payload(request.type, payload)
    return key_of(request.type, payload, rule.key) if request.unique is None else key_named(request.type, rule.key)
