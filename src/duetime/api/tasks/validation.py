"""Check requests for what their types cannot express, and make tasks of them.

All errors of one task are reported at once, each with its path.  A task that passes
can be stored: names and texts fit their columns, times and numbers are in range,
and a payload is JSON that any worker can read.
"""

import copy
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import UNSET, UnsetType

from duetime.admin.schemas import JudgeLaterError
from duetime.admin.types import TypeKind, Types
from duetime.api.bodies.payloads import are_readable, decode_any, read_payload
from duetime.api.bodies.requests import (
    LABEL_KEY_PATTERN,
    NAME_PATTERN,
    PlainTaskRequest,
    RetryRequest,
    TaskRequest,
)
from duetime.api.tasks.flow import NO_DEFAULTS, check_flow, flow_of
from duetime.api.tasks.targets import check_egress, check_target, seal_target, secret_names_of
from duetime.errors import DuetimeError, FieldError, InvalidInput
from duetime.model.egress_rules import EgressJudge
from duetime.model.flow import TypeDefaults
from duetime.model.retry import DEFAULT_RETRY, RetryPolicy
from duetime.model.task import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    Kind,
    LaneKey,
    NewTask,
    Options,
    PriorityClass,
    make_task,
)
from duetime.model.vault import FINGERPRINT_BYTES, Vault

MAX_AHEAD = timedelta(days=3653)
REMEMBERED_NAMES = 10_000
#: How long payloads of a list are judged before other requests are served.
SECONDS_AT_ONCE = 0.01
#: Up to this many bytes, payloads without a schema are read in a few milliseconds.
BYTES_AT_ONCE = 2 * 1024 * 1024
#: The most errors that are reported for one task; the client finds the rest when these are mended.
MAX_ERRORS = 20

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(NAME_PATTERN[1:-1])
_LABEL_KEY = re.compile(LABEL_KEY_PATTERN[1:-1])
_RIGHT_NAME = "use 1 to 128 letters, digits and . _ : / -, beginning with a letter or digit"
_RIGHT_TEXT = "use 1 to 255 printable characters"
_PRIORITIES = {priority.word: priority for priority in PriorityClass}
#: The number of attempts in the fingerprint of a policy that gives none, whatever the default is: the same request
#: has to give the same fingerprint under every version.
_FINGERPRINT_MAX_ATTEMPTS = 5
#: Fields that are left out of a fingerprint when they are absent: fingerprints are older than these fields.
_LATER_FIELDS = ("concurrency_key", "rate_key", "debounce", "unique")

# The encoder does not know the duration types, which are numbers.
_encode_sorted = msgspec.json.Encoder(order="sorted", enc_hook=float).encode


EgressOf = Callable[[int], EgressJudge | None]


class NotPlainError(Exception):
    """A task of a batch is not plain, so `read` has to read it."""


