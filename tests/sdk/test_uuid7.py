import subprocess
import sys
import threading
import time
import uuid

from duetime.sdk.uuid7 import make_uuid7


def test_it_has_the_layout_of_version_7() -> None:
    before = time.time_ns() // 1_000_000

    made = make_uuid7()

    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000 + 1


def test_ids_of_many_threads_are_different_and_those_of_one_ascend() -> None:
    made: list[list[uuid.UUID]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda into=into: into.extend(make_uuid7() for _ in range(5_000))) for into in made
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(each == sorted(each) for each in made)
    assert len(set().union(*made)) == 20_000


def test_a_small_step_back_of_the_clock_keeps_the_order() -> None:
    ahead = time.time_ns() // 1_000_000 + 5_000
    first = make_uuid7(ahead)

    second = make_uuid7(ahead - 2_000)

    assert second > first


def test_a_large_step_back_of_the_clock_is_followed() -> None:
    now_ms = time.time_ns() // 1_000_000
    make_uuid7(now_ms + 3_600_000)

    made = make_uuid7(now_ms)

    assert made.int >> 80 == now_ms


def test_a_forked_child_does_not_repeat_its_parent() -> None:
    program = (
        "import os\nfrom duetime.sdk.uuid7 import make_uuid7\nmake_uuid7(10**13)\n"
        "child = os.fork()\nos.write(1, f'{make_uuid7(10**13)}\\n'.encode())\nchild and os.waitpid(child, 0)\n"
    )

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert len(set(answer.stdout.split())) == 2
