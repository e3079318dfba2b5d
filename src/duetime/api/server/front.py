"""The application that connections talk to: always the one of the node's present parts.

When a node starts again in its process, its connections stay; they use the new
application from their next request on.
"""

from collections.abc import Awaitable, Callable

from duetime.api.app import App
from duetime.api.server.express import Express, Finish, Head
from duetime.api.server.http import Receive, Scope, Send
from duetime.api.server.unsent import NOBODY
from duetime.errors import DuetimeError


class NoExpress:
    """Every request takes the normal path."""

    def take(self, head: Head, body: bytes, finish: Finish) -> bool:
        return False

    def tenant_of(self, given: list[tuple[bytes, bytes]]) -> int:
        return NOBODY


class Front:
    def __init__(self, app: App) -> None:
        self.connections = app.connections
        self.unsent = app.unsent
        self.use(app)

    def use(self, app: App) -> None:
        """Send requests to this application from now on."""
        self._app = app
        # Every request looks these up.
        self._call: Callable[[Scope, Receive, Send], Awaitable[None]] = app.__call__
        self.express: Express | NoExpress = app.express
        self.judge = app.judge
        self.render = app.render

    def refuse(self, why: Callable[[], DuetimeError]) -> None:
        """Refuse requests that need a key until there is another application."""
        self.express = NoExpress()
        self._app.refuse(why)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._call(scope, receive, send)
