"""The data folder: one duetime at a time, and a clear error for anything that is wrong with it."""

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path

import structlog

from duetime.errors import UsageError

_LOCK_FILE = "duetime.lock"
_FULL_BYTES = 1 << 20

_log = structlog.get_logger(__name__)


class DataFolder:
    """A folder that is new, empty or made by duetime, as its lock file shows; the lock keeps others out."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self._lock: int | None = None

    def open(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_file = self.path / _LOCK_FILE
        if not lock_file.exists() and any(entry.name != "lost+found" for entry in self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty and not a data folder of duetime: name another with --data")
        self._make_private()
        lock = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise UsageError(
                f"{self.path} is in use by another duetime (process {holder or 'unknown'}): "
                "stop that one or name another folder with --data"
            ) from None
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _make_private(self) -> None:
        """Make the folder private, whatever rights it was made with: it holds keys and passwords."""
        if stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            try:
                self.path.chmod(0o700)
            except OSError as error:
                # The folder is the root of a volume that another user owns; each file in it is private by itself.
                _log.warning("others can look into the data folder", folder=str(self.path), error=error.strerror)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def explain(self, error: OSError) -> UsageError:
        """The system's error as one sentence that says what to do."""
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return UsageError(f"the disk of {self.path} is full: make room or name another folder with --data")
            case errno.EACCES | errno.EPERM | errno.EROFS:
                return UsageError(f"{self.path} cannot be written: change its rights or name another with --data")
            case errno.ENOTDIR | errno.EEXIST:
                return UsageError(f"{self.path} is not a folder: name one with --data")
            case _:
                return UsageError(f"{self.path} cannot be used: {error}")

    def explain_output(self, what: str, output: str) -> UsageError:
        """The error in what a server printed: its last lines, or that the disk is full."""
        # On a full disk the server may not even be able to print that.
        if os.strerror(errno.ENOSPC) in output or shutil.disk_usage(self.path).free < _FULL_BYTES:
            return self.explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        last = " / ".join(line.strip() for line in output.strip().splitlines()[-5:])
        return UsageError(f"{what} in {self.path}: {last or 'it said nothing'}")


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, even if it existed before with other rights."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        os.fchmod(descriptor, 0o600)
        stream.write(text + "\n")
