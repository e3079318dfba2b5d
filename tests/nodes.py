"""Real nodes for tests, killed and restarted by those that are about failure."""

from collections.abc import Iterator

import pytest
from bench.node import NodeProcess

import services


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    """A real node, shared by the tests of a module; each uses queues and types of its own."""
    with services.private_folder() as folder:
        process = NodeProcess(folder / "node").start()
        yield process
        process.stop()


@pytest.fixture
def fresh_node() -> Iterator[NodeProcess]:
    """A real node of the test's own, which it may kill."""
    with services.private_folder() as folder:
        process = NodeProcess(folder / "node").start()
        yield process
        if process.is_running:
            process.stop()
