"""Read crontabs as cron does, and convert them to schedules.

Cron starts a command even if its last run has not ended, and never makes up for
times at which it was down: the schedules do the same.  Parts for which a schedule
has no field are reported, line by line.  No I/O.
"""

import hashlib
import re
from dataclasses import dataclass, field

from duetime.cli.schedules.names import Names, slug

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ENVIRONMENT = re.compile(r"""\s*(?:([A-Za-z_]\w*)|"([^"]*)"|'([^']*)')\s*=\s*(.*?)\s*""")
_FIELD = re.compile(r"[0-9A-Za-z*,/?#-]+")
_HEADING = re.compile(r"m(?:in(?:ute)?)?\s+h(?:ou)?r?\s+d", re.IGNORECASE)
_LONGEST_COMMENT = 60


@dataclass
class Imported:
    """Definitions by name, and what could not be converted."""

    schedules: dict[str, dict[str, object]] = field(default_factory=dict)
    report: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CrontabOptions:
    timezone: str = "UTC"
    task_type: str = "shell.run"
    queue: str | None = None
    has_user_column: bool = False


@dataclass(frozen=True)
class _Entry:
    cron: str
    command: str
    user: str | None = None


class _Skipped(Exception):
    """An entry that is not converted, with the reason."""


def defaults_of(options: CrontabOptions) -> dict[str, object]:
    """The fields that all entries share: the behaviour of cron."""
    task: dict[str, object] = {"type": options.task_type}
    if options.queue is not None:
        task["queue"] = options.queue
    return {"timezone": options.timezone, "overlap": "allow", "misfire": "skip", "task": task}


def import_crontab(text: str, options: CrontabOptions) -> Imported:
    found = Imported()
    names = Names()
    timezone = options.timezone
    comment = ""
    users = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped:
            comment = ""
        elif stripped.startswith("#"):
            comment = _comment(stripped)
        elif (setting := _ENVIRONMENT.fullmatch(line)) is not None:
            comment = ""
            name = setting[1] or setting[2] or setting[3] or ""
            value = _unquoted(setting[4])
            if name in ("CRON_TZ", "TZ"):
                timezone = value or options.timezone
            else:
                found.report.append(f"line {number}: {name}={value} is not carried over: set it where the command runs")
        else:
            try:
                entry = _read_entry(stripped, options)
            except _Skipped as reason:
                found.report.append(f"line {number}: {reason}")
                comment = ""
                continue
            users += entry.command.startswith("root ")
            name = names.take(slug(comment) or _name_of(entry.command), _fingerprint(entry))
            found.schedules[name] = _definition(entry, timezone, options, number, found.report)
            # A comment names the entry below it, not all that follow.
            comment = ""
    if users and users == len(found.schedules) and not options.has_user_column:
        found.report.append("every command begins with `root`: if this is a system's crontab, add --user-column")
    return found


def _comment(line: str) -> str:
    """Return a comment's text if it can be a title. An entry or a heading that is commented out cannot."""
    text = line.lstrip("#").strip(" \t-=*")
    if not text or len(text) > _LONGEST_COMMENT or _HEADING.match(text):
        return ""
    words = text.split()
    return "" if words[0] in MACROS or (len(words) > 5 and _is_cron(words[:5])) else text


def _is_cron(words: list[str]) -> bool:
    return all(_FIELD.fullmatch(word) and re.search(r"[0-9*]", word) for word in words)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _read_entry(line: str, options: CrontabOptions) -> _Entry:
    first = line.split(None, 1)[0]
    if first.startswith("@"):
        number, cron = 1, _macro(first)
    else:
        number = 5
        words = line.split(None, number)[:number]
        # Some crons accept a minus before the minute: do not log.
        words[0] = words[0].removeprefix("-") or words[0]
        cron = " ".join(words)
        if len(words) < number:
            raise _Skipped(f"it is not an entry of a crontab, which has five fields and a command: {line}")
        if any("~" in word for word in words):
            raise _Skipped(f"a random time ({cron}) is not carried over: choose one, and set jitter")
        if wrong := next((word for word in words if not _FIELD.fullmatch(word)), None):
            raise _Skipped(f"{wrong} is not a field of cron: {line}")
    parts = line.split(None, number + options.has_user_column)
    if len(parts) <= number + options.has_user_column:
        missing = "user and command" if options.has_user_column else "command"
        raise _Skipped(f"there is no {missing} behind the time: {line}")
    return _Entry(cron, parts[-1], parts[number] if options.has_user_column else None)


def _macro(word: str) -> str:
    if word.lower() == "@reboot":
        raise _Skipped("@reboot is not carried over: a schedule knows times, not machines")
    if word.lower() not in MACROS:
        raise _Skipped(f"{word} is not carried over: it is not a word of cron; there is {', '.join(sorted(MACROS))}")
    return MACROS[word.lower()]


def _definition(
    entry: _Entry, timezone: str, options: CrontabOptions, number: int, report: list[str]
) -> dict[str, object]:
    command, stdin = _split_percent(entry.command)
    payload: dict[str, object] = {"command": command}
    if stdin is not None:
        payload["stdin"] = stdin
        report.append(f"line {number}: what follows % is put into the payload as `stdin`: see that the worker uses it")
    if entry.user is not None:
        payload["user"] = entry.user
    definition: dict[str, object] = {"spec": {"cron": entry.cron}}
    if timezone != options.timezone:
        definition["timezone"] = timezone
    definition["task"] = {"payload": payload}
    return definition


def _split_percent(command: str) -> tuple[str, str | None]:
    r"""Return the command and its standard input, from the first % on. Each further % is a new line; \% is a %."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command)]
    return parts[0].rstrip() if len(parts) > 1 else parts[0], "\n".join(parts[1:]) if len(parts) > 1 else None


def _name_of(command: str) -> str:
    """Return the program and its subcommand, without folders, options and redirections."""
    words = []
    for word in re.split(r"[|;&<>]", re.sub(r"^\s*cd\s+\S+\s*(?:&&|;)\s*", "", command))[0].split():
        if word.startswith("-") or re.fullmatch(r"[A-Za-z_]\w*=.*", word) or word in ("test", "[", "]"):
            continue
        base = word.strip("\"'()").rstrip("/").rpartition("/")[2]
        words.append(re.sub(r"\.(?:sh|py|pl|rb|php)$", "", base))
        if len(words) == 3:
            break
    return slug(" ".join(words)) or "command"


def _fingerprint(entry: _Entry) -> str:
    return hashlib.sha256(f"{entry.cron}\n{entry.user}\n{entry.command}".encode("utf-8", "surrogateescape")).hexdigest()