class TaskReader:
    """Makes new tasks from requests, and remembers the lanes and names that it has checked."""

    def __init__(
        self, types: Types | None = None, vault: Vault | None = None, egress_of: EgressOf = lambda _: None
    ) -> None:
        self._registered = types
        self._egress_of = egress_of
        self.vault = vault or Vault()
        #: Callers of a patient reader wait for a turn before each task, so it may judge payloads that take some time.
        self.is_patient = False
        #: The lane of a tenant, queue and priority; queue and priority as they were given or left out.
        self._lanes: dict[tuple[int, str | UnsetType, str | UnsetType], LaneKey] = {}
        self._keys: dict[LaneKey, LaneKey] = {}
        self._types: set[str] = set()

    def made_patient(self) -> "TaskReader":
        """A patient reader that shares what this one knows."""
        patient = copy.copy(self)
        patient.is_patient = True
        return patient

    def read(self, request: TaskRequest, tenant: int, now: datetime, trace: str | None = None) -> NewTask:
        """Make the task; raises InvalidInput or TooLarge, and JudgeLaterError."""
        found = None if trace is not None or _has_details(request) else self._judge_plain(request, tenant)
        if found is None:
            return self._read_with_care(request, tenant, now, trace)
        lane, kind = found
        errors: list[FieldError] = []
        run_at = _check_times(request, now, errors)
        if errors:
            raise invalid([*errors, *self._wrong_with_payload(request, kind)])
        payload = self._read_payload_of(request, kind)
        return make_task(lane, request.type, payload, run_at, _plain(request.delay), request.expires_at)

    def read_plain_one(self, request: TaskRequest, tenant: int) -> NewTask | None:
        """The same for a plain request, as most are; None: use `read`."""
        lane = self._lanes.get((tenant, request.queue, request.priority))
        if (
            lane is None
            or request.type not in self._types
            or request.run_at is not None
            or request.delay is not None
            or _has_details(request)
        ):
            return None
        kind = self._registered.kind(tenant, request.type) if self._registered else None
        if kind is None:
            return NewTask(lane, request.type, read_payload(request.payload))
        if kind.rules.matters_to_submissions:
            return None
        return NewTask(lane, request.type, self._read_payload_of(request, kind))

    def read_plain(self, requests: Sequence[PlainTaskRequest], tenant: int, now: datetime) -> list[NewTask]:
        """Make the first tasks of the requests, as many as there is time for, at least one.

        NotPlainError: one of them is not plain after all, so `read` has to read it.
        """
        tasks: list[NewTask] = []
        unread: list[bytes] = []
        unread_bytes = 0
        latest = now + MAX_AHEAD
        ends_at = time.perf_counter() + SECONDS_AT_ONCE
        # The tasks of a batch are mostly alike.
        judged: dict[tuple[object, ...], tuple[LaneKey, TypeKind | None] | None] = {}
        for request in requests:
            key = (request.type, request.queue, request.priority)
            if key not in judged:
                judged[key] = self._judge_plain(request, tenant)
            found = judged[key]
            if found is None:
                raise NotPlainError
            kind = found[1]
            if kind is None or kind.schema is None:
                payload = bytes(request.payload) or b"null"
                unread_bytes += len(payload)
                if tasks and unread_bytes > BYTES_AT_ONCE:
                    break
                unread.append(payload)
            else:
                if tasks and time.perf_counter() >= ends_at:
                    break
                try:
                    payload = self._read_payload_of(request, kind)
                except JudgeLaterError:
                    if not tasks:
                        raise
                    break
                except DuetimeError as error:
                    raise NotPlainError from error
            run_at, delay = request.run_at, request.delay
            if run_at is None and delay is None:
                tasks.append(NewTask(found[0], request.type, payload))
                continue
            if run_at is not None and (delay is not None or not _EPOCH <= run_at <= latest):
                raise NotPlainError
            tasks.append(make_task(found[0], request.type, payload, run_at, _plain(delay)))
        if not are_readable(unread):
            raise NotPlainError
        return tasks

    def _judge_plain(self, request: PlainTaskRequest, tenant: int) -> tuple[LaneKey, TypeKind | None] | None:
        lane = self._lanes.get((tenant, request.queue, request.priority))
        kind = self._registered.kind(tenant, request.type) if self._registered else None
        if lane is None or request.type not in self._types:
            return None
        return None if kind is not None and kind.rules.matters_to_submissions else (lane, kind)

    def _read_with_care(self, request: TaskRequest, tenant: int, now: datetime, trace: str | None) -> NewTask:
        errors: list[FieldError] = []
        kind = self._registered.kind(tenant, request.type) if self._registered else None
        defaults = NO_DEFAULTS if kind is None or kind.rules.defaults is None else kind.rules.defaults
        lane = self._lane(request, tenant, defaults, errors)
        if request.type not in self._types:
            if not _NAME.fullmatch(request.type):
                errors.append(FieldError("type", _RIGHT_NAME))
            elif len(self._types) < REMEMBERED_NAMES:
                self._types.add(request.type)
        run_at = _check_times(request, now, errors)
        check_labels(request.labels, errors)
        for name in ("idempotency_key", "concurrency_key", "rate_key"):
            _check_text(name, getattr(request, name), errors)
        target = check_target(request.target, errors) if request.target is not None else None
        retry = check_retry(request.retry, errors) if request.retry is not None else None
        if target is not None and request.requires:
            errors.append(FieldError("requires", "only for tasks that workers run; leave it out, or leave out target"))
        check_flow(request, kind, now, errors)
        if errors:
            raise invalid([*errors, *self._wrong_with_payload(request, kind)])
        if target is not None:
            check_egress(target.url, self._egress_of(tenant))
        payload = self._read_payload_of(request, kind)
        secret: list[str] = []
        if target is not None and request.target is not None:
            secret = secret_names_of(request.target)
            target = seal_target(target, secret, self.vault, tenant)
        options = Options(
            target=target,
            retry=retry or defaults.retry,
            timeout=defaults.timeout if request.timeout is None else float(request.timeout),
            sla=defaults.sla if request.sla is None else float(request.sla),
            delivery=request.delivery,
            requires=list(lane.requires),
            idempotency_key=request.idempotency_key,
            trace=trace,
            concurrency_key=request.concurrency_key,
            rate_key=request.rate_key,
        )
        return make_task(
            lane,
            request.type,
            payload,
            run_at,
            _plain(request.delay),
            request.expires_at,
            options if options != _NO_OPTIONS else None,
            request.labels,
            request.idempotency_key,
            float(request.idempotency_ttl),
            b"" if request.idempotency_key is None else self._fingerprint(request, has_secrets=bool(secret)),
            flow_of(request, kind, payload),
        )

    def _fingerprint(self, request: TaskRequest, *, has_secrets: bool) -> bytes:
        """The fingerprint of a request; with secrets it uses a key, so that nobody can find the request by trying."""
        text = canonical_text(request)
        # After the fingerprint with a key comes the plain one, under which the same task was stored before encryption.
        return self.vault.digest(text) + plain_fingerprint(text) if has_secrets else plain_fingerprint(text)

    def _lane(self, request: TaskRequest, tenant: int, defaults: TypeDefaults, errors: list[FieldError]) -> LaneKey:
        queue = (defaults.queue or DEFAULT_QUEUE) if request.queue is UNSET else request.queue
        priority = (defaults.priority or DEFAULT_PRIORITY) if request.priority is UNSET else request.priority
        if not _NAME.fullmatch(queue):
            errors.append(FieldError("queue", _RIGHT_NAME))
        for place, tag in enumerate(request.requires):
            if not _NAME.fullmatch(tag):
                errors.append(FieldError(f"requires[{place}]", _RIGHT_NAME))
        kind = Kind.PULL if request.target is None else Kind.PUSH
        requires = tuple(sorted(set(request.requires)))
        key = LaneKey(tenant, queue, _PRIORITIES[priority], kind, requires)
        if errors:
            return key
        if len(self._keys) >= REMEMBERED_NAMES:
            self._keys.clear()
            self._lanes.clear()
        key = self._keys.setdefault(key, key)
        if kind is Kind.PULL and not requires and defaults is NO_DEFAULTS:
            self._lanes[tenant, request.queue, request.priority] = key
        return key

    def _read_payload_of(self, request: PlainTaskRequest, kind: TypeKind | None) -> bytes:
        payload = read_payload(request.payload)
        if kind is not None and kind.schema is not None and self._registered is not None:
            schema = self._registered.schemas.find(kind.schema)
            size = len(payload)
            if not self.is_patient and not schema.is_light(size):
                raise JudgeLaterError(kind.schema, self._registered.schemas)
            wrong = schema.judge(decode_any(payload), size)
            if wrong:
                raise invalid([FieldError(f"payload{path}", message) for path, message in wrong])
        return payload

    def _wrong_with_payload(self, request: PlainTaskRequest, kind: TypeKind | None) -> tuple[FieldError, ...]:
        """The payload errors of a request that is refused anyway; none if the payload cannot be judged at once."""
        try:
            self._read_payload_of(request, kind)
        except DuetimeError as error:
            return error.errors
        except JudgeLaterError:
            pass
        return ()


