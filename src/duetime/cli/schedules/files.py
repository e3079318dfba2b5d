"""Schedules files: `schedules:`, `calendars:`, `defaults:` and `source:` of YAML, TOML or JSON text.

The whole content is checked before anything is sent: unknown keys, duplicate
names, values of the wrong kind.  Each error is one sentence with the file,
the line if it is known, and the key.  No I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from duetime.cli.schedules.documents import Document, Path, read_documents, unknown_key
from duetime.cli.schedules.fields import WrongField, canonical, canonical_dates
from duetime.errors import UsageError

_TOP = ("schedules", "calendars", "defaults", "source")
_SET_BY_APPLY = {
    "name": "is the key above it; leave it out",
    "origin": 'is always "file" here; leave it out',
    "source": "stands at the top of the file; leave it out here",
    "version": "is for single changes; leave it out",
    "force": "is for `duetime schedules put`; leave it out",
}


@dataclass(frozen=True)
class Wanted:
    """A schedule as a file defines it."""

    name: str
    source: str
    #: As it was written, with the defaults of its document filled in.
    definition: dict[str, object]
    canonical: dict[str, object]


@dataclass(frozen=True)
class WantedCalendar:
    name: str
    dates: list[object]
    canonical: object


@dataclass(frozen=True)
class FileText:
    """A file as it was found. `source` is the source of its schedules if the file does not name one; empty: it must."""

    name: str
    body: bytes
    source: str


@dataclass
class Contents:
    """The content of all files together."""

    schedules: dict[str, Wanted] = field(default_factory=dict)
    calendars: dict[str, WantedCalendar] = field(default_factory=dict)
    #: In order. A file that has become empty still names its source.
    sources: list[str] = field(default_factory=list)


def read_contents(files: Iterable[FileText], source: str | None = None) -> Contents:
    """Return the content of the files. Raises a UsageError for the first error."""
    contents = Contents()
    places: dict[tuple[str, str], str] = {}
    for file in files:
        documents = [each for each in read_documents(file.name, file.body) if each.value is not None]
        if not documents:
            raise UsageError(f"{file.name}: it is empty; a schedules file has `schedules:` at its top")
        for document in documents:
            _read_document(document, source, file.source, contents, places)
    return contents


def _read_document(
    document: Document, forced: str | None, usual: str, contents: Contents, places: dict[tuple[str, str], str]
) -> None:
    top = _mapping(document, document.value, ())
    for key in top:
        if key not in _TOP:
            raise document.error((key,), unknown_key(key, _TOP))
    if "schedules" not in top and "calendars" not in top:
        raise document.error((), "has no `schedules:` at its top")
    source = _source(document, top, forced, usual)
    if "schedules" in top and source not in contents.sources:
        contents.sources.append(source)
    defaults = _defaults(document, top)
    schedules, calendars = (_part(document, top, kind) for kind in ("schedules", "calendars"))
    for kind, part in (("schedules", schedules), ("calendars", calendars)):
        for name in part:
            line = document.lines.get((kind, name))
            here = f"{document.name} line {line}" if line is not None else document.name
            if (before := places.setdefault((kind, name), here)) is not here:
                raise document.error((kind, name), f"is given twice, first in {before}")
    for name, value in calendars.items():
        contents.calendars[name] = _calendar(document, name, value)
    for name, value in schedules.items():
        contents.schedules[name] = _schedule(document, name, value, defaults, source)


def _source(document: Document, top: dict[str, object], forced: str | None, usual: str) -> str:
    given = top.get("source")
    if given is not None and (not isinstance(given, str) or not given.strip()):
        raise document.error(("source",), "must be text: what these schedules belong to")
    found = forced or (given if isinstance(given, str) else usual)
    if not found:
        raise document.error((), "says no `source:` and has no name that could stand for it: give --source")
    return found


def _defaults(document: Document, top: dict[str, object]) -> dict[str, object]:
    defaults = _part(document, top, "defaults")
    _check_keys(document, defaults, ("defaults",))
    try:
        canonical(defaults, is_whole=False)
    except WrongField as wrong:
        raise document.error(("defaults", *wrong.path), wrong.message) from wrong
    return defaults


def _schedule(document: Document, name: str, value: object, defaults: dict[str, object], source: str) -> Wanted:
    path: Path = ("schedules", name)
    if not name.strip():
        raise document.error(("schedules",), "has a schedule without a name")
    given = _mapping(document, value, path)
    _check_keys(document, given, path)
    definition = without_none(merged(defaults, given))
    try:
        return Wanted(name, source, definition, canonical(definition))
    except WrongField as wrong:
        raise document.error((*path, *wrong.path), wrong.message) from wrong


def _calendar(document: Document, name: str, value: object) -> WantedCalendar:
    """A list of entries, or a mapping with `dates`, as the API takes it."""
    path: Path = ("calendars", name)
    dates = value
    if isinstance(value, dict):
        for key in value:
            if key != "dates":
                raise document.error((*path, key), unknown_key(key, ["dates"]))
        dates = value.get("dates")
    try:
        found = canonical_dates(dates)
    except WrongField as wrong:
        tail = wrong.path if isinstance(value, dict) else wrong.path[1:]
        raise document.error((*path, *tail), wrong.message) from wrong
    return WantedCalendar(name, dates if isinstance(dates, list) else [], found)


def read_definition(name: str, body: bytes) -> dict[str, object]:
    """A file with one definition, as `put` takes it."""
    document = _only(name, body, "definition")
    given = _mapping(document, document.value, ())
    if "schedules" in given:
        raise document.error(("schedules",), "holds several: `duetime schedules apply -f` takes such a file")
    try:
        canonical({key: value for key, value in given.items() if key not in _SET_BY_APPLY})
    except WrongField as wrong:
        raise document.error(wrong.path, wrong.message) from wrong
    return without_none(given)


def read_calendar(name: str, body: bytes) -> list[object]:
    """A file with the entries of one calendar."""
    document = _only(name, body, "calendar")
    value = document.value
    dates = value.get("dates") if isinstance(value, dict) else value
    if not isinstance(dates, list):
        raise document.error((), "is not a list of dates, nor a mapping with `dates`")
    try:
        canonical_dates(dates)
    except WrongField as wrong:
        raise document.error(wrong.path if isinstance(value, dict) else wrong.path[1:], wrong.message) from wrong
    return dates


def _only(name: str, body: bytes, noun: str) -> Document:
    documents = [each for each in read_documents(name, body) if each.value is not None]
    if len(documents) != 1:
        raise UsageError(f"{name}: it holds {len(documents)} documents and not one {noun}")
    return documents[0]


def _check_keys(document: Document, given: dict[str, object], path: Path) -> None:
    for key, message in _SET_BY_APPLY.items():
        if key in given:
            raise document.error((*path, key), message)


def _mapping(document: Document, value: object, path: Path) -> dict[str, object]:
    if not isinstance(value, dict):
        raise document.error(path, "is not a mapping")
    return value


def _part(document: Document, top: dict[str, object], key: str) -> dict[str, object]:
    """Return the value of a key at the top, or nothing if it is empty."""
    value = top.get(key)
    return _mapping(document, {} if value is None else value, (key,))


def merged(under: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    """Merge two values, mapping by mapping. For other values the upper one counts."""
    found = dict(under)
    for key, value in over.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return found


def without_none(definition: dict[str, object], kept: Sequence[str] = ("payload",)) -> dict[str, object]:
    """An empty field counts as absent. In a payload null is a value."""
    found: dict[str, object] = {}
    for key, value in definition.items():
        if value is None:
            continue
        found[key] = without_none(value) if isinstance(value, dict) and key not in kept else value
    return found
