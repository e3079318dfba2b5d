"""Schedules and calendars one by one: what is sent, and what is said of the answer."""

import json
from pathlib import Path

import pytest

from cli.conftest import Run
from cli.schedule_server import TASK, ScheduleServer


def test_a_schedule_is_put_from_options(schedules: Run, server: ScheduleServer) -> None:
    said = schedules(
        *("put", "reports/nightly", "--cron", "0 2 * * *", "--cron", "0 4 * * *", "--timezone", "Europe/Berlin"),
        *(
            "--jitter",
            "30s",
            "--overlap",
            "buffer_one",
            "--misfire",
            "skip",
            "--misfire-threshold",
            "1m",
            "--start-at",
            "2030-01-01T00:00:00Z",
        ),
        *("--type", "report", "--payload", '{"day": 1}', "--queue", "slow", "--label", "a=b", "--max-attempts", "3"),
        *("--max-retry-duration", "20m", "--min-backoff", "2", "--max-crashes", "1"),
        *("--target", "https://example.com/hook", "--header", "X-Team: blue", "--pause-on-failure", "--version", "0"),
    )

    (request,) = server.sent("PUT", "/v1/schedules/reports%2Fnightly")
    assert request.body == {
        "spec": {"cron": ["0 2 * * *", "0 4 * * *"]},
        "timezone": "Europe/Berlin",
        "jitter": 30.0,
        "start_at": "2030-01-01T00:00:00+00:00",
        "overlap": "buffer_one",
        "misfire": "skip",
        "misfire_threshold": 60.0,
        "pause_on_failure": True,
        "task": {
            "type": "report",
            "queue": "slow",
            "payload": {"day": 1},
            "target": {"url": "https://example.com/hook", "headers": {"X-Team": "blue"}},
            "retry": {"max_attempts": 3, "min_backoff": 2.0, "max_retry_duration": 1200.0, "max_crashes": 1},
            "labels": {"a": "b"},
        },
        "version": 0,
    }
    assert said.code == 0
    assert said.out.startswith("reports/nightly  active, version 1, next fire 2030-01-01")


def test_one_cron_line_is_sent_as_a_text(schedules: Run, server: ScheduleServer) -> None:
    schedules("put", "a", "--cron", "0 2 * * *", "--type", "x")

    assert server.requests[0].body["spec"] == {"cron": "0 2 * * *"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"spec": {"every": "5m"}, "task": {"type": "x"}}'),
        ("a.yaml", "spec: {every: 5m}\ntask: {type: x}\n"),
        ("a.toml", 'spec.every = "5m"\ntask.type = "x"\n'),
    ],
)
def test_a_schedule_is_put_from_a_file(
    schedules: Run, server: ScheduleServer, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)

    said = schedules("put", "a", "--file", str(tmp_path / name), "--force")

    assert said.code == 0
    assert server.requests[0].body == {"spec": {"every": "5m"}, "task": {"type": "x"}, "force": True}


def test_a_file_with_a_wrong_field_is_not_sent(schedules: Run, server: ScheduleServer) -> None:
    said = schedules("put", "a", "--file", "-", stdin="spec: {evry: 5m}\ntask: {type: x}\n")

    assert (said.code, server.requests) == (2, [])
    assert said.err == "duetime: standard input line 1: spec.evry is not known here; did you mean every?\n"


def test_a_refusal_is_one_sentence(schedules: Run, server: ScheduleServer) -> None:
    wrong = schedules("put", "a", "--cron", "0 2", "--type", "x")
    server.add("b", origin="file", source="crons")
    foreign = schedules("put", "b", "--cron", "0 2 * * *", "--type", "x")
    missing = schedules("show", "c")

    assert (wrong.code, wrong.err) == (2, "duetime: spec.cron: '0 2' is not a cron line of five fields\n")
    assert (foreign.code, foreign.err) == (1, "duetime: schedule b belongs to origin file\n")
    assert (missing.code, missing.err) == (1, "duetime: there is no schedule c\n")


