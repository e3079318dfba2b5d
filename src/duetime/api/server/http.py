"""Requests and answers on plain ASGI, and the table that finds a request's handler.

This module knows HTTP and nothing of tasks.  A body is never kept beyond its
limit, whatever its headers promise (`bounds`); a path is split before it is
decoded, so that an encoded slash is part of a name.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from duetime.admin.keys import Caller
from duetime.api.bodies.seconds import decode_hook
from duetime.api.operations import Operation
from duetime.api.problems import read_decode_error
from duetime.api.server.bounds import Bodies, HeldBody
from duetime.api.server.peers import Peer, Peers
from duetime.errors import DuetimeError, FieldError, InvalidInput, MalformedBody, NotFound, UnsupportedMediaType
from duetime.ids import parse_uuid
from duetime.long_work import LONG_BYTES, LongWork

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Body = TypeVar("Body")

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
NDJSON = ("application/x-ndjson", "application/jsonl")
MAX_QUERY_FIELDS = 100
#: Errors in a body up to this many bytes are explained at once.
EASY_BYTES = 2 * 1024
#: The scope's key for the connection's transport, if the server is ours.
TRANSPORT = "duetime.transport"

UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError)

encode = msgspec.json.Encoder(uuid_format="canonical").encode


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    #: Called when the answer could not be sent.
    on_lost: Callable[[], Awaitable[None]] | None = None


@dataclass(slots=True)
class Request:
    operation: Operation
    scope: Scope
    receive: Receive
    headers: dict[bytes, bytes]
    path: Mapping[str, str]
    #: The caller; its tenant is already the one that it acts for.
    caller: Caller
    bodies: Bodies
    #: The id of the request for the client and the log.
    id: bytes
    peers: Peers
    turns: LongWork
    _body: HeldBody | None = None

    def peer(self) -> Peer:
        """The client for whom the request came, as far as a trusted proxy says."""
        return self.peers.of_request(self.scope.get("client"), self.scope["headers"])

    async def body(self) -> bytes:
        """Read the whole body; a long batch waits until its tenant does not have too many of them in work."""
        self._body = coming = self.bodies.of(self.caller.tenant, is_vital=self.operation.is_vital)
        body = await coming.read(self.headers, self.receive, self.operation.max_body)
        if self.operation.is_large and len(body) > LONG_BYTES:
            await coming.begin_work()
        return body

    def let_go(self) -> None:
        """Stop counting the body, because the request is answered."""
        if self._body is not None:
            self._body.let_go()

    def content_type(self) -> str:
        """The media type without its parameters; JSON if none is given."""
        given = self.headers.get(b"content-type", b"").decode("latin-1")
        return given.partition(";")[0].strip().lower() or JSON

    async def json(
        self,
        decoder: "msgspec.json.Decoder[Body]",
        judge: Callable[[Body], object] | None = None,
        *,
        takes_turn: bool = False,
    ) -> Body:
        """Decode the body, which must be JSON; a long one waits its turn if there are many.

        `judge` finds what else is wrong with a wrong body, so that the answer names every error.
        """
        if self.content_type() != JSON:
            raise UnsupportedMediaType(f"send {JSON}, not {self.content_type()}")
        body = await self.body()
        if takes_turn and len(body) > LONG_BYTES:
            await self.turns.take()
        try:
            return decode_json(decoder, body, explains=False)
        except UnreadableBody:
            async with self.explaining(body):
                return decode_json(decoder, body, judge)

    @asynccontextmanager
    async def explaining(self, body: bytes) -> AsyncIterator[None]:
        """Explain what is wrong with a body, which takes much longer than reading it: a long one waits its turn."""
        if len(body) <= EASY_BYTES:
            yield
            return
        async with self.bodies.explanation_slot(self.caller.tenant):
            await self.turns.take()
            yield

    async def json_or_nothing(self, decoder: "msgspec.json.Decoder[Body]", otherwise: Body) -> Body:
        """The same for a body that may be absent."""
        if self.headers.get(b"content-length", b"0").strip() == b"0" and b"transfer-encoding" not in self.headers:
            return otherwise
        return await self.json(decoder)

    async def no_body(self) -> None:
        """Check that there is no body; an empty object counts as none."""
        body = await self.body()
        if body and body.strip() not in (b"", b"{}", b"null"):
            raise InvalidInput("this call takes no body")

    def query(self) -> dict[str, list[str]]:
        """The query parameters; a parameter that the operation does not know is refused."""
        raw: bytes = self.scope["query_string"]
        if not raw:
            return {}
        try:
            pairs = parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS
            )
        except ValueError as error:
            raise InvalidInput(f"the query string cannot be read: {error}") from error
        found: dict[str, list[str]] = {}
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        known = self.operation.query_names
        if unknown := [name for name in found if name not in known]:
            hint = f"there are: {', '.join(sorted(known))}" if known else "this call takes none"
            message = f"there is no such query parameter; {hint}"
            raise InvalidInput.all([FieldError(name[:80], message) for name in unknown])
        return found

    def task_id(self) -> uuid.UUID:
        """The id in the path; a text that cannot be an id names no task."""
        text = self.path["id"]
        identifier = read_uuid(text)
        if identifier is None:
            raise NotFound(f"there is no task {text[:80]}")
        return identifier

    async def disconnected(self) -> None:
        """Wait until the client has gone; call it after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def is_gone(self) -> bool:
        """Whether the connection is closed now, as far as can be told without waiting."""
        transport: asyncio.BaseTransport | None = self.scope.get(TRANSPORT)
        return transport is not None and transport.is_closing()


