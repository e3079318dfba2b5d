"""The plan: what is created, changed, kept, deleted, and left alone."""

from typing import Any

import pytest

from duetime.cli.schedules.fields import canonical, canonical_dates
from duetime.cli.schedules.files import Wanted, WantedCalendar
from duetime.cli.schedules.plan import (
    Change,
    Step,
    StepKind,
    differences,
    is_same,
    plan_calendar,
    plan_schedules,
    summary,
    totals,
)


def wanted(name: str = "nightly", **fields: Any) -> Wanted:
    definition = {"spec": {"cron": "0 2 * * *"}, "task": {"type": "report"}, **fields}
    return Wanted(name, "crons", definition, canonical(definition))


def stored(name: str = "nightly", **fields: Any) -> dict[str, Any]:
    definition = {"spec": {"cron": ["0 2 * * *"]}, "task": {"type": "report", "queue": "default"}, "jitter": 0.0}
    rest = {"name": name, "state": "active", "version": 3, "origin": "file", "source": "crons", "note": None}
    return {**definition, **rest, **fields}


def plan(want: list[Wanted], have: list[dict[str, Any]], *, prune: bool = False) -> list[Step]:
    return list(plan_schedules(want, {each["name"]: each for each in have}, prune=prune))


def words(step: Step) -> list[str]:
    return [change.words() for change in step.changes]


def test_what_is_not_there_is_created_with_its_owner() -> None:
    (step,) = plan([wanted(jitter="5m")], [])

    assert step.action is StepKind.CREATE
    assert step.body == {
        "name": "nightly",
        "spec": {"cron": "0 2 * * *"},
        "task": {"type": "report"},
        "jitter": "5m",
        "origin": "file",
        "source": "crons",
    }


def test_what_means_the_same_is_unchanged() -> None:
    (step,) = plan([wanted(catchup_window="24h", timezone="UTC")], [stored(catchup_window=86400.0)])

    assert (step.action, step.changes) == (StepKind.UNCHANGED, ())


def test_changes_are_told_field_by_field() -> None:
    want = wanted(
        timezone="Europe/Berlin",
        jitter="90s",
        task={"type": "report", "payload": {"to": "ada", "n": 1, "new": [1]}, "target": {"url": "http://a"}},
    )
    have = stored(task={"type": "report", "payload": {"to": "bob", "n": 1, "old": True}}, catchup_rate=5)

    (step,) = plan([want], [have])

    assert step.action is StepKind.CHANGE
    assert sorted(words(step)) == [
        "catchup_rate: 5 → 10",
        "jitter: 0s → 1m30s",
        "task.payload.new: (none) → [1]",
        "task.payload.old: true → (none)",
        "task.payload.to: bob → ada",
        'task.target: (none) → {"method": "POST", "headers": {}, "secret_headers": [], "timeout": null,…',
        "timezone: UTC → Europe/Berlin",
    ]


def test_a_pause_of_an_operator_outlives_a_change() -> None:
    have = stored(state="paused", note="until Monday")

    (same,) = plan([wanted()], [have])
    (changed,) = plan([wanted(jitter=5)], [have])
    (resumed,) = plan([wanted(paused=False)], [have])

    assert same.action is StepKind.UNCHANGED
    assert changed.body is not None
    assert (changed.body["paused"], changed.body["note"]) == (True, "until Monday")
    assert words(changed) == ["jitter: 0s → 5s"]
    assert words(resumed) == ["paused: true → false"]


def test_what_no_file_has_any_more_is_deleted_only_when_pruning() -> None:
    have = [stored("old"), stored()]

    assert [step.action for step in plan([wanted()], have)] == [StepKind.UNCHANGED]
    assert [(step.action, step.name) for step in plan([wanted()], have, prune=True)] == [
        (StepKind.UNCHANGED, "nightly"),
        (StepKind.DELETE, "old"),
    ]


@pytest.mark.parametrize(
    ("owner", "remark"),
    [
        ({"origin": "api", "source": ""}, "it belongs to origin api"),
        ({"origin": "file", "source": "others"}, "it belongs to origin file, source others"),
    ],
)
def test_what_belongs_to_others_is_left_alone(owner: dict[str, str], remark: str) -> None:
    (step,) = plan([wanted(jitter=5)], [stored(**owner)], prune=True)

    assert (step.action, step.remark, step.body) == (StepKind.CONFLICT, remark, None)


def test_calendars_are_compared_by_what_they_mean() -> None:
    dates: list[object] = ["2027-12-25", "2027-12-24"]
    want = WantedCalendar("holidays", dates, canonical_dates(dates))

    assert plan_calendar(want, None).action is StepKind.CREATE
    assert plan_calendar(want, canonical_dates(["2027-12-24", "2027-12-25"])).action is StepKind.UNCHANGED
    assert words(plan_calendar(want, [])) == ['dates: [] → ["2027-12-24", "2027-12-25"]']


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (1, True, False), (0, False, False), ([1], [True], False), ({"a": 1}, {"a": 1.0}, True)],
)
def test_values_are_compared_as_json(one: object, other: object, same: bool) -> None:
    assert is_same(one, other) is same
    assert bool(list(differences(one, other))) is not same


def test_lists_of_mappings_are_compared_place_by_place() -> None:
    before, after = {"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 1}, {"x": 3}]}

    assert list(differences(before, after)) == [Change("a[1].x", 2, 3)]


def test_long_values_are_shown_from_where_they_differ() -> None:
    said = Change("a", "x" * 100 + "1" + "y" * 100, "x" * 100 + "2").words()

    assert said == f"a: …{'x' * 16}1{'y' * 55}… → …{'x' * 16}2"


def test_texts_that_could_be_misread_are_quoted() -> None:
    assert Change("a", "", " x").words() == 'a: "" → " x"'
    assert Change("a", None, "(none)").words() == 'a: (none) → "(none)"'


def test_totals_count_every_action() -> None:
    steps = plan([wanted(), wanted("new")], [stored(), stored("old")], prune=True)

    assert totals(steps) == {
        StepKind.CREATE: 1,
        StepKind.CHANGE: 0,
        StepKind.UNCHANGED: 1,
        StepKind.DELETE: 1,
        StepKind.CONFLICT: 0,
    }


def test_a_summary_says_when_and_what() -> None:
    definition = {
        "spec": {"cron": ["0 2 * * *", "0 4 * * *"], "dates": ["2027-01-01"]},
        "timezone": "Europe/Berlin",
        "task": {"type": "report"},
    }

    assert summary(canonical(definition)) == "cron 0 2 * * * | 0 4 * * *, 1 dates, Europe/Berlin, report"
