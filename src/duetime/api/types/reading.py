"""Check requests about a task type, and make its rules from them."""

import re

from duetime.api.bodies.requests import NAME_PATTERN
from duetime.api.tasks.validation import check_retry, invalid
from duetime.api.types.schemas import DefaultsRequest, TypeRequest
from duetime.errors import FieldError
from duetime.model.flow import OPEN_STATES, Debounce, RateLimit, Throttle, TypeDefaults, TypeRules, Unique, is_key_path
from duetime.model.limits import TypeLimits, wrong_with

_NAME = re.compile(NAME_PATTERN[1:-1])
_RIGHT_PATH = "names of the payload joined by dots, up to 8: customer, order.shop"


def read_rules(asked: TypeRequest, *, is_part: bool = False) -> TypeRules:
    """The rules of the request; raises InvalidInput with every field that is wrong.

    `is_part`: an absent value may have been given but be unreadable, so its absence is no error.
    """
    errors: list[FieldError] = []
    _check_limits(asked, errors, is_part)
    for name in ("throttle", "rate_limit", "debounce", "unique"):
        rule = getattr(asked, name)
        _check_path(f"{name}.key", None if rule is None else rule.key, errors)
    if asked.debounce is not None and asked.unique is not None:
        errors.append(FieldError("unique", "give debounce or unique, not both"))
    defaults = None if asked.defaults is None else _read_defaults(asked.defaults, errors)
    debounce = None
    if (given := asked.debounce) is not None:
        debounce = Debounce(float(given.period), given.key, _plain(given.timeout))
        if debounce.timeout is not None and debounce.timeout < debounce.period:
            errors.append(FieldError("debounce.timeout", "must not be less than period"))
    if errors:
        raise invalid(errors)
    throttle, rate, unique = asked.throttle, asked.rate_limit, asked.unique
    return TypeRules(
        # Rules that set nothing are stored as no rules.
        defaults=defaults if defaults != TypeDefaults() else None,
        limits=asked.limits if asked.limits != TypeLimits() else None,
        throttle=None
        if throttle is None
        else Throttle(throttle.limit, float(throttle.period), throttle.burst, throttle.key),
        rate_limit=None if rate is None else RateLimit(rate.limit, float(rate.period), rate.key),
        debounce=debounce,
        unique=None
        if unique is None
        else Unique(unique.key, OPEN_STATES if unique.states is None else tuple(unique.states), _plain(unique.period)),
    )


def _check_limits(asked: TypeRequest, errors: list[FieldError], is_part: bool) -> None:
    limits = asked.limits
    if limits is None:
        return
    errors += [FieldError(f"limits.{name}", right) for name, right in wrong_with(limits, is_part=is_part)]
    for name, needed in (("concurrency_key", "max_running"), ("rate_key", "rate")):
        path = getattr(limits, name)
        _check_path(f"limits.{name}", path, errors)
        if path is not None and getattr(limits, needed) is None and not is_part:
            errors.append(FieldError(f"limits.{name}", f"only with {needed}"))
    if asked.throttle is not None and limits.rate is not None:
        errors.append(FieldError("throttle", "says the same as limits.rate; give one of them"))


def _check_path(path: str, key: str | None, errors: list[FieldError]) -> None:
    if key is not None and not is_key_path(key):
        errors.append(FieldError(path, _RIGHT_PATH))


def _read_defaults(asked: DefaultsRequest, errors: list[FieldError]) -> TypeDefaults:
    if asked.queue is not None and not _NAME.fullmatch(asked.queue):
        right = "use 1 to 128 letters, digits and . _ : / -, beginning with a letter or digit"
        errors.append(FieldError("defaults.queue", right))
    return TypeDefaults(
        asked.queue,
        asked.priority,
        None if asked.retry is None else check_retry(asked.retry, errors, "defaults.retry"),
        _plain(asked.timeout),
        _plain(asked.sla),
    )


def _plain(seconds: float | None) -> float | None:
    return None if seconds is None else float(seconds)
