"""`duetime tenants` and `duetime tiers`."""

from cli.conftest import Run


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
        == ("Tenant acme: active, weight 4, tier gold, over 2 shards, submit_rate=2.5 max_waiting=0 max_running=50.\n")
    )
    assert "submit_rate=2.5" in listed.out
    assert (unset.json["tier"], unset.json["quotas"]) == (None, {"max_waiting": 0})
    assert "max_waiting is 0" in duetime("tenants", "put", "acme", "--weight", "2").err
    assert duetime("tiers", "list", "--json").lines[0]["tenants"] == 0
    assert duetime("tiers", "delete", "gold").out == "Deleted tier gold.\n"


def test_what_is_wrong_is_said_before_anything_is_sent(run: Run) -> None:
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
