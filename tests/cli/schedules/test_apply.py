"""Apply files of schedules: the plan, what is sent, and how it ends."""

from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run
from cli.schedule_server import Request, ScheduleServer

FILE = """\
defaults:
  timezone: Europe/Berlin
schedules:
  nightly:
    spec: {cron: 0 2 * * *}
    task: {type: report, payload: {to: ada}}
  poll:
    spec: {every: 15m}
    task: {type: report}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "crons.yaml"
    found.write_text(FILE)
    return found


def batches(server: ScheduleServer) -> list[Any]:
    return [request.body["items"] for request in server.sent("POST", "/v1/schedules/batch")]


def writes(server: ScheduleServer) -> list[Request]:
    reads = ("/v1/schedules/preview",)
    return [each for each in server.requests if each.method != "GET" and each.path not in reads]


def test_applying_twice_changes_nothing_the_second_time(schedules: Run, server: ScheduleServer, file: Path) -> None:
    first = schedules("apply", "-f", str(file))
    second = schedules("apply", "-f", str(file))

    assert first.code == 0
    assert first.out.splitlines() == [
        "+ create     nightly  cron 0 2 * * *, Europe/Berlin, report",
        "+ create     poll     every 15m, Europe/Berlin, report",
        "Plan: 2 to create.",
        "Applied: 2 created.",
    ]
    assert second.code == 0
    assert second.out.splitlines()[-2:] == ["Plan: 2 unchanged.", "Applied: 2 unchanged."]
    (items,) = batches(server)
    assert items[0] == {
        "name": "nightly",
        "timezone": "Europe/Berlin",
        "spec": {"cron": "0 2 * * *"},
        "task": {"type": "report", "payload": {"to": "ada"}},
        "origin": "file",
        "source": "crons",
    }


def test_the_plan_shows_every_change_and_a_dry_run_makes_none(
    schedules: Run, server: ScheduleServer, file: Path
) -> None:
    owned = {"origin": "file", "source": "crons"}
    server.add("nightly", task={"type": "report", "payload": {"to": "bob"}}, **owned)
    server.add("old", spec={"every": 60.0}, **owned)
    server.add("older", spec={"every": 60.0}, **owned)

    said = schedules("apply", "-f", str(file), "--dry-run", "--prune")
    kept = schedules("apply", "-f", str(file), "--dry-run")

    assert said.code == 0
    assert said.out.splitlines() == [
        "~ change     nightly",
        "               timezone: UTC → Europe/Berlin",
        "               task.payload.to: bob → ada",
        "+ create     poll     every 15m, Europe/Berlin, report",
        "- delete     old      every 1m, UTC, report",
        "- delete     older    every 1m, UTC, report",
        "Plan: 1 to create, 1 to change, 2 to delete.",
    ]
    assert kept.err == "2 schedules of this source are in no file; --prune would delete them.\n"
    assert writes(server) == []


def test_a_dry_run_can_tell_by_its_exit_code(schedules: Run, server: ScheduleServer, file: Path) -> None:
    before = schedules("apply", "-f", str(file), "--dry-run", "--exit-code")
    schedules("apply", "-f", str(file))
    after = schedules("apply", "-f", str(file), "--dry-run", "--exit-code")
    server.schedules["poll"]["source"] = "others"
    conflict = schedules("apply", "-f", str(file), "--dry-run", "--exit-code")

    assert (before.code, after.code, conflict.code) == (3, 0, 1)


def test_a_dry_run_lets_the_server_judge(schedules: Run, server: ScheduleServer, file: Path) -> None:
    file.write_text(FILE.replace("0 2 * * *", "0 2 * *"))

    said = schedules("apply", "-f", str(file), "--dry-run")

    assert said.code == 1
    assert said.err == (
        "duetime: schedule nightly would be refused: spec.cron: '0 2 * *' is not a cron line of five fields\n"
    )
    assert server.sent("POST", "/v1/schedules/preview")[0].body == {
        "timezone": "Europe/Berlin",
        "spec": {"cron": "0 2 * *"},
        "task": {"type": "report", "payload": {"to": "ada"}},
        "count": 1,
    }
    assert writes(server) == []


def test_pruning_deletes_what_no_file_has_and_nothing_of_others(
    schedules: Run, server: ScheduleServer, file: Path
) -> None:
    server.add("old", origin="file", source="crons")
    server.add("foreign", origin="file", source="others")
    server.add("manual")

    said = schedules("apply", "-f", str(file), "--prune")

    assert said.out.splitlines()[-1] == "Applied: 2 created, 1 deleted."
    assert set(server.schedules) == {"nightly", "poll", "foreign", "manual"}
    assert server.sent("DELETE", "/v1/schedules/old")[0].query == {"version": "1"}


def test_schedules_of_others_are_conflicts_and_left_alone(schedules: Run, server: ScheduleServer, file: Path) -> None:
    server.add("nightly")

    said = schedules("apply", "-f", str(file))

    assert said.code == 1
    assert "! conflict   nightly  it belongs to origin api" in said.out
    assert said.out.splitlines()[-1] == "Applied: 1 created, 1 left alone."
    assert server.schedules["nightly"]["version"] == 1


def test_refused_ones_are_named_and_the_others_done(schedules: Run, server: ScheduleServer, file: Path) -> None:
    file.write_text(FILE.replace("0 2 * * *", "0 2 * *"))

    said = schedules("apply", "-f", str(file))
    as_json = schedules("apply", "-f", str(file), "--json")

    assert said.code == 1
    assert "schedule nightly was refused: spec.cron: '0 2 * *' is not a cron line of five fields" in said.err
    assert said.out.splitlines()[-1] == "Applied: 1 created, 1 refused."
    assert as_json.code == 1
    assert as_json.json["refused"] == 1
    assert as_json.json["done"]["unchanged"] == 1
    assert [each.get("error", "") != "" for each in as_json.json["items"]] == [True, False]


def test_many_schedules_go_in_chunks_and_are_read_in_pages(
    schedules: Run, server: ScheduleServer, tmp_path: Path
) -> None:
    lines = [f"  s{number:04}: {{spec: {{every: 1h}}, task: {{type: x}}}}" for number in range(1_201)]
    (tmp_path / "many.yaml").write_text("\n".join(["schedules:", *lines]))
    server.page = 200

    first = schedules("apply", "-f", str(tmp_path / "many.yaml"))
    server.requests.clear()
    second = schedules("apply", "-f", str(tmp_path / "many.yaml"))

    assert first.out.splitlines()[-1] == "Applied: 1,201 created."
    assert second.out.splitlines() == [
        "= unchanged  1,201 of them",
        "Plan: 1,201 unchanged.",
        "Applied: 1,201 unchanged.",
    ]
    assert [request.query.get("cursor") for request in server.requests] == [
        *(None, "200", "400", "600", "800", "1000", "1200"),
    ]


def test_chunks_have_at_most_500(schedules: Run, server: ScheduleServer, tmp_path: Path) -> None:
    lines = [f"  s{number:04}: {{spec: {{every: 1h}}, task: {{type: x}}}}" for number in range(501)]
    (tmp_path / "many.yaml").write_text("\n".join(["schedules:", *lines]))

    schedules("apply", "-f", str(tmp_path / "many.yaml"))

    assert [len(items) for items in batches(server)] == [500, 1]


def test_names_that_turn_out_to_be_taken_are_left_alone(schedules: Run, server: ScheduleServer, tmp_path: Path) -> None:
    lines = [f"  s{number:04}: {{spec: {{every: 1h}}, task: {{type: x}}}}" for number in range(501)]
    (tmp_path / "many.yaml").write_text("\n".join(["schedules:", *lines]))
    server.add("s0007")

    dry = schedules("apply", "-f", str(tmp_path / "many.yaml"), "--dry-run")
    said = schedules("apply", "-f", str(tmp_path / "many.yaml"))

    assert "Whether 501 new names are free is not looked up" in dry.err
    assert said.code == 1
    assert said.err == "duetime: schedule s0007 is left alone: schedule s0007 belongs to origin api\n"
    assert said.out.splitlines()[-1] == "Applied: 500 created, 1 left alone."


def test_calendars_are_put_before_the_schedules_that_use_them(
    schedules: Run, server: ScheduleServer, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(
        "schedules:\n  a: {spec: {every: 1h, exclude: [{calendar: days}]}, task: {type: x}}\n"
        "calendars:\n  days: [2027-12-24]\n"
    )

    dry = schedules("apply", "-f", str(tmp_path / "a.yaml"), "--dry-run")
    schedules("apply", "-f", str(tmp_path / "a.yaml"))
    again = schedules("apply", "-f", str(tmp_path / "a.yaml"))

    assert dry.code == 0
    assert [(each.method, each.path) for each in writes(server)] == [
        ("PUT", "/v1/calendars/days"),
        ("POST", "/v1/schedules/batch"),
    ]
    assert server.sent("POST", "/v1/schedules/preview") == []
    assert again.out.splitlines()[-1] == "Applied: 2 unchanged."


def test_a_folder_is_one_source_and_files_are_each_their_own(
    schedules: Run, server: ScheduleServer, tmp_path: Path
) -> None:
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "a.yaml").write_text("schedules: {a: {spec: {every: 1h}, task: {type: x}}}")
    (folder / "b.toml").write_text('[schedules.b]\nspec.every = "1h"\ntask.type = "x"\n')
    (folder / "c.yml").write_text("source: own\nschedules: {c: {spec: {every: 1h}, task: {type: x}}}")
    (folder / ".hidden.yaml").write_text("oops")
    (folder / "README.md").write_text("oops")

    assert schedules("apply", "-f", str(folder)).code == 0
    sources = {name: each["source"] for name, each in server.schedules.items()}
    server.schedules.clear()
    assert schedules("apply", "-f", str(folder / "a.yaml"), str(folder / "b.toml")).code == 0
    alone = {name: each["source"] for name, each in server.schedules.items()}
    server.schedules.clear()
    assert schedules("apply", "-f", str(folder), "--source", "given").code == 0

    assert sources == {"a": "team", "b": "team", "c": "own"}
    assert alone == {"a": "a", "b": "b"}
    assert {each["source"] for each in server.schedules.values()} == {"given"}


def test_a_wrong_file_is_refused_whole(schedules: Run, server: ScheduleServer, file: Path) -> None:
    file.write_text(FILE + "  poll:\n    spec: {every: 1h}\n")

    said = schedules("apply", "-f", str(file))

    assert (said.code, said.out, server.requests) == (2, "", [])
    assert said.err == f"duetime: {file} line 10: schedules.poll is given twice\n"


def test_standard_input_must_say_its_source(schedules: Run, server: ScheduleServer) -> None:
    nameless = schedules("apply", "-f", "-", stdin=FILE)
    named = schedules("apply", "-f", "-", "--source", "pipe", stdin=FILE)

    assert (nameless.code, nameless.out) == (2, "")
    assert "standard input: it says no `source:`" in nameless.err
    assert named.code == 0
    assert {each["source"] for each in server.schedules.values()} == {"pipe"}


def test_a_pause_of_an_operator_is_kept(schedules: Run, server: ScheduleServer, file: Path) -> None:
    schedules("apply", "-f", str(file))
    schedules("pause", "poll", "--note", "too loud")

    same = schedules("apply", "-f", str(file))
    file.write_text(FILE.replace("15m", "20m"))
    schedules("apply", "-f", str(file))

    assert same.out.splitlines()[-1] == "Applied: 2 unchanged."
    assert (server.schedules["poll"]["state"], server.schedules["poll"]["note"]) == ("paused", "too loud")
    assert server.schedules["poll"]["spec"] == {"every": "20m"}


def test_an_import_writes_a_file_that_can_be_applied(schedules: Run, server: ScheduleServer, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text("MAILTO=a\n# Nightly\n0 2 * * * /opt/run.sh\n")
    made = tmp_path / "made.yaml"

    said = schedules("import", "crontab", str(tmp_path / "crontab"), "-o", str(made), "--timezone", "Europe/Berlin")
    applied = schedules("apply", "-f", str(made))

    assert said.code == 0
    assert said.err == f"{tmp_path}/crontab line 1: MAILTO=a is not carried over: set it where the command runs\n"
    assert said.out.startswith(f"Wrote {made}: 1 schedule, 1 remark. Next: duetime schedules apply -f")
    assert applied.code == 0
    stored = server.schedules["nightly"]
    assert (stored["source"], stored["overlap"], stored["timezone"]) == ("crontab", "allow", "Europe/Berlin")
    assert stored["task"]["payload"] == {"command": "/opt/run.sh"}


def test_an_import_can_be_applied_at_once(schedules: Run, server: ScheduleServer, tmp_path: Path) -> None:
    manifest = tmp_path / "k8s.yaml"
    manifest.write_text(
        "kind: CronJob\nmetadata: {name: a}\nspec:\n  schedule: '@daily'\n"
        "  jobTemplate: {spec: {template: {spec: {containers: [{image: busybox}]}}}}\n"
    )

    dry = schedules("import", "kubernetes", str(manifest), "--apply", "--dry-run")
    said = schedules("import", "kubernetes", str(manifest), "--apply", "--queue", "batch", "--source", "cluster")

    assert "+ create     a  cron 0 0 * * *, UTC, kubernetes.job" in dry.out
    assert said.code == 0
    assert (server.schedules["a"]["source"], server.schedules["a"]["task"]["queue"]) == ("cluster", "batch")


def test_an_import_without_an_output_is_printed(schedules: Run, server: ScheduleServer) -> None:
    said = schedules("import", "crontab", "-", stdin="0 2 * * * /opt/run.sh\n")

    assert said.code == 0
    assert said.out.startswith("# Made of -.\nsource: crontab\n")
    assert "taken as UTC" in said.err
    assert server.requests == []
