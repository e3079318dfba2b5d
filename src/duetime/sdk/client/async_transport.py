"""How an `AsyncClient` reaches the server: through the connections of the running event loop."""

from typing import Any

from duetime.sdk.calls.call import Answer, ApiCall
from duetime.sdk.transport.loops import HttpClients
from duetime.sdk.transport.route import Route


class AsyncTransport:
    """Sends a call once."""

    def __init__(self, route: Route, timeout: float) -> None:
        self._timeout = timeout
        self._https = HttpClients(route)

    async def exchange(self, call: ApiCall[Any]) -> Answer:
        return await self._https.here().request(
            call.method, call.path, call.body, timeout=self._timeout, idempotency_key=call.key
        )

    async def close(self) -> None:
        await self._https.close()
