#!/usr/bin/env python3
"""Look for known vulnerabilities of what a node runs on (requirements/run.txt).

    .venv/bin/python .ci/audit.py [PIP-AUDIT OPTION...]

Exit code 1 names what is known and the version that mends it.  Where nobody
answers, nothing is known: it says so, and the check passes.  A clean answer
holds for a day, so that `make check` stays quick.  `--ignore-vuln ID` passes
over one that does not concern us; give it in the Makefile, with the reason.
"""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOCK = Path("requirements/run.txt")
SECONDS = 60
GOOD_FOR_SECONDS = 24 * 3600


def main() -> int:
    options = sys.argv[1:]
    known = Path(sys.prefix) / f".audited-{hashlib.sha256(LOCK.read_bytes() + repr(options).encode()).hexdigest()[:16]}"
    if known.exists() and time.time() - known.stat().st_mtime < GOOD_FOR_SECONDS:
        return 0
    packages = ask(options)
    answered = [package for package in packages if "skip_reason" not in package]
    hit = [package for package in answered if package["vulns"]]
    for package in hit:
        for flaw in package["vulns"]:
            mended = ", ".join(flaw["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {flaw['id']}, mended in {mended}", file=sys.stderr)
    if not answered:
        print("No index answered what vulnerabilities are known: nothing was audited.")
    elif not hit:
        print(f"No vulnerability is known of {len(answered)} of {len(packages)} packages.")
        known.touch()
    return 1 if hit else 0


def ask(options: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--require-hashes", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "5", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError):
        return []
    return packages


if __name__ == "__main__":
    sys.exit(main())
