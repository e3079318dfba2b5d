"""CronJobs of Kubernetes: what a schedule can say is carried over, the rest is reported by its path."""

from typing import Any

import pytest

from duetime.cli.schedules.cronjobs import CronJobOptions, defaults_of, import_cronjobs
from duetime.cli.schedules.crontab import Imported
from duetime.cli.schedules.documents import read_documents
from duetime.cli.schedules.files import FileText, read_contents
from duetime.cli.schedules.importing import write_file
from duetime.errors import UsageError

BACKUP = """
apiVersion: batch/v1
kind: CronJob
metadata:
  name: db-backup
  namespace: prod
  labels: {app: db, app.kubernetes.io/part-of: shop}
  annotations: {owner: data}
spec:
  schedule: "0 3 * * *"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 300
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 1
  suspend: true
  jobTemplate:
    metadata: {labels: {a: b}}
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 3600
      parallelism: 2
      completions: 4
      template:
        spec:
          restartPolicy: OnFailure
          serviceAccountName: backup
          initContainers: [{name: wait, image: busybox}]
          containers:
          - name: backup
            image: postgres:17
            imagePullPolicy: IfNotPresent
            command: [pg_dump]
            args: ["-Fc", "app"]
            env: [{name: PGHOST, value: db}]
            volumeMounts: [{name: out, mountPath: /out}]
          volumes: [{name: out, emptyDir: {}}]
status: {lastScheduleTime: "2026-01-01T00:00:00Z"}
"""
POD = "jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: busybox}]}}}}"


def imported(text: str) -> Imported:
    return import_cronjobs(read_documents("k8s.yaml", text.encode()), CronJobOptions())


def small(spec: str, name: str = "small") -> str:
    return f"kind: CronJob\nmetadata: {{name: {name}}}\nspec:\n  schedule: '*/5 * * * *'\n  {POD}\n  {spec}\n"


def definition(text: str) -> dict[str, Any]:
    found = imported(text)
    ((_, value),) = found.schedules.items()
    return value


def test_a_whole_cronjob_is_carried_over() -> None:
    found = imported(BACKUP)

    assert found.schedules == {
        "db-backup": {
            "spec": {"cron": "0 3 * * *"},
            "timezone": "Europe/Berlin",
            "overlap": "skip",
            "misfire": "fire_latest",
            "catchup_window": 300,
            "paused": True,
            "task": {
                "payload": {
                    "namespace": "prod",
                    "containers": [
                        {"name": "backup", "image": "postgres:17", "command": ["pg_dump"], "args": ["-Fc", "app"]}
                    ],
                },
                "retry": {"max_attempts": 3},
                "timeout": 3600,
                "labels": {"app": "db", "app.kubernetes.io/part-of": "shop"},
            },
        }
    }


def test_what_is_not_carried_over_is_named_by_its_path() -> None:
    (report,) = imported(BACKUP).report

    title, _, paths = report.partition(": not carried over: ")
    assert title == "CronJob prod/db-backup"
    work, pod = "spec.jobTemplate.spec", "spec.jobTemplate.spec.template.spec"
    assert paths.split(", ") == [
        "spec.successfulJobsHistoryLimit",
        "spec.failedJobsHistoryLimit",
        "spec.jobTemplate.metadata.labels",
        f"{work}.parallelism",
        f"{work}.completions",
        f"{pod}.serviceAccountName",
        f"{pod}.initContainers",
        f"{pod}.containers[0].env",
        f"{pod}.containers[0].volumeMounts",
        f"{pod}.volumes",
    ]


@pytest.mark.parametrize(
    ("policy", "overlap"), [("Allow", "allow"), ("Forbid", "skip"), ("Replace", "terminate_other"), (None, "allow")]
)
def test_concurrency_policies_have_their_overlap(policy: str | None, overlap: str) -> None:
    assert definition(small(f"concurrencyPolicy: {policy}" if policy else ""))["overlap"] == overlap


