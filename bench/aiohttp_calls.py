"""The executor's calls made with aiohttp's own client, to compare duetime's calls with.

Run as `python -m bench.aiohttp_calls URL COUNT CONCURRENCY BODY`; prints one JSON
line with the seconds it took and the CPU time it spent on the calls.
"""

import asyncio
import json
import sys
import time

import aiohttp
import uvloop

#: As many headers, with the same lengths, as a signed call has, made once: aiohttp's figure contains no signing.
HEADERS = {
    "Content-Type": "application/json",
    "Accept-Encoding": "identity",
    "Duetime-Type": "bench",
    "Duetime-Queue": "default",
    "Idempotency-Key": "019a0000-0000-8000-8000-000000000100",
    "Duetime-Task-Id": "019a0000-0000-8000-8000-000000000100",
    "Duetime-Attempt": "1",
    "Duetime-Due-At": "2026-01-01T00:00:00.000Z",
    "webhook-id": "019a0000-0000-8000-8000-000000000100",
    "webhook-timestamp": "1767225600",
    "webhook-signature": "v1," + "x" * 44,
}


async def main(url: str, count: int, concurrency: int, body: bytes) -> None:
    left = iter(range(count))
    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def call() -> None:
            for _ in left:
                async with session.post(url, data=body, headers=HEADERS, allow_redirects=False) as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"{url} answered {answer.status}")

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*[call() for _ in range(concurrency)])
        spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()))
