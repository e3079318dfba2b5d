"""The names of target hosts."""

import pytest

from duetime.model.origin import host_of, read_host


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://API.Example.com/hook", "api.example.com:443"),
        ("http://api.example.com/hook?x=1", "api.example.com:80"),
        ("https://api.example.com:8443", "api.example.com:8443"),
        ("http://[::1]:81/x", "[::1]:81"),
        ("https://bücher.example/", "xn--bcher-kva.example:443"),
        ("ftp://api.example.com/", ""),
        ("nonsense", ""),
        ("https://user@api.example.com/", ""),
        ("https://api.example.com:0/", ""),
        ("https://api.example.com:99999/", ""),
    ],
)
def test_a_url_belongs_to_a_host_and_port(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("api.example.com:443", "api.example.com:443"),
        ("API.example.com", "api.example.com:443"),
        ("http://api.example.com/x", "api.example.com:80"),
        ("[::1]:81", "[::1]:81"),
        ("[::1]", "[::1]:443"),
        ("", None),
        (":443", None),
        ("a b", None),
        ("a.example/x", None),
        ("me@a.example", None),
        ("a.example:x", None),
        ("a.example:0", None),
        ("a.example\n", None),
        ("ftp://a.example", None),
        ("a" * 400, None),
    ],
)
def test_a_host_is_read_as_people_write_it(text: str, host: str | None) -> None:
    assert read_host(text) == host
    assert host is None or read_host(host) == host
