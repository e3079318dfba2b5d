"""Check requests about schedules, and make schedules from them."""

import re
from datetime import datetime

import msgspec
from msgspec import UNSET

from duetime.admin.schemas import JudgeLaterError
from duetime.api.bodies.requests import NAME_PATTERN, TargetRequest, TaskRequest
from duetime.api.schedules.schemas import (
    PreviewRequest,
    SchedulePolicies,
    ScheduleRequest,
    ScheduleTimes,
    SpecRequest,
    TemplateRequest,
)
from duetime.api.tasks.targets import secret_names_of
from duetime.api.tasks.validation import TaskReader, invalid
from duetime.errors import DuetimeError, EgressRefused, FieldError, InvalidInput, NoSecretsKey
from duetime.lifecycle.schedules.stored import NewSchedule
from duetime.model.headers import HIDDEN
from duetime.model.schedule import (
    DEFAULT_CATCHUP_RATE,
    DEFAULT_CATCHUP_WINDOW_SECONDS,
    DEFAULT_MISFIRE_THRESHOLD_SECONDS,
    Misfire,
    Overlap,
    ScheduleBody,
)
from duetime.model.task import DEFAULT_PRIORITY, DEFAULT_QUEUE, DetailedTask, Options
from duetime.model.template import FIELDS, unknown_fields
from duetime.recurrence import LATEST_YEAR, MAXIMUM_ERRORS, Spec, find_spec_errors

_NAME = re.compile(NAME_PATTERN[1:-1])
_RIGHT_NAME = "use 1 to 128 letters, digits and . _ : / -, beginning with a letter or digit"
# The encoder does not know duetime's types of durations; they are numbers.
_encode = msgspec.json.Encoder(enc_hook=float).encode
_NO_TASK = msgspec.Raw(b"{}")


#: After /v1/schedules/ these words are calls of their own.
_TAKEN = ("batch", "preview")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput.at("name", _RIGHT_NAME)
    return name


def read_times(asked: ScheduleTimes) -> ScheduleBody:
    """The body of a schedule that has only its times."""
    if errors := _wrong_bounds(asked):
        raise invalid(errors)
    return ScheduleBody(
        spec=_read_spec(asked.spec),
        task=_NO_TASK,
        timezone=asked.timezone,
        dst=asked.dst,
        jitter=float(asked.jitter),
        start_at=asked.start_at,
        end_at=asked.end_at,
    )


def read_schedule(
    reader: TaskReader, tenant: int, name: str, asked: SchedulePolicies, template: TemplateRequest, now: datetime
) -> NewSchedule:
    """The requested schedule; raises InvalidInput with every field that is wrong."""
    errors: list[FieldError] = []
    task = _read_parts(reader, tenant, name, asked, template, now, errors)
    _check_policies(asked, errors)
    if errors or task is None:
        raise invalid(errors)
    window, rate = asked.catchup_window, asked.catchup_rate
    body = msgspec.structs.replace(
        read_times(asked),
        task=msgspec.Raw(_encode(_shown(template, task))),
        max_fires=asked.max_fires,
        overlap=asked.overlap,
        misfire=asked.misfire,
        catchup_window=DEFAULT_CATCHUP_WINDOW_SECONDS if window is msgspec.UNSET else float(window),
        catchup_rate=DEFAULT_CATCHUP_RATE if rate is msgspec.UNSET else rate,
        pause_on_failure=asked.pause_on_failure,
        misfire_threshold=float(asked.misfire_threshold),
    )
    return NewSchedule(
        name=name,
        body=body,
        task=task,
        expires_after=None if template.expires_after is None else float(template.expires_after),
        origin=asked.origin,
        source=asked.source,
        is_paused=asked.paused,
        note=asked.note,
        expected_version=asked.version,
        is_forced=asked.force,
    )


def _shown(asked: TemplateRequest, task: DetailedTask) -> TemplateRequest:
    """The template as it is stored: what the type gives is left out, other defaults are written out."""
    queue, priority = asked.queue, asked.priority
    if queue is UNSET and task.lane.queue == DEFAULT_QUEUE:
        queue = DEFAULT_QUEUE
    if priority is UNSET and task.lane.priority.word == DEFAULT_PRIORITY:
        priority = DEFAULT_PRIORITY
    return msgspec.structs.replace(
        asked,
        # An absent payload is null, as it is in a task.
        payload=msgspec.Raw(task.payload),
        queue=queue,
        priority=priority,
        concurrency_key=UNSET if asked.concurrency_key is None else asked.concurrency_key,
        rate_key=UNSET if asked.rate_key is None else asked.rate_key,
        target=None if asked.target is None else _shown_target(asked.target),
    )


def _shown_target(asked: TargetRequest) -> TargetRequest:
    """The target with its secrets hidden: they are stored, sealed, with the data that its tasks are made from."""
    secret = secret_names_of(asked)
    headers = {name: HIDDEN if name in secret else value for name, value in asked.headers.items()}
    return msgspec.structs.replace(asked, headers=headers, secret_headers=sorted(secret) or UNSET)


def _read_spec(asked: SpecRequest) -> Spec:
    return Spec(
        cron=(asked.cron,) if isinstance(asked.cron, str) else tuple(asked.cron),
        every=None if asked.every is None else float(asked.every),
        phase=float(asked.phase) or 0,
        after=None if asked.after is None else float(asked.after),
        rrule=(asked.rrule,) if isinstance(asked.rrule, str) else tuple(asked.rrule),
        calendar=tuple(asked.calendar),
        dates=tuple(asked.dates),
        exclude=tuple(asked.exclude),
    )


