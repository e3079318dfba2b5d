# Made by tests/sdk/write_client.py of async_sender.py: change that, then `make client`.
"""How a client sends calls: it opens, sends, retries, reads lists page by page, and closes.

A call that is safe to repeat is retried for `retry_for` seconds after
connection errors, 429, 502, 503 and 504; `Tries` decides when.
"""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from duetime.sdk.calls.call import ApiCall, Tries, check_tenant
from duetime.sdk.client.sync_transport import Transport
from duetime.sdk.errors import InvalidRequest, SearchIncomplete, ServerUnavailable
from duetime.sdk.server import find_server
from duetime.sdk.shapes.answers import Page
from duetime.sdk.transport.route import Route

T = TypeVar("T")

#: Makes the call for the page at a cursor. None is the first page.
PageCall = Callable[[str | None], ApiCall[Page[T]]]


class CallSender:
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
        self._transport = Transport(Route.to(url, key, tenant=check_tenant(tenant), proxy=proxy), timeout)
        self._retry_for = retry_for

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def send(self, call: ApiCall[T]) -> T:
        """Send a call until it is answered, or its time is over."""
        tries = Tries(self._retry_for)
        while True:
            try:
                return call.read(self._transport.exchange(call))
            except InvalidRequest as error:
                call = call.renamed(error)
            except ServerUnavailable as error:
                time.sleep(tries.wait_after(error))

    def pages(self, page: PageCall[T], cursor: str | None = None) -> Iterator[Page[T]]:
        """Yield every page from a cursor on.

        A page is empty if the server found nothing within the time limit of one request and will continue the search.
        """
        while True:
            try:
                found = self.send(page(cursor))
            except SearchIncomplete as error:
                found = Page(items=[], next=error.next)
            yield found
            if (cursor := found.next) is None:
                return

    def items(self, page: PageCall[T]) -> Iterator[T]:
        """Yield every item of a list. The iterator reads one page at a time."""
        for found in self.pages(page):
            yield from found.items
