"""Stopping by a signal: the first lets running work end, the second does not wait."""

import asyncio
import os
import signal
from typing import Protocol

import structlog

log = structlog.get_logger()


def watch_signals() -> asyncio.Event:
    """An event that SIGTERM or SIGINT sets from now on; a second signal ends the process at once."""
    signalled = asyncio.Event()

    def on_signal(number: int) -> None:
        if signalled.is_set():
            os._exit(128 + number)
        signalled.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return signalled


class Stoppable(Protocol):
    async def stop(self) -> None: ...


async def stop_when(signalled: asyncio.Event, node: Stoppable) -> None:
    await signalled.wait()
    log.info("stopping; a second signal ends at once")
    await node.stop()
