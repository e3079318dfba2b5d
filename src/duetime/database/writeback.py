"""Write PostgreSQL's files to the disk as they change, a little at a time.

PostgreSQL leaves its writes to the kernel, which keeps them for half a minute and then
writes hundreds of megabytes at once; in that time every flush of the log, and so every
commit, waits: 100 ms and more.  This process asks the kernel twice a second to begin to
write what has changed so far.  Nothing depends on it: it makes nothing durable, and
PostgreSQL syncs its files itself at its checkpoints.

Run as a script by an interpreter of its own, for one server; it ends with its parent.

    python -I -S writeback.py PARENT CLUSTER
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

#: How often to look while files change, and while none does.
BUSY_SECONDS = 0.5
IDLE_SECONDS = 2.0
#: The resolution of file times is that of the kernel's ticks.
_TICK_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_SYNC_FILE_RANGE_WRITE = 2

#: Begins to write a file, given by its descriptor, without waiting for the end.
BeginWriting = Callable[[int], object]


def find_begin_writing() -> BeginWriting | None:
    """The system call that begins to write; None: this system has no such call."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if sys.platform != "linux" or call is None:
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return lambda descriptor: call(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)


def changed_since(cluster: str, at: float) -> Iterator[str]:
    """The files of tables and indexes that were written to since that time."""
    for database in os.scandir(os.path.join(cluster, "base")):
        # A file or the whole database may be dropped in between; the others are checked all the same.
        with suppress(OSError), os.scandir(database.path) as files:
            for file in files:
                with suppress(OSError):
                    if file.stat().st_mtime >= at:
                        yield file.path


def write_changed(cluster: str, at: float, begin_writing: BeginWriting) -> int:
    """Begin to write the changed files. Return how many there were."""
    count = 0
    for path in changed_since(cluster, at):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            begin_writing(descriptor)
        finally:
            os.close(descriptor)
        count += 1
    return count


def start(cluster: str) -> "subprocess.Popen[bytes] | None":
    """Start a process for the server with these data; None if there is no such call."""
    if find_begin_writing() is None:
        return None
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), cluster],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A Ctrl-C in the terminal is for duetime.
        start_new_session=True,
    )


def main() -> None:
    parent, cluster = int(sys.argv[1]), sys.argv[2]
    begin_writing = find_begin_writing()
    if begin_writing is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    looked_at = time.time()
    count = 0
    while os.getppid() == parent:
        time.sleep(BUSY_SECONDS if count else IDLE_SECONDS)
        at, looked_at = looked_at - _TICK_SECONDS, time.time()
        count = write_changed(cluster, at, begin_writing)


if __name__ == "__main__":
    main()
