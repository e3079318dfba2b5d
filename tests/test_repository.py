"""What must hold for every file of the repository."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Put together here, so that this file does not name them either.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("registry", "yarnpkg", "com"),
        ("deb", "debian", "org"),
        ("index", "crates", "io"),
    )
]
MACHINE_PATHS = re.compile(r"(?<![\w.$}/-])/(?:" + "|".join(("home", "root", "work", "Users")) + r")/\w")


def tracked_files() -> Iterator[tuple[str, str]]:
    """The name and text of every file that is committed or about to be."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file():
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_no_file_names_the_host_of_a_package_registry(host: str) -> None:
    assert [name for name, text in tracked_files() if host in text] == []


def test_no_file_names_a_path_of_somebody_s_machine() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_files()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]

    assert found == []


@pytest.mark.parametrize("lock", ["run", "dev"])
def test_the_lock_holds_every_dependency_with_hashes(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], "hatchling"]
    if lock == "dev":
        wanted += project["optional-dependencies"]["dev"]
    names = {re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-") for requirement in wanted}

    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    pinned = re.split(r"\n(?=\S)", text.strip())

    assert names - {entry.split("==")[0].split("[")[0] for entry in pinned} == set()
    assert [entry.splitlines()[0] for entry in pinned if "--hash=sha256:" not in entry] == []


def test_both_locks_agree() -> None:
    def versions(lock: str) -> set[str]:
        text = (ROOT / "requirements" / f"{lock}.txt").read_text()
        return set(re.findall(r"^\S+==\S+", text, re.MULTILINE))

    assert versions("run") - versions("dev") == set()


def test_scripts_can_be_run() -> None:
    assert [path.name for path in (ROOT / ".ci").iterdir() if not path.stat().st_mode & 0o100] == []
