"""How a `Client` reaches the server: through the connections of its process."""

from typing import Any

from duetime.http1.messages import ExchangeError
from duetime.sdk.calls.call import Answer, ApiCall
from duetime.sdk.transport.pool import Pool
from duetime.sdk.transport.route import Route, failure_of

_MAX_KEPT = 16


class Transport:
    """Sends a call once."""

    def __init__(self, route: Route, timeout: float) -> None:
        self._route = route
        self._timeout = timeout
        self._pool = Pool(route, max_kept=_MAX_KEPT)

    def exchange(self, call: ApiCall[Any]) -> Answer:
        try:
            return self._pool.request(
                call.method, call.path, call.body, timeout=self._timeout, idempotency_key=call.key
            )
        except ExchangeError as error:
            raise failure_of(f"{self._route.name} does not answer", error) from error

    def close(self) -> None:
        self._pool.close()
