"""A hostile client of a node, in a process of its own: what one tenant, or a client without a key, can try.

Run as `python -m bench.fairness.attack` with one line of JSON on its command line
(`Attack`), until SIGTERM; its last line says how often it did its attack, and which
answers it got.  It stands for another machine, so it has the lowest priority for the
processors of this one.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.peers.programs.common import say_ready, until_terminated

#: The pause between two tries of one connection that was refused.
PAUSE_SECONDS = 0.002
MOST_BYTES = 100 << 20
_PIECE = b"x" * 65_536
_LAST_NICE = 19
#: Excludes every minute of every day, so that a search for a time that is left goes on to the end of time.
_EVERY_MINUTE_EXCLUDED = {
    "cron": "* * * * *",
    "exclude": [{"cron": f"{each % 60} * * * *"} for each in range(1_000)],
}


class Attack(msgspec.Struct, frozen=True):
    kind: str
    url: str
    #: A key with the role operator of the attacking tenant.
    key: str
    #: The hosts of its calls: the first six never answer, the last one is also used by another tenant.
    hosts: list[str] = []


class Attacker:
    def __init__(self, order: Attack) -> None:
        self.order = order
        self.answers: Counter[str] = Counter()
        split = urlsplit(order.url)
        self._host, self._port = split.hostname or "", split.port or 80

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)

    def head(self, method: str, path: str, key: str | None, *headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *headers]
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        return "\r\n".join([*lines, "", ""]).encode()

    def request(self, method: str, path: str, body: object = None, key: str | None = None) -> bytes:
        data = b"" if body is None else msgspec.json.encode(body)
        headers = ("Content-Type: application/json", f"Content-Length: {len(data)}")
        return self.head(method, path, key or self.order.key, *headers) + data

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> str:
        """Send a request and read the whole answer. Return its status."""
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        await reader.readexactly(int(length or b"0"))
        return head.split(b" ", 2)[1].decode()

    async def repeat(self, make: Callable[[], bytes]) -> None:
        """Ask again and again on one connection, and open a new one when it is closed."""
        while True:
            try:
                reader, writer = await self.connect()
                try:
                    while True:
                        status = await self.ask(reader, writer, make())
                        self.answers[status] += 1
                        if status[0] != "2":
                            await asyncio.sleep(PAUSE_SECONDS)
                finally:
                    writer.close()
            except (OSError, EOFError, asyncio.LimitOverrunError) as error:
                self.answers[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_SECONDS)

    async def send(self, method: str, path: str, body: object) -> str:
        reader, writer = await self.connect()
        try:
            status = await self.ask(reader, writer, self.request(method, path, body))
            self.answers[status] += 1
            return status
        finally:
            writer.close()

    # The attacks

    async def wrong_keys(self) -> None:
        def make() -> bytes:
            return self.request("GET", "/v1/tasks", key=f"dt_{os.urandom(32).hex()[:43]}")

        await asyncio.gather(*[self.repeat(make) for _ in range(200)])

    async def endless_trailers(self) -> None:
        """Without a key: a body in chunks, and then trailers until the node closes the connection."""
        begin = self.head("POST", "/v1/tasks", None, "Content-Type: application/json", "Transfer-Encoding: chunked")
        while True:
            try:
                _, writer = await self.connect()
                writer.write(begin + b"2\r\n{}\r\n0\r\nX-One: ")
                for _ in range(MOST_BYTES // len(_PIECE)):
                    writer.write(_PIECE)
                    await writer.drain()
                self.answers["all was read"] += 1
                writer.close()
            except OSError as error:
                self.answers[type(error).__name__] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def idle_connections(self) -> None:
        """Open more connections than a node may have files open, and send nothing on any of them."""
        kept = []
        while True:
            try:
                kept.append(await self.connect())
                self.answers["connected"] += 1
            except OSError as error:
                self.answers[type(error).__name__] += 1
                await asyncio.sleep(0.1)
            if len(kept) >= 1_100:
                kept = [pair for pair in kept if not pair[0].at_eof()]
                await asyncio.sleep(0.1)

    async def costly_previews(self) -> None:
        schedule = {"spec": _EVERY_MINUTE_EXCLUDED, "task": {"type": "a"}}
        request = self.request("POST", "/v1/schedules/preview", schedule)
        await asyncio.gather(*[self.repeat(lambda: request) for _ in range(4)])

    async def costly_schemas(self) -> None:
        schema = {"type": "object", "properties": {"n": {"items": {"enum": [f"value {n}" for n in range(4_000)]}}}}
        await self.send("PUT", "/v1/types/costly", {"schema": schema})
        # Judged to the end and refused: accepted tasks are bounded by the bytes that a tenant may submit.
        task = {"type": "costly", "payload": {"n": ["value 3999"] * 3_999 + ["none"]}}
        request = self.request("POST", "/v1/tasks/batch", [task] * 20)
        await asyncio.gather(*[self.repeat(lambda: request) for _ in range(4)])

    async def wrong_bodies(self) -> None:
        """Send long bodies with many errors, from fifty clients at a time."""
        schedule = {"spec": _EVERY_MINUTE_EXCLUDED, "task": {"type": "a"}, "no_such_field": 1}
        request = self.request("POST", "/v1/schedules/preview", schedule)
        await asyncio.gather(*[self.repeat(lambda: request) for _ in range(50)])

    async def wrong_batches(self) -> None:
        """Send two hundred batches in which every item is wrong, and which take far more memory than their size."""
        request = self.request("POST", "/v1/tasks/batch", [{"type": "a", "no_such_field": 1}] * 5_000)
        await asyncio.gather(*[self.repeat(lambda: request) for _ in range(200)])

    async def large_definitions(self) -> None:
        """Store types with large patterns, and large calendars that schedules name."""
        minutes = ",".join(map(str, range(60)))
        dates = [{"cron": f"{minutes} {number % 24} 1 1 *".ljust(700)} for number in range(1_000)]
        for number in range(1_000_000):
            name = f"{number % 100}"
            large = {f"p{each}": {"pattern": f"^.{{1000}}{each}$"} for each in range(300)}
            small = {f"p{each}": {"pattern": f"^.{{60}}{number}-{each}$"} for each in range(8)}
            spec = {"cron": "0 0 * * *", "exclude": [{"calendar": f"c{name}"}]}
            await self.send("PUT", f"/v1/types/large{name}", {"schema": {"properties": large}})
            await self.send("PUT", f"/v1/types/small{name}", {"schema": {"properties": small}})
            await self.send("PUT", f"/v1/calendars/c{name}", {"dates": dates})
            await self.send("PUT", f"/v1/schedules/s{name}", {"spec": spec, "task": {"type": "a"}})

    async def unread_answers(self) -> None:
        """A hundred clients ask for the largest pages, and read none of the answers."""
        later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        task = {"type": "large", "payload": {"text": "x" * 60_000}, "run_at": later}
        for _ in range(20):
            await self.send("POST", "/v1/tasks/batch", [task] * 10)
        request = self.request("GET", "/v1/tasks?limit=200&type=large")

        async def never_read() -> None:
            while True:
                try:
                    reader, writer = await self.connect()
                    # The answer stays in the system's buffers.
                    reader._transport.pause_reading()  # type: ignore[attr-defined]
                    writer.write(request * 20)
                    self.answers["asked"] += 1
                    while not writer.transport.is_closing():
                        await asyncio.sleep(0.5)
                        writer.write(request)
                        await writer.drain()
                except OSError:
                    self.answers["closed"] += 1
                    await asyncio.sleep(PAUSE_SECONDS)

        await asyncio.gather(*[never_read() for _ in range(100)])

    async def hung_hosts(self) -> None:
        await self._call_out(self.order.hosts[:6], 600, "45s")

    async def a_shared_host(self) -> None:
        await self._call_out([self.order.hosts[-1] + "slow"], 80, "25s")

    async def names_without_answer(self) -> None:
        await self._call_out([f"http://{number}.nobody.invalid/" for number in range(150)], 150, "5s")

    async def _call_out(self, urls: list[str], count: int, timeout: str) -> None:
        """Keep this many tasks with these targets; they fail and are tried again."""
        while True:
            tasks = [
                {
                    "type": "call",
                    "payload": {"who": -1},
                    "target": {"url": urls[number % len(urls)]},
                    "timeout": timeout,
                }
                for number in range(count)
            ]
            for first in range(0, count, 100):
                await self.send("POST", "/v1/tasks/batch", tasks[first : first + 100])
            await asyncio.sleep(5.0)


KINDS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    "wrong keys": Attacker.wrong_keys,
    "endless trailers": Attacker.endless_trailers,
    "idle connections": Attacker.idle_connections,
    "costly previews": Attacker.costly_previews,
    "costly schemas": Attacker.costly_schemas,
    "wrong bodies": Attacker.wrong_bodies,
    "wrong batches": Attacker.wrong_batches,
    "large definitions": Attacker.large_definitions,
    "unread answers": Attacker.unread_answers,
    "hung hosts": Attacker.hung_hosts,
    "a shared host": Attacker.a_shared_host,
    "names without answer": Attacker.names_without_answer,
}


async def main(order: Attack) -> None:
    os.nice(_LAST_NICE)
    attacker = Attacker(order)
    began = time.monotonic()
    terminated = asyncio.create_task(until_terminated())
    attacking = asyncio.ensure_future(KINDS[order.kind](attacker))
    say_ready()
    await asyncio.wait({attacking, terminated}, return_when=asyncio.FIRST_COMPLETED)
    attacking.cancel()
    await asyncio.gather(attacking, return_exceptions=True)
    seconds = time.monotonic() - began
    print(msgspec.json.encode({"seconds": seconds, "answers": attacker.answers}).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Attack)))
