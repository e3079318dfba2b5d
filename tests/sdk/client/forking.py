"""Programs that really fork: python forking.py NAME, with DUETIME_URL, DUETIME_KEY and QUEUE in the environment.

Each runs as a process of its own, because the tests' own process has threads and
must not be forked.  It prints what the test looks at; whatever goes wrong in a
child is its exit code.
"""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from duetime import AsyncClient, Client, Task, Worker
from duetime.sdk.uuid7 import make_uuid7

QUEUE = os.environ.get("QUEUE", "")
ROUNDS = 200


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if "UVLOOP" in os.environ else None) as runner:
        runner.run(work)


def fork(child: Callable[[], None], *, is_known_to_python: bool = True) -> int:
    """Run `child` in a forked process.

    A server written in C that embeds Python, as uWSGI, forks without telling it:
    then nothing that was registered for forks is run.
    """
    process = os.fork() if is_known_to_python else ctypes.PyDLL(None).fork()
    if process:
        return process
    try:
        child()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def join(process: int) -> None:
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"


def meet(mine: int, other: int) -> None:
    """Go on when the other process is here as well, so that both use their connections at the same time."""
    os.write(other, b".")
    os.read(mine, 1)


def ask_again_and_again(client: Client, name: str, mine: int, other: int) -> None:
    task = client.submit("fork.get", name, queue=QUEUE, delay="1h")
    for _ in range(ROUNDS):
        meet(mine, other)
        seen = client.get(task)
        assert (seen.id, seen.payload) == (task.id, name), f"{name} got the answer of {seen.payload}"


async def ask_asynchronously(client: AsyncClient, name: str, rounds: int = ROUNDS) -> None:
    task = await client.submit("fork.get", name, queue=QUEUE, delay="1h")
    for _ in range(rounds):
        seen = await client.get(task)
        assert (seen.id, seen.payload) == (task.id, name), f"{name} got the answer of {seen.payload}"


def both_sides(is_known_to_python: bool = True) -> None:
    client = Client()
    client.get(client.submit("fork.get", queue=QUEUE, delay="1h"))
    to_parent, to_child = os.pipe(), os.pipe()

    child = fork(
        lambda: ask_again_and_again(client, "child", to_child[0], to_parent[1]), is_known_to_python=is_known_to_python
    )
    ask_again_and_again(client, "parent", to_parent[0], to_child[1])
    join(child)
    # The child has ended: what it did at its end must not have ended the parent's connection.
    client.get(client.submit("fork.get", queue=QUEUE, delay="1h"))


def without_python() -> None:
    both_sides(is_known_to_python=False)


def beside_busy_threads() -> None:
    """Children end as programs do, with all that Python does at the end, whatever the threads of the parent were at."""
    client = Client()
    is_over = threading.Event()
    failures: list[BaseException] = []

    def be_busy() -> None:
        task = client.submit("fork.get", queue=QUEUE, delay="1h")
        try:
            while not is_over.is_set():
                assert client.get(task).id == task.id
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=be_busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    # As short as it can be: forks come in the middle of everything.
    sys.setswitchinterval(1e-6)
    for _ in range(30):
        child = os.fork()
        if not child:
            task = client.submit("fork.get", "child", queue=QUEUE, delay="1h")
            assert client.get(task).payload == "child"
            client.close()
            sys.exit(0)
        join(child)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures


shared = Client() if os.environ.get("DUETIME_URL") else None


def submit_in_pool(number: int) -> tuple[int, str, object]:
    assert shared is not None
    task = shared.get(shared.submit("fork.get", number, queue=QUEUE, delay="1h"))
    return os.getpid(), task.id, task.payload


def pool_of_processes() -> None:
    assert shared is not None
    submit_in_pool(-1)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        asked = pool.map_async(submit_in_pool, range(ROUNDS), chunksize=1)
        own = [submit_in_pool(-number) for number in range(ROUNDS)]
        answers = asked.get()
    assert [payload for _, _, payload in answers] == list(range(ROUNDS))
    assert [payload for _, _, payload in own] == [-number for number in range(ROUNDS)]
    assert len({task for _, task, _ in answers + own}) == 2 * ROUNDS
    assert len({process for process, _, _ in answers}) == 4


def get_in_child(client: Client, asynchronous: AsyncClient, task: Task) -> None:
    assert client.get(task).id == task.id
    run_loop(ask_asynchronously(asynchronous, "spawned", 1))


def clients_for_spawned_processes() -> None:
    client, asynchronous = Client(), AsyncClient()
    task = client.submit("fork.get", queue=QUEUE, delay="1h")
    run_loop(ask_asynchronously(asynchronous, "parent", 1))

    process = multiprocessing.get_context("spawn").Process(target=get_in_child, args=(client, asynchronous, task))
    process.start()
    process.join()

    assert process.exitcode == 0
    assert client.get(task).id == task.id


