"""Crontabs: what cron does with each line is what the schedule does, or it is reported."""

from typing import Any

import pytest
import yaml

from duetime.cli.schedules.crontab import CrontabOptions, Imported, defaults_of, import_crontab
from duetime.cli.schedules.files import FileText, read_contents
from duetime.cli.schedules.importing import write_file

SYSTEM = r"""# /etc/crontab: system-wide crontab
SHELL=/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin
MAILTO="ops@example.com"

# Example of job definition:
# m h dom mon dow user  command
17 *	* * *	root	cd / && run-parts --report /etc/cron.hourly
25 6	* * *	root	test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }
47 6	* * 7	root	test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.weekly; }

# Nightly backup
30 2 * * * postgres /usr/local/bin/pg_backup.sh --all >> /var/log/backup.log 2>&1
CRON_TZ=Europe/Berlin
@daily www-data /usr/bin/php /var/www/app/artisan schedule:run
0 9 * * MON-FRI root mail -s "Report \% done" boss@example.com%Hello%World
@reboot root /opt/start.sh
#0 5 * * 1 root tar -zcf /var/backups/home.tgz /home/
*/10 * * * * root /usr/bin/curl -fsS https://hc.example.com/ping
"""


def imported(text: str, **options: Any) -> Imported:
    return import_crontab(text, CrontabOptions(**options))


def only(text: str, **options: Any) -> tuple[str, dict[str, Any]]:
    found = imported(text, **options)
    assert found.report == []
    ((name, definition),) = found.schedules.items()
    return name, definition


def test_a_system_crontab_is_carried_over_and_the_rest_reported() -> None:
    found = imported(SYSTEM, has_user_column=True)

    assert {name: each["spec"]["cron"] for name, each in found.schedules.items()} == {  # type: ignore[index]
        "run-parts-cron-hourly": "17 * * * *",
        "anacron": "25 6 * * *",
        "anacron-2ec0d4": "47 6 * * 7",
        "nightly-backup": "30 2 * * *",
        "php-artisan-schedule-run": "0 0 * * *",
        "mail-report": "0 9 * * MON-FRI",
        "curl-ping": "*/10 * * * *",
    }
    assert [line.split(":")[0] for line in found.report] == ["line 2", "line 3", "line 4", "line 16", "line 17"]
    assert "MAILTO=ops@example.com is not carried over" in found.report[2]
    assert found.schedules["nightly-backup"]["task"] == {
        "payload": {"command": "/usr/local/bin/pg_backup.sh --all >> /var/log/backup.log 2>&1", "user": "postgres"}
    }


def test_a_zone_counts_for_the_lines_after_it() -> None:
    text = "0 1 * * * /a\nCRON_TZ=Europe/Berlin\n0 2 * * * /b\nTZ='America/New_York'\n0 3 * * * /c\nTZ=\n0 4 * * * /d\n"

    zones = {name: each.get("timezone") for name, each in imported(text).schedules.items()}

    assert zones == {"a": None, "b": "Europe/Berlin", "c": "America/New_York", "d": None}


def test_percent_signs_begin_the_standard_input() -> None:
    found = imported(r'0 9 * * * mail -s "50\% off" all@example.com %Dear all,%%Bye')

    (definition,) = found.schedules.values()
    assert definition["task"] == {
        "payload": {"command": 'mail -s "50% off" all@example.com', "stdin": "Dear all,\n\nBye"}
    }
    assert found.report == ["line 1: what follows % is put into the payload as `stdin`: see that the worker uses it"]