def test_words_that_are_not_text_are_one_sentence(schedules: Run, server: ScheduleServer) -> None:
    said = schedules("pause", "a\udcff", "--note", "b\udcff")

    assert (said.code, server.requests) == (2, [])
    assert "write it in UTF-8" in said.err
    assert schedules("show", "a\udcff").code == 1


def test_schedules_are_listed_page_by_page(schedules: Run, server: ScheduleServer) -> None:
    for name in ("a1", "a2", "a3", "b1"):
        server.add(name, spec={"every": 900.0}, origin="file", source="crons")

    said = schedules("list", "--prefix", "a", "--origin", "file", "--source", "crons", "--state", "active")

    lines = said.out.splitlines()
    assert lines[0].split() == [
        *("NAME", "STATE", "WHEN", "ZONE", "TYPE", "FIRED", "SKIPPED", "MISSED", "ORIGIN", "NOTE"),
    ]
    assert [line.split()[0] for line in lines[1:]] == ["a1", "a2", "a3"]
    assert "every 15m" in lines[1]
    assert lines[1].endswith("file crons")
    assert server.requests[0].query == {
        "state": "active",
        "origin": "file",
        "source": "crons",
        "prefix": "a",
        "limit": "50",
    }
    assert [each["name"] for each in schedules("list", "--json").json["items"]] == ["a1", "a2", "a3", "b1"]
    assert len(schedules("list", "--json", "--all").lines) == 4
    assert schedules("list", "--prefix", "z").err == "No schedule fits.\n"


def test_a_schedule_is_shown_with_all_that_is_unusual(schedules: Run, server: ScheduleServer) -> None:
    server.add(
        "nightly",
        timezone="Europe/Berlin",
        jitter=30.0,
        overlap="allow",
        note="ask Ada\x1b[2J",
        spec={"cron": "0 2 * * *", "exclude": ["2027-12-24", {"calendar": "holidays"}]},
        task={"type": "report", "payload": {"to": "ada"}, "labels": {"a": "b"}},
    )

    said = schedules("show", "nightly")

    assert said.code == 0
    for words in (
        "Schedule nightly  active",
        "cron 0 2 * * *",
        "every day at 02:00",
        "2027-12-24, calendar holidays",
        "jitter      30s",
        "overlap     allow",
        "a=b",
        "12 fired, 1 skipped, 0 missed",
        "2030-01-01 01:00:00Z  2030-01-01 02:00:00+01:00",
        '"to": "ada"',
    ):
        assert words in said.out
    assert "\x1b" not in said.out
    assert "misfire" not in said.out
    assert schedules("show", "nightly", "--json").json["words"] == "every day at 02:00"


def test_a_schedule_is_paused_resumed_triggered_and_deleted(schedules: Run, server: ScheduleServer) -> None:
    server.add("a")

    assert schedules("pause", "a", "--note", "too loud").out == "a  paused, version 1\n"
    assert schedules("resume", "a").out.startswith("a  active, version 1, next fire ")
    assert schedules("trigger", "a").out == f"{TASK}  a\n"
    assert schedules("trigger", "a", "--as-of", "2026-01-01T00:00:00Z").code == 0
    assert schedules("delete", "a", "--tasks", "cancel").out == "Deleted schedule a; cancelled 3 tasks of it.\n"

    assert server.sent("POST", "/v1/schedules/a/pause")[0].body == {"note": "too loud"}
    assert [each.body for each in server.sent("POST", "/v1/schedules/a/trigger")] == [
        {},
        {"as_of": "2026-01-01T00:00:00+00:00"},
    ]
    assert server.sent("DELETE", "/v1/schedules/a")[0].query == {"tasks": "cancel"}


