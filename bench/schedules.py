"""What schedules cost: `python -m bench.schedules [--schedules N] [--herd N] [--quick]`.

Starts a node of its own and measures, in this order:

- how many schedules a second are made by `POST /v1/schedules/batch`;
- what a node spends while none of them is due: its memory compared with an empty node, its CPU, and how
  many rows of `schedule` and entries of `due` were read;
- how long a herd of schedules that are due in the same second takes to become tasks, and the same
  again while a reader holds an old snapshot.

It stops by itself and leaves nothing behind.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import asyncpg
import psutil

from bench.node import NodeProcess

BATCH = 500
CONNECTIONS = 2
IDLE_SECONDS = 10.0
_READS = """
SELECT COALESCE(sum(idx_tup_fetch + seq_tup_read) FILTER (WHERE relname = 'schedule'), 0)::bigint AS schedules,
       COALESCE(sum(idx_tup_fetch) FILTER (WHERE relname LIKE 'due\\_%'), 0)::bigint AS turns
  FROM pg_stat_user_tables
 WHERE schemaname = 'duetime'
"""
_HERD = """
SELECT count(*) AS tasks, extract(epoch FROM min(fire.at)) AS first, extract(epoch FROM max(fire.at)) AS last
  FROM duetime.fire
  JOIN duetime.schedule ON schedule.id = fire.schedule
 WHERE schedule.name LIKE $1 AND fire.task IS NOT NULL
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure schedules on a node of its own.")
    parser.add_argument("--schedules", type=int, default=100_000, help="how many wait while the node is idle (100,000)")
    parser.add_argument("--herd", type=int, default=20_000, help="how many are due in the same second (20,000)")
    parser.add_argument("--quick", action="store_true", help="a hundredth of both, to see that it works")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    given = parser.parse_args()
    if given.quick:
        given.schedules, given.herd = given.schedules // 100, given.herd // 100
    figures = asyncio.run(measure(given.schedules, given.herd))
    if given.json:
        print(json.dumps(figures))
        return
    print(f"\n{'figure':<58}{'value':>14}")
    for name, value in figures.items():
        print(f"{name:<58}{value:>14,.2f}")


async def measure(schedules: int, herd: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="duetime-bench-") as folder:
        node = NodeProcess(Path(folder) / "node").start()
        try:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {node.key}"}) as session:
                return await _Measurement(node, session).run(schedules, herd)
        finally:
            node.stop()


class _Measurement:
    def __init__(self, node: NodeProcess, session: aiohttp.ClientSession) -> None:
        self.node = node
        self.session = session
        self.process = psutil.Process(node.pid)

    async def run(self, schedules: int, herd: int) -> dict[str, float]:
        figures: dict[str, float] = {}
        connection = await asyncpg.connect(self._dsn())
        memory = self.process.memory_info().rss
        # Half a year ahead, each at a different minute.
        crons = (
            f"{n % 60} {n // 60 % 24} {1 + n % 28} {1 + (time.gmtime().tm_mon + 5) % 12} *" for n in range(schedules)
        )
        figures["schedules made a second"] = await self._make("idle", crons)
        figures["schedules"] = schedules
        await connection.execute("VACUUM ANALYZE")
        await asyncio.sleep(3.0)
        figures["memory of the node above an empty one, MB"] = (self.process.memory_info().rss - memory) / 1e6
        figures |= await self._idle(connection)
        figures |= await self._herd(connection, "herd", herd)
        reader = await asyncpg.connect(self._dsn())
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetchval("SELECT count(*) FROM duetime.schedule_state")
            pinned = await self._herd(connection, "pinned", herd)
            figures |= {f"{name}, under an old snapshot": value for name, value in pinned.items()}
        await reader.close()
        await connection.close()
        return figures

    async def _make(self, prefix: str, crons: Iterable[str]) -> float:
        items = [
            {"name": f"{prefix}-{number}", "spec": {"cron": cron}, "task": {"type": "bench", "payload": {"n": number}}}
            for number, cron in enumerate(crons)
        ]
        batches = iter([items[place : place + BATCH] for place in range(0, len(items), BATCH)])
        began = time.monotonic()

        async def send() -> None:
            for batch in batches:
                async with self.session.post(f"{self.node.url}/v1/schedules/batch", json={"items": batch}) as answer:
                    told = await answer.json()
                    if answer.status != 200 or told["rejected"]:
                        raise RuntimeError(f"schedules were refused: {str(told)[:500]}")

        await asyncio.gather(*[send() for _ in range(CONNECTIONS)])
        return len(items) / (time.monotonic() - began)

    async def _idle(self, connection: asyncpg.Connection) -> dict[str, float]:
        before, cpu = await connection.fetchrow(_READS), sum(self.process.cpu_times()[:2])
        await asyncio.sleep(IDLE_SECONDS)
        spent = sum(self.process.cpu_times()[:2]) - cpu
        # Statistics are up to a second late.
        await asyncio.sleep(1.5)
        after = await connection.fetchrow(_READS)
        return {
            "CPU of the idle node, % of a core": 100 * spent / IDLE_SECONDS,
            "rows of schedule read by the idle node, a second": (after["schedules"] - before["schedules"])
            / IDLE_SECONDS,
            "entries of due read, a second": (after["turns"] - before["turns"]) / IDLE_SECONDS,
        }

    async def _herd(self, connection: asyncpg.Connection, prefix: str, size: int) -> dict[str, float]:
        # Making them takes a while, and then it is the next full minute.
        due = (int(time.time() + size / 2_000) // 60 + 2) * 60
        at = time.gmtime(due)
        cron = f"{at.tm_min} {at.tm_hour} {at.tm_mday} {at.tm_mon} *"
        await self._make(prefix, (cron for _ in range(size)))
        if time.time() > due - 4:
            raise RuntimeError("the schedules were not made in time: give a smaller --herd")
        await asyncio.sleep(due - time.time())
        while (row := await connection.fetchrow(_HERD, f"{prefix}-%"))["tasks"] < size:
            if time.time() > due + 60:
                raise RuntimeError(f"only {row['tasks']} of {size} became tasks")
            await asyncio.sleep(0.2)
        return {
            f"{size:,} due in one second: seconds from the first task to the last": float(row["last"] - row["first"]),
            f"{size:,} due in one second: last task stored, seconds after due": float(row["last"]) - due,
        }

    def _dsn(self) -> str:
        lines = (self.node.data / "postgres" / "postmaster.pid").read_text().splitlines()
        password = (self.node.data / "password").read_text().strip()
        return f"postgres://duetime:{password}@127.0.0.1:{lines[3]}/duetime"


if __name__ == "__main__":
    main()
