"""The audit of dependencies: what fails the check, and what cannot be known."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[1] / ".ci" / "audit.py"
FLAW = {"id": "CVE-2026-1", "fix_versions": ["1.2.1"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "run.txt").write_text("leftpad==1.2.0\n")
    return tmp_path


def audit(folder: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """Run it with a pip-audit that gives this answer."""
    (folder / "pip_audit.py").write_text(f"print({answer!r})")
    program = f"import runpy, sys; sys.prefix = {str(folder)!r}; runpy.run_path({str(AUDIT)!r}, run_name='__main__')"
    environment = {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def told(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(packages)})


def test_a_known_flaw_fails_the_check_and_names_what_mends_it(folder: Path) -> None:
    done = audit(folder, told({"name": "leftpad", "version": "1.2.0", "vulns": [FLAW]}))

    assert done.returncode == 1
    assert done.stderr == "leftpad 1.2.0: CVE-2026-1, mended in 1.2.1\n"


def test_a_clean_answer_holds_for_these_versions_alone(folder: Path) -> None:
    clean, flawed = (told({"name": "leftpad", "version": "1.2.0", "vulns": vulns}) for vulns in ([], [FLAW]))
    first, second = audit(folder, clean), audit(folder, flawed)
    (folder / "requirements" / "run.txt").write_text("leftpad==1.1.0\n")
    third = audit(folder, flawed)

    assert (first.returncode, first.stdout) == (0, "No vulnerability is known of 1 of 1 packages.\n")
    assert (second.returncode, second.stdout) == (0, "")
    assert third.returncode == 1


@pytest.mark.parametrize("answer", ["", "Traceback …", told({"name": "leftpad", "skip_reason": "not found"})])
def test_where_nobody_answers_the_check_passes_and_says_so(folder: Path, answer: str) -> None:
    done = audit(folder, answer)

    assert (done.returncode, done.stdout) == (
        0,
        "No index answered what vulnerabilities are known: nothing was audited.\n",
    )