@pytest.mark.parametrize(
    ("word", "cron"),
    [("@yearly", "0 0 1 1 *"), ("@Monthly", "0 0 1 * *"), ("@weekly", "0 0 * * 0"), ("@hourly", "0 * * * *")],
)
def test_words_for_times_are_spelt_out(word: str, cron: str) -> None:
    assert only(f"{word} /usr/bin/true")[1]["spec"] == {"cron": cron}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@reboot /opt/start.sh", "@reboot is not carried over"),
        ("@fortnightly /opt/start.sh", "@fortnightly is not carried over: it is not a word of cron"),
        ("*/5 * * * *", "there is no command behind the time"),
        ("@daily", "there is no command behind the time"),
        ("*/5 * *", "it is not an entry of a crontab"),
        ("0~30 * * * * /bin/x", "a random time (0~30 * * * *) is not carried over"),
        ("0 2 * * $x /bin/x", "$x is not a field of cron"),
    ],
)
def test_lines_that_have_no_schedule_are_reported(line: str, reason: str) -> None:
    found = imported(f"# Title\n{line}\n5 * * * * /bin/next")

    assert list(found.schedules) == ["next"]
    assert found.report[0].startswith("line 2: ")
    assert reason in found.report[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0 1 * * * /usr/bin/python3 /srv/app/manage.py clearsessions", "python3-manage-clearsessions"),
        ("0 1 * * * cd /srv/app && ./bin/rake db:clean >/dev/null 2>&1", "rake-db-clean"),
        ("0 1 * * * FOO=1 BAR=2 /opt/x.sh -v", "x"),
        ("0 1 * * * flock -n /tmp/l /opt/y.sh", "flock-l-y"),
        ("0 1 * * * [ -d /x ] && true", "x"),
        ("0 1 * * * ((", "command"),
        ("# Renew certificates\n0 1 * * * certbot renew", "renew-certificates"),
        ("# --- Über uns ---\n0 1 * * * x", "uber-uns"),
        ("# Renew certificates\n\n0 1 * * * certbot renew", "certbot-renew"),
        ("# Settings\nTZ=UTC\n0 1 * * * certbot renew", "certbot-renew"),
        ("# min hour day month weekday\n0 1 * * * certbot renew", "certbot-renew"),
        ("# 0 3 * * * old line\n0 1 * * * certbot renew", "certbot-renew"),
        (f"# {'long ' * 20}\n0 1 * * * certbot renew", "certbot-renew"),
    ],
)
def test_names_come_from_the_comment_above_or_the_command(text: str, name: str) -> None:
    assert only(text)[0] == name


def test_names_are_unique_and_do_not_depend_on_the_other_lines() -> None:
    first, second, third = "0 1 * * * /a/sync x", "0 2 * * * /a/sync x", "0 3 * * * /a/sync x"

    whole = imported(f"{first}\n{second}\n{third}\n{third}")
    part = imported(f"{first}\n{third}")

    names = list(whole.schedules)
    assert len(set(names)) == 4
    assert names[0] == "sync-x"
    assert list(part.schedules) == [names[0], names[2]]
    assert names[3] == f"{names[2]}-2"


def test_a_forgotten_user_column_is_pointed_out() -> None:
    found = imported("0 1 * * * root /a\n0 2 * * * root /b")

    assert found.report == ["every command begins with `root`: if this is a system's crontab, add --user-column"]


def test_the_file_that_is_written_can_be_applied_and_behaves_like_cron() -> None:
    options = CrontabOptions("Europe/Berlin", "shell", "cron", True)

    text = write_file(import_crontab(SYSTEM, options), defaults_of(options), "system", "Made of /etc/crontab.")
    contents = read_contents([FileText("crons.yaml", text.encode(), "x")])

    assert text.startswith("# Made of /etc/crontab.\nsource: system\n")
    assert yaml.safe_load(text)["schedules"].keys() == contents.schedules.keys()
    found = contents.schedules["mail-report"]
    assert found.source == "system"
    assert found.canonical["overlap"] == "allow"
    assert found.canonical["misfire"] == "skip"
    assert found.canonical["timezone"] == "Europe/Berlin"
    assert found.definition["task"] == {
        "type": "shell",
        "queue": "cron",
        "payload": {
            "command": 'mail -s "Report % done" boss@example.com',
            "stdin": "Hello\nWorld",
            "user": "root",
        },
    }
