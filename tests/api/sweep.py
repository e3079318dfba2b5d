"""Every operation of the API with the largest that it allows, and how long the event loop was held up by each.

What is measured is the processor time of the loop's thread in one step: from the
moment that the loop calls something until it has its thread back.  Whoever asks
does so from a thread of its own, so that nothing of the asking counts.
"""

import asyncio
import gc
import http.client
import json
import threading
import time
from asyncio import events
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from api.client import Api, Reply
from duetime.service import calm_collector


class Step(NamedTuple):
    """One uninterrupted run of the loop's thread."""

    seconds: float
    what: str


class Steps:
    """The longest step since the last `clear`."""

    def __init__(self) -> None:
        self.longest = Step(0.0, "")

    def clear(self) -> None:
        self.longest = Step(0.0, "")

    @contextmanager
    def watch(self) -> Iterator[None]:
        run, thread = events.Handle._run, threading.get_ident()

        def measured(handle: events.Handle) -> None:
            began = time.thread_time()
            run(handle)
            seconds = time.thread_time() - began
            if seconds > self.longest.seconds and threading.get_ident() == thread:
                self.longest = Step(seconds, _name(handle))

        # As a node does: else the collector of cycles looks through all of the tests' own objects in between.
        threshold = gc.get_threshold()
        calm_collector()
        events.Handle._run = measured  # type: ignore[method-assign]
        try:
            yield
        finally:
            events.Handle._run = run  # type: ignore[method-assign]
            gc.set_threshold(*threshold)
            gc.unfreeze()


def _name(handle: events.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        return str(getattr(coroutine, "__qualname__", coroutine))
    return str(getattr(callback, "__qualname__", callback))


class Caller:
    """One tenant's calls, from another thread, and the longest step that each operation took."""

    def __init__(self, api: Api, steps: Steps) -> None:
        self.api = api
        self.steps = steps
        self.longest: dict[str, Step] = {}

    async def call(
        self, operation: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        sent = {"Authorization": f"Bearer {self.api.key}", "Content-Type": "application/json", **(headers or {})}
        # What the test itself did until now is not of the call.
        await asyncio.sleep(0)
        self.steps.clear()
        reply = await asyncio.to_thread(self._ask, method, path, body, sent)
        # What it left behind is its, too.
        for _ in range(20):
            await asyncio.sleep(0)
        self.longest[operation] = max(self.longest.get(operation, Step(0.0, "")), self.steps.longest)
        return reply

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Reply:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.api.serving.port, timeout=120)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()
