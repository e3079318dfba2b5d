"""`duetime schedules apply`: make the stored schedules of a source match the files.

The plan is always shown first.  Applying it twice changes nothing the second
time, and an apply that stopped half way is finished by running it again.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from duetime.cli.actions import Action
from duetime.cli.connect import Refused, open_client, sentence_of, talk
from duetime.cli.output import Progress, counted, print_line, print_note, printable
from duetime.cli.paging import pages
from duetime.cli.schedules.documents import YAML_SUFFIXES
from duetime.cli.schedules.fields import canonical_dates
from duetime.cli.schedules.files import Contents, FileText, read_contents
from duetime.cli.schedules.options import read_named
from duetime.cli.schedules.plan import (
    Step,
    StepKind,
    has_secrets,
    plan_calendar,
    plan_schedules,
    totals,
    with_other_secrets,
)
from duetime.cli.schedules.show import print_plan
from duetime.errors import UsageError
from duetime.sdk.calls import schedules as calls
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.calls.schedules import CALENDARS, SCHEDULES
from duetime.sdk.calls.tasks import MAX_BATCH_BYTES
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import ApiError, InvalidRequest, NotFound, SdkError, ServerUnavailable
from duetime.sdk.shapes.answers import Page, Problem

#: The definitions as they were sent, for comparison.
_read_page = msgspec.json.Decoder(Page[dict[str, Any]]).decode
_read_definition = msgspec.json.Decoder(dict[str, Any]).decode

CHUNK = 500
#: After the first answer, a restart of the server does not end a long run.
_RETRY_SECONDS = 60.0
#: At most this many new names are looked up one by one. If there are more, the server reports taken names when they
#: are sent.
_LOOKED_UP = 500
_EXAMPLES = """\
examples:
  duetime schedules apply -f schedules.yaml --dry-run
  duetime schedules apply -f schedules/ --prune
  duetime schedules apply -f schedules/ --prune --dry-run --exit-code     (in CI)

