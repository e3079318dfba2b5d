"""Loops: a step that fails is tried again, for as long as it takes."""

import asyncio
from datetime import timedelta

import pytest

from duetime import service
from duetime.errors import Unavailable
from duetime.service import Loop


async def test_a_loop_outlives_any_number_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """More failures than a float has doublings: a database that is away for hours."""
    monkeypatch.setattr(service, "_LONGEST_BACKOFF_SECONDS", 0.0)
    failures = 0
    recovered = asyncio.Event()

    async def step() -> timedelta:
        nonlocal failures
        await asyncio.sleep(0)
        if failures < 1_200:
            failures += 1
            raise Unavailable("away")
        recovered.set()
        return timedelta(seconds=60)

    loop = Loop("test", step)
    loop.start()
    async with asyncio.timeout(30):
        await recovered.wait()
    await loop.stop()


async def test_a_stop_cuts_the_wait_short() -> None:
    stepped = asyncio.Event()

    async def step() -> timedelta:
        stepped.set()
        return timedelta(hours=1)

    loop = Loop("test", step)
    loop.start()
    await stepped.wait()

    async with asyncio.timeout(4):
        await loop.stop()
