"""Fuzz the API by its own OpenAPI document, with every default check.

A run is the same each time: fixed seed, bounded examples.  What the document
cannot say is in `schemathesis_hooks`.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from api.client import Api
from depth import far

EXAMPLES = far(3, 100)
#: A batch is taken as far as it is right: what is wrong in it is answered in its place.
CONFIG = """
[[operations]]
include-path = ["/v1/tasks/batch", "/v1/schedules/batch"]
checks.negative_data_rejection.enabled = false
"""


@pytest.mark.asyncio(loop_scope="module")
async def test_the_api_keeps_what_its_document_promises(api: Api, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": path}
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    fuzzer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{api.serving.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {api.key}", "--seed", "1", "--generation-deterministic"),
        *("--max-examples", str(EXAMPLES), "--phases", "examples,coverage,fuzzing,stateful", "--no-color"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        cwd=tmp_path,
    )
    output, _ = await fuzzer.communicate()

    assert fuzzer.returncode == 0, output.decode()