Exit code: 0 done, 1 something is refused or belongs to others, 2 a file is wrong (nothing was done),
3 there would be changes (--dry-run --exit-code).
"""


def add_apply_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument(
        "--exit-code", action="store_true", help="with --dry-run: exit code 3 if there would be changes"
    )
    parser.add_argument("--prune", action="store_true", help="delete schedules of the source that no file has any more")
    parser.add_argument("--source", metavar="NAME", help="what they belong to (the file's `source:`, else its name)")


def run(arguments: argparse.Namespace) -> int:
    check_options(arguments)
    contents = read_contents(find_files(arguments.file), arguments.source)
    return apply_contents(arguments, contents)


def check_options(arguments: argparse.Namespace) -> None:
    if arguments.exit_code and not arguments.dry_run:
        raise UsageError("--exit-code is for --dry-run: give both")
    if arguments.source is not None and not arguments.source.strip():
        raise UsageError("--source must not be empty")


def find_files(names: Sequence[str]) -> Iterator[FileText]:
    """Return the named files, and the files in the named folders."""
    for name in names:
        if name == "-":
            yield FileText(*read_named(name), "")
        elif Path(name).is_dir():
            found = [each for each in sorted(Path(name).iterdir()) if _is_schedules_file(each)]
            if not found:
                raise UsageError(f"{name}: there is no .yaml, .yml or .toml file in this folder")
            for each in found:
                yield FileText(*read_named(str(each)), Path(name).resolve().name)
        elif Path(name).suffix.lower() not in (*YAML_SUFFIXES, ".toml", ".json") and Path(name).is_file():
            raise UsageError(f"{name}: a schedules file ends in .yaml, .yml or .toml")
        else:
            yield FileText(*read_named(name), Path(name).stem)


def _is_schedules_file(file: Path) -> bool:
    return file.suffix.lower() in (*YAML_SUFFIXES, ".toml") and not file.name.startswith(".") and file.is_file()


def apply_contents(arguments: argparse.Namespace, contents: Contents) -> int:
    return talk(arguments, lambda client: _Application(client, arguments).run(contents))


@dataclass
class _Outcome:
    """The result of the plan."""

    done: dict[StepKind, int] = field(default_factory=lambda: dict.fromkeys(StepKind, 0))
    refused: dict[tuple[str, str], str] = field(default_factory=dict)


class _Application:
    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self._client = client
        self._arguments = arguments
        self._progress = Progress()
        self._outcome = _Outcome()

    def run(self, contents: Contents) -> int:
        try:
            steps, left_over = self._plan(contents)
        finally:
            self._progress.clear()
        if not self._arguments.json:
            print_plan(steps, left_over)
        number = totals(steps)
        if self._arguments.dry_run:
            self._check(steps)
            self._print_json(steps)
            if self._outcome.refused:
                return 1
            has_changes = bool(number[StepKind.CREATE] + number[StepKind.CHANGE] + number[StepKind.DELETE])
            if not self._arguments.exit_code:
                return 0
            return 1 if number[StepKind.CONFLICT] else 3 if has_changes else 0
        self._apply(steps)
        for action in (StepKind.UNCHANGED, StepKind.CONFLICT):
            self._outcome.done[action] += number[action]
        self._sum_up(steps)
        return 1 if self._outcome.refused or self._outcome.done[StepKind.CONFLICT] else 0

    def _plan(self, contents: Contents) -> tuple[list[Step], int]:
        """Return the steps, and how many stored schedules are kept although no file has them any more."""
        steps = [plan_calendar(each, self._read_calendar(name)) for name, each in contents.calendars.items()]
        stored: dict[str, dict[str, Any]] = {}
        for source in contents.sources:
            self._read_stored(source, stored)
        new = [name for name in contents.schedules if name not in stored]
        left_over = 0 if self._arguments.prune else len(stored.keys() - contents.schedules.keys())
        known = dict(stored)
        if len(new) <= _LOOKED_UP:
            for name in new:
                if (found := self._read_one(name)) is not None:
                    known[name] = found
                self._progress.say("looking whether the new names are free")
        elif self._arguments.dry_run:
            print_note(f"Whether {len(new):,} new names are free is not looked up; applying will tell.")
        steps += plan_schedules(contents.schedules.values(), known, prune=self._arguments.prune)
        return self._compare_secrets(steps), left_over

    def _compare_secrets(self, steps: list[Step]) -> list[Step]:
        """Ask the server whether the secrets of the files differ: they cannot be read."""
        same = [step for step in steps if step.action is StepKind.UNCHANGED and has_secrets(step)]
        changed = set()
        for chunk in _chunks(same):
            changed |= {step.name for step, word in zip(chunk, self._try(chunk), strict=True) if word == "changed"}
        return [
            with_other_secrets(step) if step.noun == "schedule" and step.name in changed else step for step in steps
        ]

    def _try(self, chunk: Sequence[Step]) -> list[str | None]:
        """Return what the server says would be done."""
        answer = self._client.send(calls.put_schedules([step.body for step in chunk], dry_run=True))
        return [result.result for result in answer.results]

    def _read_stored(self, source: str, stored: dict[str, dict[str, Any]]) -> None:
        def call(_: argparse.Namespace, limit: int, cursor: str | None) -> ApiCall[Page[dict[str, Any]]]:
            return SCHEDULES.list(limit=limit, cursor=cursor, origin="file", source=source).read_as(_read_page)

        for page in pages(self._client, self._arguments, call):
            stored |= {str(each["name"]): each for each in page.items if "name" in each}
            if page.next is not None:
                self._progress.say(f"read {counted(len(stored), 'schedule')}")

    def _read_one(self, name: str) -> dict[str, Any] | None:
        try:
            return self._client.send(SCHEDULES.get(name).read_as(_read_definition))
        except ServerUnavailable:
            raise
        except ApiError as error:
            # A name that is not valid is refused with its reason when it is sent.
            if error.status in (404, 422):
                return None
            raise

    def _read_calendar(self, name: str) -> object:
        try:
            stored = self._client.get_calendar(name)
        except NotFound:
            return None
        return canonical_dates(stored.dates, is_lenient=True)

    def _check(self, steps: Sequence[Step]) -> None:
        """Let the server check what would be sent, as far as it can without storing it."""
        coming = {step.name for step in steps if step.noun == "calendar" and step.action is StepKind.CREATE}
        judged = [
            step
            for step in steps
            if step.noun == "schedule" and step.action in (StepKind.CREATE, StepKind.CHANGE) and not _uses(step, coming)
        ]
        for number, step in enumerate(judged[:_LOOKED_UP], 1):
            body = {name: value for name, value in (step.body or {}).items() if name not in _NOT_PREVIEWED}
            try:
                self._client.send(calls.preview_schedule(None, body, count=1, from_=None))
            except InvalidRequest as error:
                self._refuse(step, sentence_of(error))
            self._progress.say(f"{number:,} of {len(judged):,} checked")
        self._progress.clear()

    def _apply(self, steps: Sequence[Step]) -> None:
        todo = [step for step in steps if step.action in (StepKind.CREATE, StepKind.CHANGE, StepKind.DELETE)]
        number = 0
        try:
            with open_client(self._arguments, _RETRY_SECONDS) as patient:
                for chunk in _chunks(todo):
                    self._send(patient, chunk)
                    number += len(chunk)
                    self._progress.say(f"{number:,} of {len(todo):,} done")
        except SdkError as error:
            self._progress.clear()
            if not number:
                raise
            raise Refused(
                f"stopped after {number:,} of {len(todo):,} (run it again to go on): {sentence_of(error, 'the server')}"
            ) from error
        finally:
            self._progress.clear()

    def _send(self, client: Client, chunk: Sequence[Step]) -> None:
        first = chunk[0]
        if first.noun == "calendar":
            self._send_one(client, first, CALENDARS.put(first.name, first.body or {}).read_as(bytes))
        elif first.action is StepKind.DELETE:
            # Delete only what the plan showed: if somebody has changed it since, the change is kept.
            call = calls.delete_schedule(first.name, None, first.version)
            self._send_one(client, first, call.read_as(bytes))
        else:
            self._send_batch(client, chunk)

    def _send_one(self, client: Client, step: Step, call: ApiCall[bytes]) -> None:
        try:
            client.send(call)
        except NotFound:
            # The first answer to this delete was lost.
            if step.action is not StepKind.DELETE:
                raise
        except ServerUnavailable:
            raise
        except ApiError as error:
            if error.status in (401, 403):
                raise
            self._refuse(step, sentence_of(error))
            return
        self._outcome.done[step.action] += 1

    def _send_batch(self, client: Client, chunk: Sequence[Step]) -> None:
        results = client.send(calls.put_schedules([step.body for step in chunk])).results
        if len(results) != len(chunk):
            raise Refused(f"the server answered {len(results)} of {len(chunk)} schedules: is it another version?")
        for step, result in zip(chunk, results, strict=True):
            if result.error is not None and result.error.code == "other_origin":
                self._refuse(step, _reason(result.error), is_conflict=True)
            elif result.error is not None:
                self._refuse(step, _reason(result.error))
            else:
                # The server decides: by its comparison nothing may have changed.
                self._outcome.done[_DONE.get(result.result or "", step.action)] += 1

    def _refuse(self, step: Step, reason: str, *, is_conflict: bool = False) -> None:
        self._progress.clear()
        self._outcome.refused[step.noun, step.name] = reason
        self._outcome.done[StepKind.CONFLICT] += is_conflict
        if not self._arguments.json:
            verb = "is left alone" if is_conflict else "would be refused" if self._arguments.dry_run else "was refused"
            print_note(f"duetime: {step.noun} {printable(step.name)} {verb}: {printable(reason)}")

    def _sum_up(self, steps: Sequence[Step]) -> None:
        self._print_json(steps)
        done = self._outcome.done
        said = [
            f"{done[action]:,} {word}"
            for action, word in (
                (StepKind.CREATE, "created"),
                (StepKind.CHANGE, "changed"),
                (StepKind.UNCHANGED, "unchanged"),
                (StepKind.DELETE, "deleted"),
            )
            if done[action]
        ]
        if refused := self._refused_count(steps):
            said.append(f"{refused:,} refused")
        if done[StepKind.CONFLICT]:
            said.append(f"{done[StepKind.CONFLICT]:,} left alone")
        if not self._arguments.json:
            print_line(f"Applied: {', '.join(said) or 'nothing to do'}.")

    def _refused_count(self, steps: Sequence[Step]) -> int:
        """Without those that only belong to others."""
        told_late = self._outcome.done[StepKind.CONFLICT] - totals(steps)[StepKind.CONFLICT]
        return len(self._outcome.refused) - told_late

    def _print_json(self, steps: Sequence[Step]) -> None:
        if not self._arguments.json:
            return
        items = []
        for step in steps:
            item: dict[str, object] = {"name": step.name, "kind": step.noun, "action": step.action.value}
            if step.changes:
                item["changes"] = [{"path": each.path, "from": each.before, "to": each.after} for each in step.changes]
            if step.action is StepKind.CONFLICT:
                item["error"] = step.remark
            if (step.noun, step.name) in self._outcome.refused:
                item["error"] = self._outcome.refused[step.noun, step.name]
            items.append(item)
        plan = {action.value: number for action, number in totals(steps).items()}
        whole: dict[str, object] = {"dry_run": self._arguments.dry_run, "plan": plan, "items": items}
        if not self._arguments.dry_run:
            whole["done"] = {action.value: number for action, number in self._outcome.done.items()}
            whole["refused"] = self._refused_count(steps)
        print_line(msgspec.json.encode(whole).decode())


#: Origin and state, which do not affect when it fires.
_NOT_PREVIEWED = ("name", "origin", "source", "paused", "note")
_DONE = {"created": StepKind.CREATE, "changed": StepKind.CHANGE, "unchanged": StepKind.UNCHANGED}


def _uses(step: Step, calendars: set[str]) -> bool:
    spec = (step.body or {}).get("spec")
    entries = spec.get("exclude") if isinstance(spec, dict) else None
    return any(
        isinstance(entry, dict) and entry.get("calendar") in calendars
        for entry in (entries if isinstance(entries, list) else [])
    )


def _reason(problem: Problem) -> str:
    named = [f"{each.path}: {each.message}" for each in problem.errors if each.path]
    return "; ".join(named) or problem.detail or problem.title or problem.code


def _chunks(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Send schedules in batches, and each calendar and deletion alone, in the order of the plan."""
    batch: list[Step] = []
    size = 0
    for step in steps:
        is_single = step.noun == "calendar" or step.action is StepKind.DELETE
        length = 0 if is_single else len(msgspec.json.encode(step.body))
        if batch and (is_single or len(batch) >= CHUNK or size + length > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        if is_single:
            yield [step]
        else:
            batch.append(step)
            size += length
    if batch:
        yield batch


APPLY = Action(
    "apply",
    "make schedules what files say",
    run,
    (
        lambda parser: parser.add_argument(
            "-f",
            "--file",
            nargs="+",
            action="extend",
            required=True,
            metavar="FILE",
            help='"-" is YAML on standard input',
        ),
        add_apply_options,
    ),
    "Make the schedules of a source what files say: YAML or TOML, or folders of them.",
    "the plan and what became of it, as one object",
    epilog=_EXAMPLES,
)
