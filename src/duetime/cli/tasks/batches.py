"""Submit a file of tasks in batches while it is read, and report each refused task.

The tasks of a file are sent as they are written there.  A wrong line does not stop
the others. A file that is not in its declared format is refused before anything is
sent.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from duetime.cli.connect import Refused, ask, open_client, sentence_of, talk
from duetime.cli.output import Progress, print_line, print_note, printable
from duetime.errors import UsageError
from duetime.sdk.calls.tasks import MAX_BATCH, MAX_BATCH_BYTES, is_for_now, submit_batch
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import SdkError
from duetime.sdk.shapes.tasks import BatchItem

#: After the first answer, a restart of the server does not end a long import.
_RETRY_SECONDS = 60.0
_SHOWN_REFUSALS = 20
_CHOICES = ({"delay", "run_at"}, {"unique", "debounce"})

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _RawBatch(msgspec.Struct):
    results: list[msgspec.Raw]


_decode_raw_batch = msgspec.json.Decoder(_RawBatch).decode


@dataclass(frozen=True)
class Item:
    """One task of the file, ready to be sent, or what is wrong with it."""

    line: int
    body: bytes
    problem: str | None = None


def submit_file(arguments: argparse.Namespace, defaults: dict[str, object]) -> int:
    """Send everything. Exit code 1 if something was refused."""
    with _open(arguments.file) as file:
        parts, noun = _read_parts(arguments.file, file)
        items = _items(parts, defaults)
        work = _Import(arguments, noun)
        try:
            return talk(arguments, lambda client: work.run(client, items))
        finally:
            work.progress.clear()


class _Import:
    """A file that is being submitted, and the results so far."""

    def __init__(self, arguments: argparse.Namespace, noun: str) -> None:
        self._arguments = arguments
        self._noun = noun
        self._accepted = self._repeated = self._refused = 0
        self._last_line = 0
        self.progress = Progress()

    def run(self, client: Client, items: Iterator[Item]) -> int:
        patient: Client | None = None
        try:
            for batch in _batches(items):
                self._send(patient or client, batch)
                patient = patient or open_client(self._arguments, _RETRY_SECONDS)
        except SdkError as error:
            if not self._last_line:
                raise
            self.progress.clear()
            raise Refused(
                f"stopped after {self._noun} {self._last_line:,} ({self._accepted:,} tasks were accepted; go on from "
                f"the next one): {sentence_of(error, 'the server')}"
            ) from error
        finally:
            if patient is not None:
                patient.close()
        self.progress.clear()
        self._sum_up()
        return 1 if self._refused else 0

    def _send(self, client: Client, batch: list[Item]) -> None:
        good = [item for item in batch if item.problem is None]
        results: list[BatchItem] = []
        raw: list[msgspec.Raw] = []
        if good:
            results, raw = _send_until_judged(client, good)
        said = {item.line: (result, text) for item, result, text in zip(good, results, raw, strict=True)}
        for item in batch:
            result, text = said.get(item.line, (None, msgspec.Raw(b"")))
            self._tell(item, result, text)
        self._last_line = batch[-1].line
        self.progress.say(f"{self._accepted:,} accepted, {self._refused:,} refused")

    def _tell(self, item: Item, result: BatchItem | None, text: msgspec.Raw) -> None:
        problem = item.problem
        if result is not None and result.error is not None:
            named = [f"{each.path}: {each.message}" for each in result.error.errors if each.path]
            problem = "; ".join(named) or result.error.detail or result.error.title
        if problem is None and result is not None:
            self._accepted += 1
            self._repeated += result.repeated
        else:
            self._refused += 1
        if self._arguments.json:
            fields = {"line": item.line, "error": {"code": "unreadable", "detail": problem}}
            if result is not None:
                fields = {"line": item.line, **_decode_object(text)}
            print_line(msgspec.json.encode(fields).decode())
        elif problem is not None and self._refused <= _SHOWN_REFUSALS:
            self.progress.clear()
            print_note(f"{self._noun} {item.line:,}: {printable(problem)}")
        elif problem is not None and self._refused == _SHOWN_REFUSALS + 1:
            self.progress.clear()
            print_note("… more are refused; --json lists them all")

    def _sum_up(self) -> None:
        total = self._accepted + self._refused
        words = f"Accepted {self._accepted:,} of {total:,} tasks"
        words += f", {self._repeated:,} of them known already" if self._repeated else ""
        words += f"; refused {self._refused:,}" if self._refused else ""
        if self._arguments.json:
            print_note(words + ".")
        else:
            print_line(words + ".")


@contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - closed below; only its opening may fail here
    except OSError as error:
        raise UsageError(f"--file: {name} cannot be read: {error.strerror}") from error
    with file:
        yield file


def _read_parts(name: str, file: BinaryIO) -> tuple[Iterator[tuple[int, bytes]], str]:
    """Return the file's numbered parts, and what they are called: lines, or items of an array."""
    first: list[bytes] = []
    try:
        while not b"".join(first).strip() and (line := file.readline()):
            first.append(line)
    except OSError as error:
        raise UsageError(f"--file: {name} cannot be read: {error.strerror}") from error
    is_array = b"".join(first).lstrip().startswith(b"[")
    if not is_array and not name.endswith(".json"):
        return enumerate(itertools.chain(first, file), 1), "line"
    body = b"".join(first) + file.read()
    try:
        found = msgspec.json.decode(body, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"--file: {name} is not a JSON array of tasks ({error}); one task a line is .ndjson"
        ) from error
    return enumerate([bytes(item) for item in found] if isinstance(found, list) else [body], 1), "item"


def _items(parts: Iterator[tuple[int, bytes]], defaults: dict[str, object]) -> Iterator[Item]:
    """Return the tasks with their absent fields filled in."""
    for number, text in parts:
        body = text.strip()
        if body:
            yield _item(number, body, defaults)


def _item(number: int, body: bytes, defaults: dict[str, object]) -> Item:
    try:
        body.decode("utf-8")
        given = _decode_object(body)
    except msgspec.ValidationError:
        return Item(number, b"", "it is not a task, which is a JSON object")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Item(number, b"", f"it is not JSON ({error})")
    if len(body) > MAX_BATCH_BYTES:
        return Item(number, b"", f"it has {len(body):,} bytes, which is too large for a task")
    if not defaults:
        return Item(number, body)
    # Each pair is one choice: if the task sets either, both defaults are dropped.
    chosen = {name for pair in _CHOICES if given.keys() & pair for name in pair}
    filled = {name: value for name, value in defaults.items() if name not in chosen}
    return Item(number, msgspec.json.encode(filled | given))


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    """Group as many as one call accepts."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (len(batch) >= MAX_BATCH or size + len(item.body) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item.body) + 1
    if batch:
        yield batch


def _send_until_judged(client: Client, items: list[Item]) -> tuple[list[BatchItem], list[msgspec.Raw]]:
    """Return all results. Tasks that a quota refuses are sent again when there is room, until all are accepted."""
    results, raw = [BatchItem()] * len(items), [msgspec.Raw()] * len(items)
    pending = list(range(len(items)))
    while pending:
        body = b"[" + b",".join(items[place].body for place in pending) + b"]"
        answer, batch = ask(client, submit_batch(body))
        for place, result, text in zip(pending, batch.results, _decode_raw_batch(answer).results, strict=True):
            results[place], raw[place] = result, text
        pending = [place for place in pending if is_for_now(results[place])]
        if pending and (error := results[pending[0]].error) is not None:
            time.sleep(error.retry_after or 1.0)
    return results, raw
