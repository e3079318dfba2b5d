"""What a list is asked for, and the place in it where the next page begins.

A cursor is opaque to its user: a version, the tenant, a digest of the filter,
a position, the time that its list treats as now (if it does), and a check sum.  It
gives no right to anything (every query is confined to the tenant's own lanes);
the checks only tell a cursor of another list, tenant or program from the end of
this list.
"""

import base64
import binascii
import hashlib
import re
import struct
import uuid
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from duetime.errors import FieldError, InvalidInput
from duetime.ids import LATEST_MS
from duetime.model.confinement import Confinement
from duetime.model.task import SHOWN_STATES, PriorityClass, TaskState

DEFAULT_LIMIT = 50
MAX_LIMIT = 200

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_LABEL_KEY = re.compile(r"[A-Za-z0-9._:/-]{1,63}")
_MAX_LABELS = 32
_MAX_LABEL_VALUE = 255

_CURSOR_VERSION = 2
_CURSOR = struct.Struct(">BI8s16sQ")
_CHECK_BYTES = 6

Item = TypeVar("Item")


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """Some items of a list; a page may be short and still have a next one, but is empty only at the end."""

    items: list[Item]
    next: str | None


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks to find: all fields that are set must match. The due time is from_ms <= due < to_ms."""

    state: TaskState | None = None
    type: str | None = None
    queue: str | None = None
    priority: PriorityClass | None = None
    #: "key=value", sorted; use `of` or `parse_labels`.
    labels: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    #: Made by the schedule of this name.
    schedule: str | None = None
    #: For the caller only these tasks exist.
    within: Confinement | None = None

    @classmethod
    def of(
        cls,
        state: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        labels: Sequence[str] = (),
        from_ms: int | None = None,
        to_ms: int | None = None,
        schedule: str | None = None,
    ) -> "TaskFilter":
        """Make a filter from what a user wrote. `InvalidInput` names the field that is wrong."""
        if from_ms is not None and to_ms is not None and from_ms > to_ms:
            raise InvalidInput.at("to", "must not lie before `from`")
        try:
            return cls(
                state=parse_state(state),
                type=_parse_name("type", type),
                queue=_parse_name("queue", queue),
                priority=parse_priority(priority),
                labels=parse_labels(labels),
                from_ms=from_ms,
                to_ms=to_ms,
                schedule=_parse_name("schedule", schedule),
            )
        except InvalidInput:
            raise InvalidInput.all(_wrong_with(state, type, queue, priority, labels, schedule)) from None

    @property
    def labels_json(self) -> str | None:
        """The JSON object that a task's labels must contain."""
        if not self.labels:
            return None
        values: dict[str, list[str]] = {}
        for label in self.labels:
            key, _, value = label.partition("=")
            values.setdefault(key, []).append(value)
        # A task has one value for each label: two values cannot both match, and a list is contained in no text.
        wanted = {key: texts[0] if len(texts) == 1 else texts for key, texts in values.items()}
        return msgspec.json.encode(wanted).decode()

    @property
    def earliest(self) -> uuid.UUID:
        """The lowest id or wake of the wanted time."""
        return uuid.UUID(int=_within_reach(self.from_ms) << 80 if self.from_ms is not None else 0)

    @property
    def latest(self) -> uuid.UUID:
        """An id above every id or wake of the wanted time."""
        return uuid.UUID(int=_within_reach(self.to_ms) << 80 if self.to_ms is not None else (1 << 128) - 1)

    @property
    def type_likes(self) -> list[str] | None:
        """Patterns, one of which a task's type must fit. A type that is named was checked already (`scan.fitting`)."""
        return None if self.within is None or self.type is not None else self.within.type_likes

    def digest(self) -> bytes:
        """A digest of what was asked for, without the caller: a position means the same for every caller."""
        asked = msgspec.to_builtins(self)
        del asked["within"]
        return hashlib.blake2b(msgspec.json.encode(asked), digest_size=8).digest()


