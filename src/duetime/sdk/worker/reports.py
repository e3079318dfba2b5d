"""Reports: settle finished attempts in batches, until the server has acknowledged each.

One call is in progress at a time, and the next one takes all that finished
meanwhile: an idle worker reports at once and a busy one in large batches.  A call
without an answer is repeated with the same content: the server gives the same
holder the same answer.  A report that the server refuses is found by halving
its batch, and replaced by a failure that says why.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from duetime.sdk.calls.call import Tries
from duetime.sdk.errors import ApiError, InvalidRequest, ServerUnavailable
from duetime.sdk.worker import handlers
from duetime.sdk.worker.context import Held
from duetime.sdk.worker.protocol import SETTLE_PATH, Settlement, SettleRequest, Verdicts, encode, read_verdicts

logger = logging.getLogger("duetime.worker")

MAX_SETTLEMENTS = 1000
#: Half of what the server accepts in one request.
MAX_SETTLE_BYTES = 8 * 1024 * 1024
_TIMEOUT_SECONDS = 20.0

Post = Callable[[str, bytes, float], Awaitable[bytes]]
OnSettled = Callable[[list[Held], Verdicts], None]


class Reports:
    def __init__(self, worker: str, post: Post, on_settled: OnSettled) -> None:
        self._worker = worker
        self._post = post
        self._on_settled = on_settled
        self._waiting: deque[Held] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, held: Held) -> None:
        self._waiting.append(held)
        if not self._arrived.is_set():
            self._idle.clear()
            self._arrived.set()

    async def flushed(self) -> None:
        """Wait until everything that was added is acknowledged."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._waiting:
                await self._deliver(self._take())
            self._arrived.clear()
            self._idle.set()

    def _take(self) -> list[Held]:
        batch: list[Held] = []
        size = 0
        while self._waiting and len(batch) < MAX_SETTLEMENTS:
            result = _settlement_of(self._waiting[0]).result
            size += 0 if result is None else memoryview(result).nbytes
            if batch and size > MAX_SETTLE_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _deliver(self, batch: list[Held], is_replaced: bool = False) -> None:
        body = encode(SettleRequest(self._worker, [_settlement_of(held) for held in batch]))
        tries = Tries(float("inf"))
        while True:
            try:
                verdicts = read_verdicts(await self._post(SETTLE_PATH, body, _TIMEOUT_SECONDS))
            except ServerUnavailable as error:
                logger.warning("cannot report %d attempts yet, trying again: %s", len(batch), error)
                await asyncio.sleep(tries.wait_after(error))
            except InvalidRequest as error:
                await self._divide(batch, error, is_replaced)
                return
            except (ApiError, msgspec.DecodeError) as error:
                # The cause may be a revoked key or a proxy that answers instead of the server: it may pass.
                logger.error("cannot report %d attempts, trying again: %s", len(batch), error)
                await asyncio.sleep(tries.wait_after(ServerUnavailable(str(error))))
            else:
                self._on_settled(batch, verdicts)
                return

    async def _divide(self, batch: list[Held], error: InvalidRequest, is_replaced: bool) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._deliver(batch[:middle])
            await self._deliver(batch[middle:])
            return
        held = batch[0]
        if is_replaced:
            logger.error("task %s: the server refuses every report: %s", held.task.id, error)
            self._on_settled(batch, Verdicts(lost=[held.task.id]))
            return
        logger.error("task %s: the server refused the report: %s", held.task.id, error)
        held.settlement = handlers.refused(held, str(error))
        await self._deliver(batch, is_replaced=True)


def _settlement_of(held: Held) -> Settlement:
    assert held.settlement is not None, "only what is over is reported"
    return held.settlement
