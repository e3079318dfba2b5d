"""`duetime keys`, on a real node."""

from cli.conftest import Run


def test_keys_are_made_listed_and_revoked(duetime: Run) -> None:
    made = duetime("keys", "create")
    key = made.out.strip()
    assert made.code == 0
    assert "shown only this once" in made.err
    assert duetime("tasks", "list", "--limit", "1", "--key", key).code == 0

    number = made.err.split()[1]
    assert number in duetime("keys", "list").out
    assert key not in duetime("keys", "list").out
    assert any(str(each["id"]) == number for each in duetime("keys", "list", "--json").json["items"])

    assert duetime("keys", "revoke", number).out == f"Revoked key {number}.\n"
    assert duetime("tasks", "list", "--key", key).code == 1
    unknown = duetime("keys", "revoke", "123456")
    assert (unknown.code, unknown.complaint) == (1, "duetime: there is no key 123456\n")


def test_a_key_for_some_addresses_is_made_and_shown(duetime: Run) -> None:
    made = duetime("keys", "create", "--role", "viewer", "--allow-ip", "10.0.0.0/8", "--allow-ip", "2001:db8::1")
    key, number = made.out.strip(), made.err.split()[1]

    assert "Note: this request came from 127.0.0.1, from which the new key is not allowed." in made.err
    refused = duetime("tasks", "list", "--key", key)
    assert (refused.code, "127.0.0.1" in refused.err) == (1, True)
    [line] = [line for line in duetime("keys", "list").out.splitlines() if line.split()[0] == number]
    assert "10.0.0.0/8 2001:db8::1" in line
    wrong = duetime("keys", "create", "--allow-ip", "office")
    assert (wrong.code, "allowed_ips[0]" in wrong.err) == (2, True)


def test_keys_that_are_not_used_are_listed(duetime: Run) -> None:
    titles = duetime("keys", "list").out.splitlines()[0]
    assert "LAST USED" in titles
    assert "USED FROM" in titles
    assert duetime("keys", "list", "--unused-for", "90d", "--json").json == {"items": [], "next": None}
    wrong = duetime("keys", "list", "--unused-for", "soon")
    assert (wrong.code, "unused_for" in wrong.err) == (2, True)


def test_the_signing_secret_is_printed(duetime: Run) -> None:
    secret = duetime("keys", "signing-secret").out.strip()

    assert secret.startswith("whsec_")
    assert duetime("keys", "signing-secret", "--json").json == {"secret": secret, "former_until": None}