_NO_OPTIONS = Options()


def _has_details(request: TaskRequest) -> bool:
    """Whether the request has more than a plain request and its time."""
    return (
        request.target is not None
        or request.labels is not None
        or request.idempotency_key is not None
        or request.retry is not None
        or request.timeout is not None
        or request.expires_at is not None
        or request.sla is not None
        or request.delivery != "at_least_once"
        or request.concurrency_key is not None
        or request.rate_key is not None
        or request.debounce is not None
        or request.unique is not None
        or bool(request.requires)
    )


def invalid(errors: Sequence[FieldError]) -> InvalidInput:
    return InvalidInput.all(errors, MAX_ERRORS)


def plain_fingerprint(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=FINGERPRINT_BYTES).digest()


def canonical_text(request: TaskRequest) -> bytes:
    """The request in one form, however it was formatted: defaults written out, names sorted."""
    plain = msgspec.structs.asdict(request)
    plain["queue"] = DEFAULT_QUEUE if request.queue is UNSET else request.queue
    plain["priority"] = DEFAULT_PRIORITY if request.priority is UNSET else request.priority
    for name in _LATER_FIELDS:
        if plain[name] is None:
            del plain[name]
    if request.retry is not None and request.retry.max_attempts is UNSET:
        plain["retry"] = msgspec.structs.replace(request.retry, max_attempts=_FINGERPRINT_MAX_ATTEMPTS)
    plain["payload"] = decode_any(bytes(request.payload) or b"null")
    return _encode_sorted(plain)