@pytest.mark.parametrize(
    ("schedule", "spec", "zone"),
    [
        ("CRON_TZ=America/New_York 0 6 * * 1", {"cron": "0 6 * * 1"}, "America/New_York"),
        ("TZ=Asia/Tokyo  0 6 * * 1", {"cron": "0 6 * * 1"}, "Asia/Tokyo"),
        ("@daily", {"cron": "0 0 * * *"}, None),
        ("@every 1h30m", {"every": "1h30m"}, None),
    ],
)
def test_zones_and_words_of_a_schedule_are_understood(schedule: str, spec: dict[str, str], zone: str | None) -> None:
    found = definition(small("").replace("*/5 * * * *", schedule))

    assert (found["spec"], found.get("timezone")) == (spec, zone)


def test_a_deadline_below_ten_seconds_becomes_ten() -> None:
    found = imported(small("startingDeadlineSeconds: 5"))

    assert found.schedules["small"]["catchup_window"] == 10
    assert found.report == ["CronJob small: startingDeadlineSeconds 5 became 10, the least"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (small("suspend: false").replace("schedule:", "schedul:"), "spec.schedule is missing"),
        (small("").replace("*/5 * * * *", "every day"), "spec.schedule every day is not a cron line of five fields"),
        (small("concurrencyPolicy: Never"), "concurrencyPolicy Never is not known"),
        (small("startingDeadlineSeconds: soon"), "startingDeadlineSeconds is not a number from 0 on"),
        ("kind: CronJob\nmetadata: {name: small}\nspec: {schedule: '* * * * *'}\n", "it has no containers"),
    ],
)
def test_a_cronjob_that_cannot_be_carried_over_is_reported(text: str, reason: str) -> None:
    found = imported(text)

    assert found.schedules == {}
    assert found.report == [f"CronJob small: {reason}; not carried over"]


def test_lists_and_several_documents_are_read_and_other_kinds_reported() -> None:
    listed = "\n".join("    " + line for line in small("").splitlines())
    text = (
        f"kind: List\nitems:\n  -\n{listed}\n---\n{small('', 'second')}\n---\n"
        "kind: Deployment\nmetadata: {name: web, namespace: prod}\n---\n"
    )

    found = imported(text)

    assert list(found.schedules) == ["small", "second"]
    assert found.report == ["k8s.yaml: Deployment prod/web is not a CronJob: not carried over"]


def test_items_of_a_cronjob_list_need_no_kind() -> None:
    item = {"metadata": {"name": "a"}, "spec": {"schedule": "@daily"}}

    found = imported(f"kind: CronJobList\nitems: [{item}]\n")

    assert found.report == ["CronJob a: it has no containers; not carried over"]


def test_the_same_name_in_two_namespaces_gets_two_names() -> None:
    text = BACKUP + "---" + BACKUP.replace("prod", "staging") + "---" + BACKUP.replace("prod", "staging")

    names = list(imported(text).schedules)

    assert names[:2] == ["db-backup", "staging-db-backup"]
    assert names[2].startswith("staging-db-backup-")


def test_labels_that_cannot_be_are_reported() -> None:
    found = imported(BACKUP.replace("app: db", "x" * 64 + ": y"))

    assert found.schedules["db-backup"]["task"]["labels"] == {"app.kubernetes.io/part-of": "shop"}  # type: ignore[index]
    assert f"the label {'x' * 64} is not carried over" in found.report[0]


def test_what_is_no_manifest_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"k8s.yaml: it is not a manifest of Kubernetes"):
        imported("schedules: {}\n")


def test_the_file_that_is_written_can_be_applied() -> None:
    options = CronJobOptions("UTC", "kubernetes.job", "batch")

    text = write_file(imported(BACKUP), defaults_of(options), "k8s", "Made of k8s.yaml.")
    contents = read_contents([FileText("a.yaml", text.encode(), "x")])

    task = contents.schedules["db-backup"].canonical["task"]
    assert isinstance(task, dict)
    assert (task["type"], task["queue"], task["timeout"]) == ("kubernetes.job", "batch", "1h")
