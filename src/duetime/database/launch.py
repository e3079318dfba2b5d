"""Become a server process: drop the user, end with the parent, exec.

Run as a script by an interpreter of its own, because doing this between fork
and exec of a process with threads can deadlock.  The exec keeps the pid, so
the server is a direct child of the process that started this.

    python -I -S launch.py PARENT UID GID PROGRAM [ARGUMENT...]
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, uid, gid = (int(word) for word in sys.argv[1:4])
    program = sys.argv[4:]
    if os.geteuid() == 0 and uid != 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        # This comes after the change of user, which clears it. SIGQUIT: the server ends at once, without a checkpoint,
        # and recovers when it is started again.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the process that started this is gone")
    os.umask(0o077)
    # The interpreter ignores this signal, and an ignored signal stays ignored after an exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
