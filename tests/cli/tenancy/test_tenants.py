"""`duetime tenants`, `tiers` and `audit`, on a real node."""

from cli.conftest import Run


def test_a_tenant_that_is_not_there_is_not_made_by_suspending_it(duetime: Run) -> None:
    for verb in ("suspend", "resume"):
        said = duetime("tenants", verb, "misspelt")

        assert (said.code, said.complaint) == (1, "duetime: there is no tenant misspelt\n")


def test_an_admin_key_acts_for_another_tenant(duetime: Run, name: str) -> None:
    duetime("tenants", "put", "team-b")

    key = duetime("keys", "create", "--role", "producer", "--tenant", "team-b").out.strip()
    task = duetime("submit", name, "--key", key, "--json").json
    refused = duetime("tasks", "list", "--key", key, "--tenant", "default")

    assert task["tenant"] == "team-b"
    assert duetime("tasks", "list", "--type", name, "--tenant", "team-b", "--json").json["items"][0]["id"] == task["id"]
    assert duetime("tasks", "list", "--type", name, "--json").json["items"] == []
    assert duetime("submit", "--file", "-", "--tenant", "team-b", stdin=f'{{"type": "{name}"}}').code == 0
    assert len(duetime("tasks", "list", "--type", name, "--tenant", "team-b", "--json").json["items"]) == 2
    assert refused.code == 1
    assert duetime("tasks", "list", "--tenant", "nobody").code == 1


def test_the_audit_shows_values_as_json(duetime: Run, name: str) -> None:
    for rules in ("{}", '{"throttle": {"limit": 5, "period": 60}}'):
        duetime("types", "put", name, "--file", "-", stdin=rules)

    changed, made = duetime("audit", "-n", "2").out.splitlines()[1:]

    assert changed.endswith('throttle (none) → {"limit":5,"period":60.0}')
    assert made.endswith(f"type.create  {name}")


def test_quotas_are_set_shown_and_unset(duetime: Run) -> None:
    made = duetime("tiers", "put", "gold", "--weight", "4", "--max-running", "50")
    put = duetime(
        "tenants", "put", "acme", "--tier", "gold", "--spread", "2", "--submit-rate", "2.5", "--max-waiting", "0"
    )
    shown = duetime("tenants", "show", "acme")
    listed = duetime("tenants", "list")
    unset = duetime("tenants", "put", "acme", "--unset", "submit-rate", "--unset", "tier", "--json")

    assert made.out == "Tier gold: weight 4, max_running=50; 0 tenants.\n"
    assert (
        shown.out
        == put.out
        == (
            "Tenant acme: active, weight 4, tier gold, over 2 shards, submit_rate=2.5 max_waiting=0.\n"
            "From tier gold: max_running=50.\n"
            "Defaults: submit_bytes_rate=67,108,864 submit_bytes_burst=268,435,456 max_schedules=100,000 "
            "max_types=1,000 max_keys=1,000 max_calendars=1,000 max_calendar_bytes=67,108,864.\n"
        )
    )
    assert "submit_rate=2.5" in listed.out
    assert (unset.json["tier"], unset.json["quotas"]) == (None, {"max_waiting": 0})
    assert "max_waiting is 0" in duetime("tenants", "put", "acme", "--weight", "2").err
    held = duetime(
        "tenants", "put", "acme", "--max-schedules", "100", "--max-keys", "20", "--unset", "max-types", "--json"
    )
    assert held.json["quotas"] == {"max_waiting": 0, "max_schedules": 100, "max_keys": 20}
    breaker = duetime("tenants", "put", "acme", "--breaker-window", "10m", "--breaker-probe-every", "5", "--json")
    assert (breaker.json["quotas"]["breaker_window"], breaker.json["quotas"]["breaker_probe_every"]) == (600, 5)
    assert [tier["name"] for tier in duetime("tiers", "list", "--json").lines] == ["default", "gold"]
    assert duetime("tiers", "list", "--json").lines[1]["tenants"] == 0
    assert duetime("tiers", "delete", "gold").out == "Deleted tier gold.\n"


def test_defaults_are_lifted_one_by_one_or_all_together(duetime: Run) -> None:
    lifted = duetime("tenants", "put", "free", "--max-waiting", "unlimited", "--max-keys", "5000")
    none = duetime("tenants", "put", "free", "--no-defaults")
    again = duetime("tenants", "put", "free", "--defaults", "--unset", "quotas", "--json")
    listed = duetime("tiers", "show", "default")
    kept = duetime("tiers", "delete", "default")
    wrong = duetime("tenants", "put", "free", "--max-types", "unlimited")

    assert lifted.out.startswith("Tenant free: active, weight 1, max_waiting=unlimited max_keys=5,000.\nDefaults: ")
    assert none.out.endswith("max_keys=5,000.\nDefaults: max_types=1,000 max_calendars=1,000.\n")
    assert "without default quotas" in none.out
    assert (again.json["defaults"], again.json["quotas"]) == (True, {})
    assert again.json["effective"]["sources"]["max_waiting"] == "default"
    assert "max_waiting=10,000,000" in listed.out
    assert (kept.code, "cannot be deleted" in kept.err) == (1, True)
    assert (wrong.code, "--max-types cannot be unlimited" in wrong.err) == (2, True)


def test_a_wrong_quota_is_said_before_anything_is_sent(run: Run) -> None:
    for words, said in (
        (("--submit-rate", "fast"), "'fast' is not a rate"),
        (("--max-waiting", "-1"), "--max-waiting"),
        (("--unset", "colour"), "--unset"),
    ):
        assert said in run("tenants", "put", "acme", *words).err
    both = run(
        "tenants", "put", "acme", "--rate", "1", "--unset", "quotas", "--url", "http://127.0.0.1:1", "--key", "k"
    )
    assert "both set and unset" in both.err
