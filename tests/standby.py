"""A synchronous standby of a private PostgreSQL 15: commits of the primary wait for it."""

from pathlib import Path

import psycopg

from services import Postgres15, wait_until


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
        self.copy_cluster(self._primary)
