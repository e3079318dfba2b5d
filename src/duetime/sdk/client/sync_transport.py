"""How a `Client` reaches the server: through the connections of its process."""

from typing import Any

import urllib3

from duetime.sdk.errors import ServerUnreachable
from duetime.sdk.pool import Pool
from duetime.sdk.wire import Answer, Call


class Transport:
    """Sends a call once."""

    def __init__(self, url: str, key: str, tenant: str | None, timeout: float) -> None:
        self._url, self._key, self._tenant = url, key, tenant
        self._pool = Pool(url, maxsize=16, timeout=urllib3.Timeout(connect=5.0, read=timeout))

    def exchange(self, call: Call[Any]) -> Answer:
        try:
            answer = self._pool.request(call.method, call.path, call.body, call.headers(self._key, self._tenant))
        except urllib3.exceptions.HTTPError as error:
            raise ServerUnreachable(f"{self._url} does not answer: {error}") from error
        return Answer(answer.status, answer.headers, answer.data)

    def close(self) -> None:
        self._pool.close()
