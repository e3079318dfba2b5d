"""The client for plain code is what the script makes of the one for asyncio."""

from pathlib import Path

import pytest

from sdk import write_client


@pytest.mark.parametrize("module", write_client.MODULES)
def test_the_committed_file_is_what_the_script_makes(module: str) -> None:
    file: Path = write_client.FOLDER / f"sync_{module}.py"

    assert file.read_text("utf-8") == write_client.make(module)


def test_a_text_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match="does not say once"):
        write_client.replace_texts("sender", "nothing of it")
