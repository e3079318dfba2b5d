"""A synchronous standby of a private PostgreSQL 15: commits of the primary wait for it."""

import os
import subprocess
from pathlib import Path

import psycopg

from services import POSTGRES_15, Postgres15, wait_until


class Standby(Postgres15):
    def __init__(self, folder: Path, primary: Postgres15) -> None:
        super().__init__(folder, is_durable=True)
        self._primary = primary

    @property
    def is_there(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Follow, and let the primary wait; returns when it does.  It ends with the thread that calls this."""
        super().start()
        with psycopg.connect(self._primary.dsn_of("postgres"), autocommit=True) as asked:
            asked.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            asked.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: asked.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone() == (1,)
            )

    def _make_cluster(self) -> None:
        self._folder.chmod(0o755)
        self._cluster.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(self._cluster, self._account.uid, self._account.gid)
        options = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        options += ["--dbname", self._primary.dsn_of("postgres")]
        subprocess.run(
            [*self._as_account(), POSTGRES_15 / "pg_basebackup", "-D", self._cluster, *options],
            cwd="/",
            check=True,
            capture_output=True,
        )

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[7].strip() in ("ready", "standby")