def make_cursor(tenant: int, wanted: TaskFilter, position: uuid.UUID, until_ms: int = 0) -> str:
    body = _CURSOR.pack(_CURSOR_VERSION, tenant, wanted.digest(), position.bytes, until_ms)
    return base64.urlsafe_b64encode(body + _check(body)).rstrip(b"=").decode()


def read_cursor(tenant: int, wanted: TaskFilter, cursor: str) -> uuid.UUID:
    """The position in a cursor of exactly this list; `InvalidInput` for any other text."""
    position, until_ms = _read(tenant, wanted, cursor)
    if until_ms:
        raise _of_another_list()
    return position


def read_timed_cursor(tenant: int, wanted: TaskFilter, cursor: str) -> tuple[uuid.UUID, int]:
    """The position and the time in a cursor of a list that begins at a time."""
    position, until_ms = _read(tenant, wanted, cursor)
    if not until_ms:
        raise _of_another_list()
    return position, until_ms


def _read(tenant: int, wanted: TaskFilter, cursor: str) -> tuple[uuid.UUID, int]:
    try:
        packed = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        packed = b""
    body, check = packed[:-_CHECK_BYTES], packed[-_CHECK_BYTES:]
    # The last character has unused bits: only one way to write it is accepted.
    is_ours = base64.urlsafe_b64encode(packed).rstrip(b"=").decode() == cursor
    if not is_ours or len(body) != _CURSOR.size or check != _check(body) or body[0] != _CURSOR_VERSION:
        raise InvalidInput.at("cursor", "not a cursor of this list; use `next` of the page before, or none")
    _, of_tenant, digest, position, until_ms = _CURSOR.unpack(body)
    if of_tenant != tenant or digest != wanted.digest():
        raise _of_another_list()
    return uuid.UUID(bytes=position), until_ms


def _of_another_list() -> InvalidInput:
    return InvalidInput.at("cursor", "belongs to another list; repeat the filters it came with, or use no cursor")


def check_limit(limit: int, most: int = MAX_LIMIT) -> None:
    if not 1 <= limit <= most:
        raise InvalidInput.at("limit", f"must be from 1 to {most}")


def parse_state(word: str | None) -> TaskState | None:
    try:
        return None if word is None else TaskState(word)
    except ValueError:
        raise InvalidInput.at("state", f"must be one of {', '.join(SHOWN_STATES)}") from None


def parse_priority(word: str | None) -> PriorityClass | None:
    for priority in PriorityClass:
        if priority.word == word:
            return priority
    if word is not None:
        raise InvalidInput.at("priority", f"must be one of {', '.join(each.word for each in PriorityClass)}")
    return None


def parse_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels to look for, each once."""
    if len(labels) > _MAX_LABELS:
        raise InvalidInput.at("label", f"at most {_MAX_LABELS} labels")
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals or not _LABEL_KEY.fullmatch(key) or len(value) > _MAX_LABEL_VALUE or not value.isprintable():
            raise InvalidInput.at("label", "must be key=value, as the task's labels were given")
    return tuple(sorted(set(labels)))


def _parse_name(field: str, name: str | None) -> str | None:
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidInput.at(field, "must be 1 to 128 letters, digits or . _ : / - and begin with a letter or digit")
    return name


def _wrong_with(
    state: str | None,
    type: str | None,
    queue: str | None,
    priority: str | None,
    labels: Sequence[str],
    schedule: str | None,
) -> list[FieldError]:
    """Everything that is wrong with what a user wrote, if something is."""
    errors: list[FieldError] = []
    for check in (
        lambda: parse_state(state),
        lambda: _parse_name("type", type),
        lambda: _parse_name("queue", queue),
        lambda: parse_priority(priority),
        lambda: parse_labels(labels),
        lambda: _parse_name("schedule", schedule),
    ):
        try:
            check()
        except InvalidInput as error:
            errors += error.errors
    return errors


def _within_reach(moment_ms: int) -> int:
    return min(max(moment_ms, 0), LATEST_MS)


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK_BYTES, person=b"duetime cursor").digest()