def _read_task(
    reader: TaskReader, tenant: int, name: str, asked: TemplateRequest, now: datetime, errors: list[FieldError]
) -> DetailedTask | None:
    request = TaskRequest(
        type=asked.type,
        payload=asked.payload,
        queue=asked.queue,
        priority=asked.priority,
        target=asked.target,
        retry=asked.retry,
        timeout=asked.timeout,
        requires=asked.requires,
        sla=asked.sla,
        delivery=asked.delivery,
        labels=asked.labels,
        concurrency_key=None if asked.concurrency_key is UNSET else asked.concurrency_key,
        rate_key=None if asked.rate_key is UNSET else asked.rate_key,
    )
    try:
        task = reader.read(request, tenant, now).detailed()
    except EgressRefused as error:
        [refusal] = error.errors
        raise EgressRefused.at(f"task.{refusal.path}", refusal.message) from error
    except NoSecretsKey:
        # The schedule itself is right.
        raise
    except DuetimeError as error:
        found = error.errors or (FieldError("", error.detail),)
        errors += [FieldError(f"task.{each.path}".rstrip("."), each.message) for each in found]
        return None
    unknown = unknown_fields(task.payload)
    if unknown:
        known = ", ".join("{{" + field + "}}" for field in FIELDS)
        errors.append(FieldError("task.payload", f"{{{{{unknown[0][:40]}}}}} is not a field; there are {known}"))
        return None
    options = msgspec.structs.replace(task.options or Options(), schedule=name)
    return msgspec.structs.replace(task, options=options)


def _read_parts(
    reader: TaskReader,
    tenant: int,
    name: str,
    asked: ScheduleTimes,
    template: TemplateRequest | None,
    now: datetime,
    errors: list[FieldError],
) -> DetailedTask | None:
    errors += _wrong_name(name) + _wrong_bounds(asked)
    return None if template is None else _read_task(reader, tenant, name, template, now, errors)


def _wrong_name(name: str) -> list[FieldError]:
    if not _NAME.fullmatch(name):
        return [FieldError("name", _RIGHT_NAME)]
    return [FieldError("name", f"{name} is the name of a call; take another")] if name in _TAKEN else []


def _wrong_bounds(asked: ScheduleTimes) -> list[FieldError]:
    errors = [
        FieldError(path, f"must lie within the years 1970 to {LATEST_YEAR}")
        for path, instant in (("start_at", asked.start_at), ("end_at", asked.end_at))
        if instant is not None and not 1970 <= instant.year <= LATEST_YEAR
    ]
    if not errors and asked.start_at is not None and asked.end_at is not None and asked.end_at <= asked.start_at:
        errors.append(FieldError("end_at", "must be later than start_at"))
    return errors + _named_twice(asked.spec)


def _named_twice(spec: SpecRequest) -> list[FieldError]:
    """Calendars that are named more than once."""
    seen: set[str] = set()
    errors: list[FieldError] = []
    for place, each in enumerate(spec.exclude):
        if isinstance(each, str) or each.calendar is None:
            continue
        if each.calendar in seen and len(errors) < MAXIMUM_ERRORS:
            path = f"spec.exclude[{place}].calendar"
            errors.append(FieldError(path, f'calendar "{each.calendar[:100]}" is named before; name it once'))
        seen.add(each.calendar)
    return errors


def wrong_with_schedule(
    reader: TaskReader, tenant: int, name: str, asked: ScheduleRequest | PreviewRequest, now: datetime
) -> list[FieldError]:
    """Everything wrong with a refused schedule, its spec part by part; fields are not checked against each other."""
    errors: list[FieldError] = []
    try:
        _read_parts(reader, tenant, name, asked, asked.task, now, errors)
    except JudgeLaterError:
        # Only its payload is left to check, and that takes longer than other requests should wait.
        pass
    except EgressRefused as refusal:
        errors += refusal.errors
    bare = msgspec.structs.replace(asked, start_at=None, end_at=None)
    definition = read_times(bare).definition(name)
    return errors + [FieldError(each.path, each.message) for each in find_spec_errors(definition)]


def _check_policies(asked: SchedulePolicies, errors: list[FieldError]) -> None:
    """Find policies that contradict each other, or that would be ignored."""
    if asked.spec.after is not None and asked.overlap is not Overlap.SKIP:
        errors.append(FieldError("overlap", "a schedule with `after` waits for its run to end; leave overlap out"))
    if asked.spec.after is not None and asked.misfire is not Misfire.FIRE_LATEST:
        errors.append(FieldError("misfire", "a schedule with `after` has no times to miss; leave misfire out"))
    if asked.spec.after is not None and asked.misfire_threshold != DEFAULT_MISFIRE_THRESHOLD_SECONDS:
        wrong = "a schedule with `after` has no times to miss; leave misfire_threshold out"
        errors.append(FieldError("misfire_threshold", wrong))
    if asked.misfire is Misfire.FIRE_ALL and asked.overlap is Overlap.SKIP and asked.spec.after is None:
        errors.append(
            FieldError("overlap", "skip would leave out what misfire fire_all makes up for; use buffer_all or allow")
        )
    if asked.misfire is Misfire.SKIP and asked.catchup_window is not msgspec.UNSET:
        errors.append(FieldError("catchup_window", "nothing is caught up with misfire skip; leave it out"))
    if asked.misfire is not Misfire.FIRE_ALL and asked.catchup_rate is not msgspec.UNSET:
        errors.append(FieldError("catchup_rate", "only with misfire fire_all; leave it out"))
