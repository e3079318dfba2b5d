"""Schedules that a worker's code declares, and how they are put to the server.

A worker puts its declared schedules before it takes tasks, all in one call.
The server changes only what differs, so the number and the order of starting
workers do not matter.  A schedule that belongs to another origin is left alone
and logged. A wrong one stops the worker, since no later error would report it.
"""

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duetime.sdk.calls.call import Tries, without_none
from duetime.sdk.calls.schedules import MAX_PUT_BATCH, put_schedules
from duetime.sdk.client.async_client import AsyncClient
from duetime.sdk.errors import Conflict, FieldError, InvalidRequest, ServerUnavailable
from duetime.sdk.shapes.schedules import PutResult, shape_schedule
from duetime.sdk.worker.functions import name_of_module
from duetime.sdk.worker.settings import WorkerSettings

logger = logging.getLogger("duetime.worker")

_ITEM = re.compile(r"items\[(\d+)\]\.?")


@dataclass(frozen=True)
class DeclaredSchedule:
    """A schedule with its handler. If `name` is None, it is the handler's type."""

    function: Callable[..., Any]
    name: str | None
    payload: object
    options: Mapping[str, Any]

    def shape(self, type: str, queue: str, source: str) -> dict[str, Any]:
        """Return it in the form of the API. The options may name another queue or source."""
        options = {"queue": queue, "source": source, **without_none(self.options), "origin": "code"}
        return {"name": self.name or type, **shape_schedule(type, self.payload, options)}


def name_of_program(worker: object, function: Callable[..., Any]) -> str:
    """Return `module:attribute`, as for `duetime worker`. It is the same if the module runs as a script."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None:
        return ""
    name = name_of_module(module.__name__)
    attribute = next((key for key, value in vars(module).items() if value is worker), None)
    return name if attribute is None else f"{name}:{attribute}"


async def put_declared(settings: WorkerSettings, shaped: Sequence[Mapping[str, Any]]) -> None:
    """Put all schedules, and retry until the server is reached. Raises if one is wrong."""
    # The client does not retry: each retry is logged here, like the retries of leasing tasks.
    async with AsyncClient(settings.url, settings.key, retry_for=0, proxy=settings.proxy) as client:
        for start in range(0, len(shaped), MAX_PUT_BATCH):
            part = shaped[start : start + MAX_PUT_BATCH]
            for result in await _put(client, part):
                _judge(result)


async def _put(client: AsyncClient, part: Sequence[Mapping[str, Any]]) -> list[PutResult]:
    tries = Tries(float("inf"))
    call = put_schedules(part)
    while True:
        try:
            return (await client.send(call)).results
        except ServerUnavailable as error:
            logger.warning("cannot put schedules, trying again: %s", error)
            await asyncio.sleep(tries.wait_after(error))
        except InvalidRequest as error:
            raise _named(error, part) from error


def _named(error: InvalidRequest, part: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Return the error with the schedules' names in place of their numbers in the batch."""

    def name(found: re.Match[str]) -> str:
        place = int(found[1])
        return f"schedule {part[place]['name']}: " if place < len(part) else found[0]

    fields = tuple(FieldError(_ITEM.sub(name, each.path), each.message) for each in error.errors)
    return InvalidRequest(_ITEM.sub(name, error.detail), status=error.status, code=error.code, errors=fields)


def _judge(result: PutResult) -> None:
    problem = result.error
    if problem is None:
        if result.result != "unchanged":
            logger.info("schedule %s: %s, version %s", result.name, result.result, result.version)
        return
    detail = problem.detail or problem.title
    if problem.status == 409:
        error = Conflict(detail, status=problem.status, code=problem.code)
        logger.error("schedule %s is left as it is: %s", result.name, error)
        return
    raise InvalidRequest(
        f"schedule {result.name}: {detail}", status=problem.status, code=problem.code, errors=problem.errors
    )
