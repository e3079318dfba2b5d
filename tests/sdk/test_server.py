"""Where clients and workers find their server and their key."""

from pathlib import Path

import pytest

from duetime import AsyncClient, Client, Worker
from duetime.sdk.errors import ConfigurationError
from duetime.sdk.server import find_server
from nodes import NodeProcess, node
from sdk.conftest import running

__all__ = ["node"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that we are in, with a server of this machine in its data folder, and nothing in the environment."""
    for name in ("DUETIME_URL", "DUETIME_KEY", "DUETIME_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return make_data(tmp_path / ".duetime", "http://127.0.0.1:1", "of-the-folder")


def make_data(folder: Path, url: str, key: str) -> Path:
    folder.mkdir()
    (folder / "url").write_text(f"{url}\n")
    (folder / "key").write_text(f"{key}\n")
    return folder


def test_what_is_given_comes_before_the_environment_and_that_before_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_server(None, None) == ("http://127.0.0.1:1", "of-the-folder")
    monkeypatch.setenv("DUETIME_URL", "http://127.0.0.1:2/")
    assert find_server(None, None) == ("http://127.0.0.1:2", "of-the-folder")
    monkeypatch.setenv("DUETIME_KEY", "of-the-environment")
    assert find_server(None, None) == ("http://127.0.0.1:2", "of-the-environment")
    assert find_server("https://other", "mine") == ("https://other", "mine")


def test_another_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_data(tmp_path / "other", "http://127.0.0.1:3", "of-another")
    monkeypatch.setenv("DUETIME_DATA", str(tmp_path / "other"))

    assert find_server(None, None) == ("http://127.0.0.1:3", "of-another")


def test_the_key_of_a_folder_is_not_sent_to_another_machine() -> None:
    with pytest.raises(ConfigurationError, match="no API key for https://elsewhere"):
        find_server("https://elsewhere", None)


def test_where_there_is_nothing_it_is_said_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_DATA", str(tmp_path / "nowhere"))

    with pytest.raises(ConfigurationError, match="give url= or set DUETIME_URL, or run in the folder of"):
        find_server(None, "k")
    with pytest.raises(ConfigurationError, match="give key= or set DUETIME_KEY, or run in the folder of"):
        find_server("http://127.0.0.1:1", None)


def test_a_file_that_cannot_be_read_is_said(folder: Path) -> None:
    (folder / "key").write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigurationError, match=r"key cannot be read: it is not text"):
        find_server(None, None)


@pytest.mark.parametrize(("url", "key"), [("ftp://a", "k"), ("a", "k"), ("http://[", "k"), ("http://a", "a\nb")])
def test_a_wrong_address_or_key_is_said(url: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a server address|that no key has"):
        find_server(url, key)


async def test_clients_and_workers_need_to_be_told_nothing_beside_a_server(
    node: NodeProcess, folder: Path, queue: str
) -> None:
    (folder / "url").write_text(node.url)
    (folder / "key").write_text(node.key)
    worker = Worker(queues=[queue])

    @worker.task("found")
    def find(payload: str) -> str:
        return payload

    async with running(worker), AsyncClient() as client:
        with Client() as plain:
            task = plain.submit("found", "it", queue=queue)
        assert (await client.wait(task)).result == "it"