def check_run_at(run_at: datetime, now: datetime, errors: list[FieldError], path: str = "run_at") -> datetime:
    """A time within reach; a time before 1970 counts as 1970."""
    if run_at > now + MAX_AHEAD:
        errors.append(FieldError(path, f"is more than 10 years ahead; at most {(now + MAX_AHEAD):%Y-%m-%dT%H:%M:%SZ}"))
    return max(run_at, _EPOCH)


def _check_times(request: TaskRequest, now: datetime, errors: list[FieldError]) -> datetime | None:
    run_at, before = request.run_at, len(errors)
    if run_at is not None:
        if request.delay is not None:
            errors.append(FieldError("delay", "give run_at or delay, not both"))
        run_at = check_run_at(run_at, now, errors)
    if request.expires_at is not None and len(errors) == before:
        due_at = run_at or now + timedelta(seconds=float(request.delay or 0.0))
        if request.expires_at <= due_at:
            errors.append(FieldError("expires_at", "must be later than the time at which the task is due"))
        elif request.expires_at > now + 2 * MAX_AHEAD:
            errors.append(FieldError("expires_at", "is more than 20 years ahead; leave it out"))
    return run_at


def check_labels(labels: dict[str, str] | None, errors: list[FieldError]) -> None:
    for key, value in (labels or {}).items():
        path = f"labels.{key[:80]}"
        if not _LABEL_KEY.fullmatch(key):
            errors.append(
                FieldError(
                    path, "a label's name is 1 to 63 letters, digits and . _ : / -, beginning with a letter or digit"
                )
            )
        elif len(value) > 255 or not value.isprintable():
            errors.append(FieldError(path, "a label's value is at most 255 printable characters"))


def _check_text(path: str, text: str | None, errors: list[FieldError]) -> None:
    if text is not None and (not 1 <= len(text) <= 255 or not text.isprintable()):
        errors.append(FieldError(path, _RIGHT_TEXT))


def wrong_worker_name(name: str) -> list[FieldError]:
    if 1 <= len(name) <= 200 and name.isprintable():
        return []
    return [FieldError("worker", "use 1 to 200 printable characters")]


def wrong_names(path: str, names: Sequence[str]) -> list[FieldError]:
    return [
        FieldError(f"{path}[{place}]", _RIGHT_NAME) for place, name in enumerate(names) if not _NAME.fullmatch(name)
    ]


def check_retry(retry: RetryRequest, errors: list[FieldError], path: str = "retry") -> RetryPolicy:
    min_backoff = float(retry.min_backoff)
    if retry.max_backoff is msgspec.UNSET:
        max_backoff = max(DEFAULT_RETRY.max_backoff, min_backoff)
    else:
        max_backoff = float(retry.max_backoff)
    if max_backoff < min_backoff:
        errors.append(FieldError(f"{path}.max_backoff", "must not be less than min_backoff"))
    return RetryPolicy(
        DEFAULT_RETRY.max_attempts if retry.max_attempts is UNSET else retry.max_attempts,
        min_backoff,
        max_backoff,
        retry.max_doublings,
        _plain(retry.max_retry_duration),
        DEFAULT_RETRY.max_crashes if retry.max_crashes is UNSET else retry.max_crashes,
    )


def _plain(seconds: float | None) -> float | None:
    return None if seconds is None else float(seconds)


def index_path(place: int, error: DuetimeError) -> list[FieldError]:
    """The errors of one item, as errors of the whole batch."""
    found = error.errors or (FieldError("", error.detail),)
    return [FieldError(f"[{place}].{each.path}".rstrip("."), each.message) for each in found]
