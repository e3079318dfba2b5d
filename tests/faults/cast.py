"""The players of a fault test: real processes around one database, and a look at what they left in it."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

from duetime.admin.signing import read_signing, show_secret
from duetime.database.pool import Database
from duetime.model.task import Outcome
from faults.journal import Reader
from faults.processes import Process, ServeProcess, TargetProcess, WorkerProcess

PATIENCE_SECONDS = 120.0


class Cast:
    def __init__(self, folder: Path, database_url: str, key: str, database: Database) -> None:
        self.folder = folder
        self.database_url = database_url
        self.key = key
        self.database = database
        self.processes: list[Process] = []
        self._gates = 0

    async def serve(
        self, *arguments: str, url: str | None = None, environment: dict[str, str] | None = None, settings: str = ""
    ) -> ServeProcess:
        """A node that is ready."""
        name = f"node-{len(self.processes)}"
        if settings:
            file = self.folder / f"{name}.toml"
            file.write_text(settings)
            arguments += ("--config", str(file))
        node = ServeProcess(self.folder, name, url or self.database_url, *arguments, environment=environment)
        self.processes.append(node)
        # In a thread: the test's own loop may be what stands between the node and its database.
        await asyncio.to_thread(node.start)
        return node

    def worker(self, node: ServeProcess, *arguments: str) -> WorkerProcess:
        name = f"worker-{len(self.processes)}"
        worker = WorkerProcess(self.folder, name, node.url, self.key, "default", "", *arguments)
        self.processes.append(worker)
        worker.start()
        return worker

    async def target(self) -> TargetProcess:
        secret = await self.database.fetch("SELECT id FROM tenant WHERE name = 'default'")
        signing = await read_signing(self.database, secret[0]["id"])
        target = TargetProcess(self.folder, show_secret(signing.secret))
        self.processes.append(target)
        await asyncio.to_thread(target.start)
        return target

    def gate(self) -> Path:
        """A file that a handler waits for: it ends when the test opens it."""
        self._gates += 1
        return self.folder / f"gate-{self._gates}"

    def end(self) -> None:
        for process in reversed(self.processes):
            if process.is_running:
                process.kill()

    # What is in the database

    async def outcomes(self, task: object) -> list[str]:
        rows = await self.database.fetch(
            "SELECT outcome FROM attempt WHERE task = $1 ORDER BY number", uuid.UUID(str(task))
        )
        return [Outcome(row["outcome"]).word for row in rows]

    async def count(self, table: str, condition: str = "true") -> int:
        rows = await self.database.fetch(f"SELECT count(*) AS rows FROM {table} WHERE {condition}")
        count: int = rows[0]["rows"]
        return count


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Look until it holds, without holding up the loop."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def has_begun(journal: Path, task: object, number: int = 1) -> bool:
    reader = Reader()
    reader.read(journal)
    return (str(task), number) in {start.attempt for start in reader.starts}


async def begun(journal: Path, task: object, number: int = 1) -> None:
    """Wait until a holder's own log says that it runs the attempt."""
    await until(lambda: has_begun(journal, task, number))
