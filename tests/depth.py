"""How far the tests go that could go on for ever: as far as a commit can afford, or much further (`make test-deep`)."""

import os

IS_DEEP = os.environ.get("DUETIME_TEST_DEPTH") == "deep"


def far(usual: int, deep: int) -> int:
    """A number of examples, steps, seeds or tasks."""
    return deep if IS_DEEP else usual
