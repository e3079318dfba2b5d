"""Schedules under kill -9, with two nodes, and with nodes whose clocks are off: each time once, none left out."""

import asyncio
import random
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from duetime import AsyncClient
from duetime.admin.invariants import check_invariants
from faults.cast import Cast
from faults.processes import ServeProcess
from faults.test_clock import HOUR, find_library

COUNT = 60


async def put_schedules(node: ServeProcess, key: str, count: int = COUNT) -> None:
    """Every second, and every late time made up for."""
    async with AsyncClient(node.url, key) as client:
        for number in range(count):
            await client.schedule(
                f"s{number}", "fault.none", every="1s", overlap="allow", misfire="fire_all", catchup_rate=100
            )


_SPANS = """
SELECT max(due_ms(moment)) - (SELECT min(due_ms(moment)) FROM fire) AS span
  FROM fire
 GROUP BY schedule
"""


async def fired(cast: Cast) -> dict[int, list[int]]:
    """The seconds that each schedule was fired for, by its number, and what they have in common is checked."""
    rows = await cast.database.fetch(
        "SELECT schedule, moment, task, outcome, extract(epoch FROM at) * 1000 AS at_ms FROM fire"
        " ORDER BY schedule, moment",
        timeout=60.0,
    )
    times: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        nominal_ms = row["moment"].int >> 80
        assert row["outcome"] == 1
        # Planned at most two seconds ahead, by the database's clock.
        assert row["at_ms"] > nominal_ms - 2_100
        times[row["schedule"]].append(nominal_ms // 1000)
    tasks = await cast.database.fetch("SELECT count(*) AS tasks FROM task", timeout=60.0)
    assert tasks[0]["tasks"] == len({row["task"] for row in rows}) == len(rows)
    return times


async def until_fired(cast: Cast, seconds: int, count: int = 1) -> None:
    """Until the youngest time of so many schedules is so many seconds after the first."""
    async with asyncio.timeout(120):
        while True:
            rows: list[Any] = await cast.database.fetch(_SPANS)
            if sum(row["span"] >= seconds * 1000 for row in rows) >= count:
                return
            await asyncio.sleep(0.1)


def check_unbroken(times: dict[int, list[int]], count: int = COUNT) -> None:
    assert len(times) == count
    for seconds in times.values():
        assert seconds == list(range(seconds[0], seconds[-1] + 1))


async def test_kill_9_in_the_midst_of_firing_loses_and_doubles_nothing(cast: Cast) -> None:
    chance = random.Random(7)
    node = await cast.serve()
    await put_schedules(node, cast.key)
    for round_number in range(1, 4):
        await until_fired(cast, 3 * round_number)
        # Somewhere within the second in which it fires.
        await asyncio.sleep(chance.random())
        node.kill()
        node = await cast.serve()
    await until_fired(cast, 14, COUNT)
    node.stop(signal.SIGTERM)

    check_unbroken(await fired(cast))
    assert await check_invariants(cast.database, deep=True) == []


async def test_two_nodes_whose_clocks_are_hours_apart_fire_as_one(cast: Cast) -> None:
    nodes = []
    for seconds in (HOUR, -HOUR):
        environment = {
            "LD_PRELOAD": find_library("libfaketimeMT.so.1"),
            "FAKETIME": f"{seconds:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        node = await cast.serve(environment=environment)
        # What the library shares with nobody here would outlive a node that is killed.
        for left in Path("/dev/shm").glob(f"*faketime_*_{node.pid}"):
            left.unlink()
        nodes.append(node)
    await put_schedules(nodes[0], cast.key)

    await until_fired(cast, 6, COUNT)
    for node in nodes:
        node.stop(signal.SIGTERM)

    times = await fired(cast)
    check_unbroken(times)
    rows = await cast.database.fetch("SELECT to_ms(clock_timestamp()) / 1000 AS now")
    assert all(abs(rows[0]["now"] - seconds[-1]) < 60 for seconds in times.values())
    assert await check_invariants(cast.database, deep=True) == []


@pytest.mark.parametrize(("misfire", "most_made"), [("skip", 20), ("fire_latest", 21), ("fire_all", 10_000)])
async def test_what_goes_by_while_no_node_runs_is_dealt_with_by_the_policy(
    cast: Cast, misfire: str, most_made: int
) -> None:
    node = await cast.serve()
    async with AsyncClient(node.url, cast.key) as client:
        rate = 200 if misfire == "fire_all" else None
        await client.schedule("s", "fault.none", every="1s", overlap="allow", misfire=misfire, catchup_rate=rate)
    await until_fired(cast, 2)
    node.kill()
    # As if it had been ten minutes: the schedule's turn lies so far back.
    await cast.database.execute("UPDATE schedule_state SET next_ms = next_ms - 600000")
    [before] = await cast.database.fetch("SELECT next_ms, fired FROM schedule_state")

    node = await cast.serve()
    async with asyncio.timeout(180):
        while True:
            [state] = await cast.database.fetch(
                "SELECT next_ms, fired, missed, to_ms(clock_timestamp()) AS now FROM schedule_state"
            )
            if state["next_ms"] > state["now"]:
                break
            await asyncio.sleep(0.1)
    node.stop(signal.SIGTERM)
    # It may have fired once more until it stopped.
    [state] = await cast.database.fetch("SELECT next_ms, fired, missed FROM schedule_state")

    # Every second since then was fired or counted as missed; of those that had been fired before, none is made up for.
    gone_by = (state["next_ms"] - before["next_ms"]) // 1000
    rows = await cast.database.fetch("SELECT count(*) AS again FROM fire WHERE outcome = 1")
    made = state["fired"] - before["fired"]
    assert gone_by - before["fired"] <= made + state["missed"] <= gone_by
    assert rows[0]["again"] == state["fired"]
    if misfire == "fire_all":
        assert state["missed"] == 0
    else:
        # All but what was not late yet, and what is planned ahead.
        assert made <= most_made
        assert state["missed"] >= 600 - most_made
