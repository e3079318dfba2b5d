"""Which hosts a tenant may call."""

import pytest

from duetime.model.egress_rules import EgressJudge, EgressRules, read_host_pattern
from duetime.model.origin import split_origin


def refusal(url: str, **rules: object) -> str | None:
    judge = EgressJudge.of(EgressRules(**rules))  # type: ignore[arg-type]
    return None if judge is None else judge.refusal(split_origin(url)[0])


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com/x",
        "https://API.EXAMPLE.com/x",
        "https://api.example.com./x",
        "https://a.team.example/",
        "https://a.b.team.example/",
        "https://10.0.0.1/",
        "https://[fd00::1]/",
        "https://[fd00:0:0:0::1]/",
    ],
)
def test_a_listed_host_may_be_called(url: str) -> None:
    assert refusal(url, hosts=("api.example.com", "*.team.example", "10.0.0.1", "fd00::1")) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/",
        "https://api.example.com.evil.example/",
        "https://evil-api.example.com/",
        "https://team.example/",
        "https://evilteam.example/",
        "https://10.0.0.10/",
        "https://0x0a000001/",
        "https://[fd00::2]/",
    ],
)
def test_no_other_host_may(url: str) -> None:
    found = refusal(url, hosts=("api.example.com", "*.team.example", "10.0.0.1", "fd00::1"))

    assert found is not None
    assert found.startswith("egress.hosts: ")


def test_ports_and_https_are_rules_of_their_own() -> None:
    assert refusal("http://a.example/", ports=(80, 443)) is None
    assert str(refusal("http://a.example:8080/", ports=(80, 443))).startswith("egress.ports: 8080 ")
    assert str(refusal("http://a.example/", https_only=True)).startswith("egress.https_only: ")
    assert refusal("https://a.example:8443/", https_only=True) is None


def test_an_empty_list_of_hosts_lets_nothing_through_and_a_star_everything() -> None:
    assert refusal("https://a.example/", hosts=()) is not None
    assert refusal("https://a.example/", hosts=("*",)) is None
    assert EgressJudge.of(EgressRules(https_only=False, hosts=("*",))) is None


def test_what_a_tenant_does_not_say_its_tier_says() -> None:
    tier = EgressRules(hosts=("a.example",), ports=(443,), https_only=True)

    assert EgressRules().over(tier) == tier
    assert EgressRules(https_only=False, hosts=("*",)).over(tier) == EgressRules(("*",), (443,), False)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (" API.Example.com. ", "api.example.com"),
        ("*.Example.com", "*.example.com"),
        ("*", "*"),
        ("10.0.0.1", "10.0.0.1"),
        ("[FD00:0::1]", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("_dmarc.example", "_dmarc.example"),
    ],
)
def test_a_pattern_is_stored_in_one_form(text: str, stored: str) -> None:
    assert read_host_pattern(text) == stored


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "*.",
        "a.*.example",
        "*.*.example",
        "*a.example",
        "**",
        "https://a.example",
        "a.example:443",
        "a/b",
        "bücher.example",
        "a..b",
        "-a.example",
        "a b",
        "a" * 300,
        "[::1",
        "1:2",
        "a.example\0",
    ],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    assert read_host_pattern(text) is None
