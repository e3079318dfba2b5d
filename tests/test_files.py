"""Files that a process may have open: the limit is raised, and running into it loses no client."""

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import psutil
from bench.node import NodeProcess

import services

#: Accepts at a listener whose files run out; each error closes the oldest connections, as a node does.
_ACCEPT = """
import asyncio, resource, socket, sys
import uvloop
from duetime.listening import Acceptor

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept, errors = [], []

def adopt(connection):
    connection.send(b"x")
    kept.append(connection)

def make_room(error):
    errors.append(error)
    for connection in kept:
        connection.close()
    kept.clear()

async def main():
    listener = socket.socket(fileno=int(sys.argv[1]))
    acceptor = Acceptor(listener, adopt, make_room)
    acceptor.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    acceptor.stop()
    print(len(errors), *set(errors))

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""

#: Starts what follows with fewer files.
_LIMITED = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
_LIMITED += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


def test_no_client_is_lost_when_files_run_out_and_the_loop_does_not_spin() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", _ACCEPT, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        clients = [socket.create_connection(listener.getsockname(), 20) for _ in range(200)]
        answers = [client.recv(1) for client in clients]
        said, _ = process.communicate("", 20)
        for client in clients:
            client.close()

    count, _, text = said.strip().partition(" ")
    assert answers == [b"x"] * 200
    assert text == os.strerror(24)
    assert 3 <= int(count) <= 10


def test_a_node_raises_its_soft_limit_as_far_as_it_may() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limited = _LIMITED.format(soft=min(512, hard), hard=hard)
    with services.private_folder() as folder:
        node = NodeProcess(folder / "node", python=(sys.executable, "-c", limited)).start()
        try:
            assert psutil.Process(node.pid).rlimit(resource.RLIMIT_NOFILE)[0] == hard
        finally:
            node.stop()


def test_clients_are_served_when_more_are_idle_than_the_node_has_files() -> None:
    limited = _LIMITED.format(soft=256, hard=256)
    with services.private_folder() as folder:
        node = NodeProcess(folder / "node", python=(sys.executable, "-c", limited)).start()
        try:
            idle = [socket.create_connection(("127.0.0.1", node.port), 10) for _ in range(400)]
            answers = [_ask(node.port) for _ in range(20)]
            for client in idle:
                client.close()
        finally:
            node.stop()
        log = Path(node.log).read_text()

    assert answers == [b"HTTP/1.1 200 OK"] * 20
    assert log.count("few files can be open at once") == 1
    assert log.count("too many connections") == 1


def _ask(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return client.recv(1_000).partition(b"\r\n")[0]