def request_keys(is_known_to_python: bool = True) -> None:
    moment = 10**13
    make_uuid7(moment)
    read, write = os.pipe()

    def tell() -> None:
        os.write(write, b"".join(make_uuid7(moment).bytes for _ in range(100)))

    children = [fork(tell, is_known_to_python=is_known_to_python) for _ in range(3)]
    made = {make_uuid7(moment).bytes for _ in range(100)}
    for child in children:
        join(child)
        pieces = os.read(read, 1600)
        made.update(pieces[start : start + 16] for start in range(0, 1600, 16))
    assert len(made) == 400


def request_keys_without_python() -> None:
    request_keys(is_known_to_python=False)


# Event loops


def one_loop_after_the_other() -> None:
    client = AsyncClient()
    for name in ("first", "second", "third"):
        run_loop(ask_asynchronously(client, name, 5))
    run_loop(client.close())


def loops_in_threads() -> None:
    client = AsyncClient()
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            run_loop(ask_asynchronously(client, name))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(f"loop {number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def loops_on_both_sides() -> None:
    client = AsyncClient()
    run_loop(ask_asynchronously(client, "before", 1))

    child = fork(lambda: run_loop(ask_asynchronously(client, "child")))
    run_loop(ask_asynchronously(client, "parent"))
    join(child)


def fork_within_a_loop() -> None:
    """The child has a loop of its own; the parent's loop, which it inherited as it was, is never run there."""
    client = AsyncClient()

    async def main() -> None:
        await ask_asynchronously(client, "before", 1)
        child = fork(lambda: run_loop(ask_asynchronously(client, "child")))
        await ask_asynchronously(client, "parent")
        await asyncio.to_thread(join, child)
        await ask_asynchronously(client, "after", 1)
        await client.close()

    run_loop(main())


# Workers


def make_worker() -> Worker:
    worker = Worker(queues=[QUEUE], shutdown_timeout=5)

    @worker.task("fork.work")
    def work(payload: int) -> list[int]:
        return [os.getpid(), payload]

    return worker


def finish(client: Client, tasks: list[Task]) -> set[int]:
    """Wait for all of them; the processes that ran them."""
    done = [client.wait(task) for task in tasks]
    assert [(task.state, len(task.attempts)) for task in done] == [("succeeded", 1)] * len(done), done
    return {task.result[0] for task in done}


def run_until_the_end_of(pipe: int, worker: Worker) -> None:
    threading.Thread(target=lambda: (os.read(pipe, 1), worker.stop()), daemon=True).start()
    worker.run()


def worker_made_before() -> None:
    client, worker = Client(), make_worker()
    client.submit("fork.other", queue=QUEUE, delay="1h")
    ends = [os.pipe() for _ in range(2)]

    children = [fork(lambda end=end: run_until_the_end_of(end[0], worker)) for end in ends]  # type: ignore[misc]
    processes: set[int] = set()
    while processes != set(children):
        processes |= finish(client, [client.submit("fork.work", number, queue=QUEUE) for number in range(20)])
    for child, end in zip(children, ends, strict=True):
        os.write(end[1], b".")
        join(child)


def worker_that_runs() -> None:
    """The child of a process whose worker runs has one that does not; it may run it, and stop it."""
    client, worker = Client(), make_worker()
    working = threading.Thread(target=worker.run)
    working.start()
    assert finish(client, [client.submit("fork.work", 0, queue=QUEUE)]) == {os.getpid()}
    end = os.pipe()

    def run_it_too() -> None:
        worker.stop()
        run_until_the_end_of(end[0], worker)

    child = fork(run_it_too)
    processes: set[int] = set()
    while processes != {child, os.getpid()}:
        processes |= finish(client, [client.submit("fork.work", number, queue=QUEUE) for number in range(20)])
    os.write(end[1], b".")
    join(child)
    assert finish(client, [client.submit("fork.work", 0, queue=QUEUE)]) == {os.getpid()}
    worker.stop()
    working.join()


def worker_whose_handler_forks() -> None:
    """What a handler forks can be terminated, and the worker does not take the signal for its own."""
    client, worker = Client(), make_worker()

    @worker.task("fork.terminate")
    def terminate(payload: object) -> int | None:
        read, _ = os.pipe()
        process = multiprocessing.get_context("fork").Process(target=os.read, args=(read, 1))
        process.start()
        process.terminate()
        process.join(20)
        return process.exitcode

    def ask() -> None:
        try:
            for _ in range(5):
                done = client.wait(client.submit("fork.terminate", queue=QUEUE))
                assert (done.state, done.result, len(done.attempts)) == ("succeeded", -signal.SIGTERM, 1), done
        except BaseException as error:
            failures.append(error)
        finally:
            worker.stop()

    failures: list[BaseException] = []
    asking = threading.Thread(target=ask)
    asking.start()
    worker.run()
    asking.join()
    assert not failures, failures


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
