"""`duetime schedules import`: convert a crontab or CronJobs to a schedules file, or apply them at once."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from duetime.cli.actions import Action, Command
from duetime.cli.connect import add_connection_options, add_json_option
from duetime.cli.output import counted, print_line, print_note, printable
from duetime.cli.schedules import cronjobs, crontab
from duetime.cli.schedules.apply import add_apply_options, apply_contents, check_options
from duetime.cli.schedules.crontab import Imported
from duetime.cli.schedules.documents import Document, read_documents
from duetime.cli.schedules.files import FileText, read_contents
from duetime.cli.schedules.options import read_named
from duetime.errors import UsageError

_FOR_APPLY = ("dry_run", "exit_code", "prune", "json")


def _add_options(parser: argparse.ArgumentParser, task_type: str) -> None:
    parser.add_argument("--timezone", metavar="ZONE", help="where the file names none (UTC)")
    parser.add_argument("--type", default=task_type, metavar="TYPE", help=f"of the tasks ({task_type})")
    parser.add_argument("--queue", metavar="QUEUE", help="of the tasks (default)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the YAML there (standard output)")
    apply = parser.add_argument_group("instead of writing a file")
    apply.add_argument("--apply", action="store_true", help="apply it at once; see `duetime schedules apply --help`")
    add_apply_options(apply)
    add_json_option(parser, "with --apply: the plan and what became of it, as one object")
    add_connection_options(parser)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.apply:
        if arguments.output is not None:
            raise UsageError("--apply and --output are two ways to go: give one of them")
        check_options(arguments)
    elif named := next((name for name in _FOR_APPLY if getattr(arguments, name)), None):
        raise UsageError(f"--{named.replace('_', '-')} is for --apply: give both")


def _import_crontab(arguments: argparse.Namespace) -> int:
    _check(arguments)
    options = crontab.CrontabOptions(
        arguments.timezone or "UTC", arguments.type, arguments.queue, arguments.user_column
    )
    name, body = read_named(arguments.files[0])
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: it is not UTF-8 text") from error
    imported = crontab.import_crontab(text, options)
    if arguments.timezone is None and any("timezone" not in each for each in imported.schedules.values()):
        imported.report.append("its times are taken as UTC; cron goes by its machine's zone, which --timezone names")
    imported.report = [f"{name} {line}" if line.startswith("line ") else f"{name}: {line}" for line in imported.report]
    return _finish(arguments, imported, crontab.defaults_of(options), "entry", "crontab")


def _import_kubernetes(arguments: argparse.Namespace) -> int:
    _check(arguments)
    options = cronjobs.CronJobOptions(arguments.timezone or "UTC", arguments.type, arguments.queue)
    documents: list[Document] = []
    for name in arguments.files:
        documents += read_documents(*read_named(name))
    imported = cronjobs.import_cronjobs(documents, options)
    return _finish(arguments, imported, cronjobs.defaults_of(options), "CronJob", "kubernetes")


def _finish(
    arguments: argparse.Namespace, imported: Imported, defaults: dict[str, object], noun: str, kind: str
) -> int:
    for line in imported.report:
        print_note(printable(line))
    if not imported.schedules:
        raise UsageError(f"{', '.join(arguments.files)}: there is no {noun} that can be carried over")
    source = arguments.source or _source_of(arguments.files, kind)
    text = write_file(imported, defaults, source, f"Made of {', '.join(map(printable, arguments.files))}.")
    if arguments.apply:
        contents = read_contents([FileText(f"what was made of {arguments.files[0]}", text.encode(), source)])
        return apply_contents(arguments, contents)
    said = f"{counted(len(imported.schedules), 'schedule')}, {counted(len(imported.report), 'remark')}."
    if arguments.output is None:
        sys.stdout.write(text)
        print_note(f"Made {said}")
        return 0
    try:
        Path(arguments.output).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{arguments.output} cannot be written: {error.strerror}") from error
    print_line(f"Wrote {arguments.output}: {said} Next: duetime schedules apply -f {arguments.output} --dry-run")
    return 0


def _source_of(files: Sequence[str], kind: str) -> str:
    return Path(files[0]).stem if len(files) == 1 and files[0] != "-" else kind


def write_file(imported: Imported, defaults: dict[str, object], source: str, heading: str) -> str:
    """Return the schedules file as a person would write it."""
    whole = {"source": source, "defaults": defaults, "schedules": imported.schedules}
    body = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=1_000_000)
    return f"# {heading}\n{body}"


IMPORT = Command(
    "import",
    "make a schedules file of a crontab or of Kubernetes CronJobs",
    "Make a schedules file of what other schedulers have.",
    (
        Action(
            "crontab",
            "entries of a crontab",
            _import_crontab,
            (
                lambda parser: parser.add_argument("files", nargs=1, metavar="FILE", help='"-" is standard input'),
                lambda parser: parser.add_argument(
                    "--user-column",
                    action="store_true",
                    help="the sixth field is a user, as in /etc/crontab and /etc/cron.d",
                ),
                lambda parser: _add_options(parser, "shell.run"),
            ),
            'Make schedules of a crontab. Each fires a task whose payload is {"command": …}.',
            is_remote=False,
        ),
        Action(
            "kubernetes",
            "CronJobs of Kubernetes",
            _import_kubernetes,
            (
                lambda parser: parser.add_argument(
                    "files", nargs="+", metavar="FILE", help='YAML or JSON; "-" is standard input'
                ),
                lambda parser: _add_options(parser, "kubernetes.job"),
            ),
            "Make schedules of CronJob manifests (`kubectl get cronjobs -o yaml`). "
            "Each fires a task whose payload holds the containers.",
            is_remote=False,
        ),
    ),
    metavar="KIND",
)