def read_uuid(text: str) -> uuid.UUID | None:
    """Parse a UUID in its usual 36 characters; parsers accept other forms as well."""
    if len(text) != 36 or text[8] + text[13] + text[18] + text[23] != "----":
        return None
    try:
        return parse_uuid(text)
    except ValueError:
        return None


class UnreadableBody(MalformedBody):
    """The body cannot be read; the caller has to explain why, or to try another way."""


def decode_json(
    decoder: "msgspec.json.Decoder[Body]",
    body: bytes,
    judge: Callable[[Body], object] | None = None,
    *,
    explains: bool = True,
) -> Body:
    """Decode the body; `judge` finds what else is wrong, from the correct part of a wrong body.

    With `explains` false it raises UnreadableBody, which gives no reason.
    """
    check_text(body)
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        if not explains:
            raise UnreadableBody("the body cannot be read") from error
        raise explain_unreadable(error, decoder, body, judge) from error


def explain_unreadable(
    error: Exception, decoder: "msgspec.json.Decoder[Body]", body: bytes, judge: Callable[[Body], object] | None
) -> DuetimeError:
    """Our error for a body that the decoder refused."""
    if judge is None:
        return read_decode_error(error, body, decoder.type)
    return read_decode_error(error, body, decoder.type, lambda repaired: judge(decoder.decode(repaired)))


def make_decoder(kind: type[Body]) -> "msgspec.json.Decoder[Body]":
    return msgspec.json.Decoder(kind, dec_hook=decode_hook)


def check_text(body: bytes) -> None:
    """Check the UTF-8: the decoder does not check the values that it passes on unread."""
    if not body.isascii():
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedBody(f"the body is not UTF-8 (byte {error.start})") from error


def json_answer(status: int, value: object, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    return Answer(status, encode(value), headers=headers)


Handler = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    operation: Operation
    handler: Handler


@dataclass(slots=True)
class _Node:
    fixed: dict[str, "_Node"] = field(default_factory=dict)
    any: "tuple[str, _Node] | None" = None
    methods: dict[str, Route] = field(default_factory=dict)


class Router:
    """Finds the routes of a path; a fixed name wins over a parameter, as in `/v1/tasks/batch`."""

    def __init__(self, routes: list[Route]) -> None:
        self._root = _Node()
        self._fixed: dict[str, dict[str, Route]] = {}
        for route in routes:
            node = self._node_for(route.operation.path)
            node.methods[route.operation.method] = route
            if route.operation.method == "GET":
                node.methods["HEAD"] = route
            if "{" not in route.operation.path:
                self._fixed[route.operation.path] = node.methods

    def _node_for(self, path: str) -> _Node:
        node = self._root
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                if node.any is None:
                    node.any = (part[1:-1], _Node())
                node = node.any[1]
            else:
                node = node.fixed.setdefault(part, _Node())
        return node

    def find(self, scope: Scope) -> tuple[Mapping[str, Route], Mapping[str, str]]:
        """The methods of the path and its parameters; without methods there is no such path."""
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        if b"%" not in raw:
            methods = self._fixed.get(scope["path"])
            if methods is not None:
                return methods, {}
        try:
            parts = [unquote(part, errors="strict") for part in raw.decode("utf-8").split("/")[1:]]
        except UnicodeDecodeError:
            return {}, {}
        node, found = self._root, {}
        for part in parts:
            fixed = node.fixed.get(part)
            if fixed is not None:
                node = fixed
            elif node.any is not None and part:
                found[node.any[0]] = part
                node = node.any[1]
            else:
                return {}, {}
        return node.methods, found
