"""How a client sends calls: it opens, sends, retries, reads lists page by page, and closes.

A call that is safe to repeat is retried for `retry_for` seconds after
connection errors, 429, 502, 503 and 504; `Tries` decides when.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self, TypeVar

from duetime.sdk.calls.call import ApiCall, Tries, check_tenant
from duetime.sdk.client.async_transport import AsyncTransport
from duetime.sdk.errors import InvalidRequest, SearchIncomplete, ServerUnavailable
from duetime.sdk.server import find_server
from duetime.sdk.shapes.answers import Page
from duetime.sdk.transport.route import Route

T = TypeVar("T")

#: Makes the call for the page at a cursor. None is the first page.
PageCall = Callable[[str | None], ApiCall[Page[T]]]


class AsyncCallSender:
    """Sends calls to one server with one key."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        tenant: str | None = None,
        timeout: float = 30.0,
        retry_for: float = 30.0,
        proxy: str | None = None,
    ) -> None:
        """Without `url` and `key`, those of the environment or of a `duetime up` in this folder are used.

        `tenant`: the tenant to act for if it is not the key's own. An admin key may do this.
        `proxy`: replaces the environment's `HTTPS_PROXY` or `HTTP_PROXY`. An empty one means no proxy.
        """
        url, key = find_server(url, key)
        self._transport = AsyncTransport(Route.to(url, key, tenant=check_tenant(tenant), proxy=proxy), timeout)
        self._retry_for = retry_for

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop and of all others."""
        await self._transport.close()

    async def send(self, call: ApiCall[T]) -> T:
        """Send a call until it is answered, or its time is over."""
        tries = Tries(self._retry_for)
        while True:
            try:
                return call.read(await self._transport.exchange(call))
            except InvalidRequest as error:
                call = call.renamed(error)
            except ServerUnavailable as error:
                await asyncio.sleep(tries.wait_after(error))

    async def pages(self, page: PageCall[T], cursor: str | None = None) -> AsyncIterator[Page[T]]:
        """Yield every page from a cursor on.

        A page is empty if the server found nothing within the time limit of one request and will continue the search.
        """
        while True:
            try:
                found = await self.send(page(cursor))
            except SearchIncomplete as error:
                found = Page(items=[], next=error.next)
            yield found
            if (cursor := found.next) is None:
                return

    async def items(self, page: PageCall[T]) -> AsyncIterator[T]:
        """Yield every item of a list. The iterator reads one page at a time."""
        async for found in self.pages(page):
            for item in found.items:
                yield item
