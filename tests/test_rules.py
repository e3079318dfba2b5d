"""The rules of CONTRIBUTING.md that a program can check; each failure says where, and what to do."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_documented_layers_are_those_that_import_linter_checks() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = (ROOT / "docs" / "architecture.md").read_text()
    documented = re.search(r"^## Layers\n+```\n(.*?)```", page, re.MULTILINE | re.DOTALL)

    assert documented is not None, "docs/architecture.md: the section Layers has to begin with a block of the layers"
    assert " ".join(documented[1].split()) == " > ".join(layers), (
        "docs/architecture.md: write the layers as pyproject.toml has them"
    )