def test_a_backfill_is_started_watched_listed_and_cancelled(schedules: Run, server: ScheduleServer) -> None:
    server.add("a")
    span = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-03T00:00:00Z")

    started = schedules("backfill", "a", *span, "--rate", "5")
    watched = schedules("backfill", "a", *span, "--wait")
    server.backfill_states = ["cancelled"]
    stopped = schedules("backfill", "a", *span, "--wait", "--json")

    assert (started.code, started.out) == (0, "Backfill 1  running\n")
    assert server.sent("POST", "/v1/schedules/a/backfill")[0].body == {
        "from": "2026-01-01T00:00:00+00:00",
        "to": "2026-01-03T00:00:00+00:00",
        "rate": 5.0,
    }
    assert (watched.code, watched.out) == (0, "Backfill 1  done, 48 tasks made.\n")
    assert (stopped.code, stopped.json["state"]) == (1, "cancelled")
    assert "1   done   " in schedules("backfills", "a").out
    assert schedules("backfills", "a", "--json").json["items"][0]["id"] == 1
    assert schedules("backfill-cancel", "a", "1").out == "Backfill 1  cancelled, 48 tasks made.\n"


def test_runs_are_listed_with_what_became_of_them(schedules: Run, server: ScheduleServer) -> None:
    server.add("a")
    reason = "the last one still runs"
    server.runs = [
        {
            "fire_time": "2020-01-02T02:00:00Z",
            "at": "2020-01-02T02:00:01Z",
            "cause": "schedule",
            "outcome": "skipped",
            "reason": reason,
            "task": None,
            "state": None,
        }
    ]

    said = schedules("runs", "a", "--limit", "5")

    assert said.out.startswith("FIRE TIME ")
    assert said.out.splitlines()[1].split()[2:] == ["schedule", "skipped", "-", "-", "-", *reason.split()]
    assert server.sent("GET", "/v1/schedules/a/runs")[0].query == {"limit": "5"}


def test_fires_are_previewed_by_name_or_by_options(schedules: Run, server: ScheduleServer) -> None:
    server.add("a")

    stored = schedules("preview", "a", "-n", "3")
    new = schedules("preview", "--cron", "0 2 * * *", "--timezone", "Europe/Berlin", "--from", "2030-01-01T00:00:00Z")

    assert stored.out.splitlines() == [
        "every day at 02:00",
        "AT                    BY ITS CLOCK               NOTE",
        "2030-01-01 01:00:00Z  2030-01-01 02:00:00+01:00  excluded; calendar holidays",
        "2030-01-02 01:00:00Z  2030-01-02 02:00:00+01:00",
        "2030-01-03 01:00:00Z  2030-01-03 02:00:00+01:00",
    ]
    assert new.code == 0
    assert server.sent("POST", "/v1/schedules/preview")[0].body == {
        "spec": {"cron": "0 2 * * *"},
        "timezone": "Europe/Berlin",
        "from": "2030-01-01T00:00:00+00:00",
        "count": 10,
    }


def test_calendars_are_put_listed_shown_and_deleted(schedules: Run, run: Run, server: ScheduleServer) -> None:
    put = run("calendars", "put", "holidays", "--date", "2027-12-24", "--date", "2027-12-31..2028-01-02")
    from_file = run("calendars", "put", "days", "--file", "-", stdin="- 2027-12-24\n- {cron: '* * * * SUN'}\n")

    assert (put.code, put.out) == (0, "Calendar holidays has 2 entries.\n")
    assert server.calendars["holidays"]["dates"] == ["2027-12-24", {"from": "2027-12-31", "to": "2028-01-02"}]
    assert from_file.code == 0
    assert "holidays  2        2027-12-24, 2027-12-31 to 2028-01-02" in run("calendars", "list").out
    assert "  cron * * * * SUN\n" in run("calendars", "show", "days").out
    assert json.loads(run("calendars", "show", "days", "--json").out)["name"] == "days"
    assert run("calendars", "delete", "days").out == "Deleted calendar days.\n"
    assert run("calendars", "delete", "days").code == 1


def test_a_list_of_calendars_goes_on_to_its_last_page(schedules: Run, run: Run) -> None:
    for name in ("a", "b", "c", "d", "e"):
        run("calendars", "put", name, "--date", "2027-12-24")

    listed = run("calendars", "list")
    told = json.loads(run("calendars", "list", "--json").out)

    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == ["a", "b", "c", "d", "e"]
    assert ([each["name"] for each in told["items"]], told["next"]) == (["a", "b", "c", "d", "e"], None)
