"""The calls on things of one kind: list them, and get, change and delete one by its name."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar
from urllib.parse import quote

import msgspec

from duetime.sdk.calls.call import ApiCall, encode, make_query
from duetime.sdk.shapes.answers import Page

T = TypeVar("T")
U = TypeVar("U")


class Collection(Generic[T]):
    """A collection such as `/v1/queues` with its items `/v1/queues/NAME`, and how their answers are read."""

    def __init__(self, noun: str, item: type[T], page: type[Page[T]]) -> None:
        self.path = f"/v1/{noun}"
        self.read: Callable[[bytes], T] = msgspec.json.Decoder(item).decode
        self.read_page: Callable[[bytes], Page[T]] = msgspec.json.Decoder(page).decode

    def path_of(self, name: object, *rest: object) -> str:
        # The server refuses a name that is not a text.
        parts = (quote(str(part), safe="", errors="surrogateescape") for part in (name, *rest))
        return "/".join((self.path, *parts))

    def list(self, *, limit: int | None = None, cursor: str | None = None, **filter: object) -> ApiCall[Page[T]]:
        return ApiCall("GET", self.path + make_query({**filter, "limit": limit, "cursor": cursor}), self.read_page)

    def get(self, name: object) -> ApiCall[T]:
        return ApiCall("GET", self.path_of(name), self.read)

    def put(self, name: object, body: object) -> ApiCall[T]:
        return ApiCall("PUT", self.path_of(name), self.read, encode(body))

    def act(self, verb: str, name: object, fields: Mapping[str, object] | None = None) -> ApiCall[T]:
        """Return the call of a verb on one item."""
        return self.post((name, verb), fields, self.read)

    def post(
        self, parts: tuple[object, ...], fields: Mapping[str, object] | None, read: Callable[[bytes], U]
    ) -> ApiCall[U]:
        path = self.path_of(*parts) if parts else self.path
        return ApiCall("POST", path, read, None if fields is None else encode(fields))

    def delete(self, name: object) -> ApiCall[None]:
        return ApiCall("DELETE", self.path_of(name), lambda body: None)
