"""Clients and workers on both sides of a fork, and clients in several event loops; by programs that do it."""

import asyncio
import contextlib
import os
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from nodes import NodeProcess

PROGRAMS = Path(__file__).with_name("forking.py")


async def run(program: str, url: str, key: str, queue: str, **environment: str) -> None:
    process = await asyncio.create_subprocess_exec(
        # What would only be said is an error here, also in children: an open socket that nobody closed.
        sys.executable,
        "-W",
        "error::ResourceWarning",
        str(PROGRAMS),
        program,
        env={**os.environ, "DUETIME_URL": url, "DUETIME_KEY": key, "QUEUE": queue, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    except TimeoutError:
        os.killpg(process.pid, 9)
        output, _ = await process.communicate()
        pytest.fail(f"it hangs: {output.decode()}")
    assert (process.returncode, output.decode()) == (0, "done\n")


@pytest.mark.parametrize(
    "program",
    ["both_sides", "without_python", "beside_busy_threads", "pool_of_processes", "clients_for_spawned_processes"],
)
async def test_a_client_gives_each_process_its_own_answers(node: NodeProcess, queue: str, program: str) -> None:
    await run(program, node.url, node.key, queue)


@pytest.mark.parametrize("program", ["request_keys", "request_keys_without_python"])
async def test_two_processes_never_make_the_same_key_of_a_request(program: str) -> None:
    await run(program, "", "", "")


@pytest.mark.parametrize(
    "program", ["one_loop_after_the_other", "loops_in_threads", "loops_on_both_sides", "fork_within_a_loop"]
)
@pytest.mark.parametrize("environment", [{}, {"UVLOOP": "yes"}], ids=["asyncio", "uvloop"])
async def test_an_asynchronous_client_works_in_every_loop(
    node: NodeProcess, queue: str, program: str, environment: dict[str, str]
) -> None:
    await run(program, node.url, node.key, queue, **environment)


@pytest.mark.parametrize("program", ["worker_made_before", "worker_that_runs", "worker_whose_handler_forks"])
async def test_a_worker_runs_in_the_processes_that_were_forked(node: NodeProcess, queue: str, program: str) -> None:
    await run(program, node.url, node.key, queue)


class TlsFront:
    """What ends TLS before a node; counts connections."""

    def __init__(self, url: str) -> None:
        self._upstream = urlsplit(url)
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.url = ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        to_node = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        halves = [(reader, to_node[1]), (to_node[0], writer)]
        try:
            async with asyncio.TaskGroup() as group:
                for source, sink in halves:
                    group.create_task(self._pass_on(source, sink))
        finally:
            to_node[1].transport.abort()
            writer.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(1 << 16):
                sink.write(piece)
                await sink.drain()
        sink.close()


@pytest.fixture
async def tls_front(node: NodeProcess) -> AsyncIterator[tuple[TlsFront, Path]]:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    front = TlsFront(node.url)
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder) / "authority.pem"
        authority.cert_pem.write_to_path(str(certificate))
        async with await asyncio.start_server(front.accept, "127.0.0.1", 0, ssl=tls) as server:
            front.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield front, certificate


@pytest.mark.parametrize(
    ("program", "connections"),
    [("both_sides", 2), ("without_python", 2), ("loops_on_both_sides", 3), ("fork_within_a_loop", 2)],
)
async def test_a_child_leaves_the_tls_of_its_parent_as_it_is(
    node: NodeProcess, queue: str, tls_front: tuple[TlsFront, Path], program: str, connections: int
) -> None:
    front, certificate = tls_front

    await run(program, front.url, node.key, queue, SSL_CERT_FILE=str(certificate))

    assert front.connections == connections
