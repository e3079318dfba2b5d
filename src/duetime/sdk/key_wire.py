"""The calls about API keys, without I/O, and what they answer: what both clients share.

Nobody names a key before it is made: if the answer is lost, the repeated call
makes another one, and the first stays unused in the list.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from duetime.sdk.errors import Duration
from duetime.sdk.shapes import seconds_of
from duetime.sdk.wire import Call, encode, make_query, without_none

Role = Literal["viewer", "producer", "worker", "operator", "owner", "admin"]


class Key(msgspec.Struct, frozen=True):
    """An API key as it is listed, never itself."""

    id: int
    hint: str = ""
    role: str = ""
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    name: str = ""
    types: list[str] = []
    queues: list[str] = []
    expires_at: datetime | None = None
    #: Addresses and networks from which it may be used; none: all.
    allowed_ips: list[str] = []
    #: To about a minute.
    last_used_at: datetime | None = None
    last_used_from: str | None = None


class KeyPage(msgspec.Struct, frozen=True):
    items: list[Key] = []
    next: str | None = None


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just made: `key` is shown this once."""

    id: int
    key: str
    role: str = ""
    tenant: str = ""
    #: What one might not expect of it.
    notes: list[str] = []

    def __repr__(self) -> str:
        return f"NewKey(id={self.id}, role={self.role!r}, tenant={self.tenant!r}, notes={self.notes!r})"


_read_keys = msgspec.json.Decoder(KeyPage).decode
_read_new_key = msgspec.json.Decoder(NewKey).decode


def list_keys(unused_for: Duration | None, *, cursor: str | None) -> Call[KeyPage]:
    unused = None if unused_for is None else f"{seconds_of(unused_for):.3f}s"
    return Call("GET", "/v1/keys" + make_query({"unused_for": unused, "cursor": cursor}), _read_keys)


def create_key(
    role: Role,
    name: str | None,
    types: Sequence[str] | None,
    queues: Sequence[str] | None,
    allowed_ips: Sequence[str] | None,
    expires_at: datetime | None,
) -> Call[NewKey]:
    asked: dict[str, object] = {"role": role, "name": name, "types": types, "queues": queues}
    asked |= {"allowed_ips": allowed_ips, "expires_at": expires_at}
    return Call("POST", "/v1/keys", _read_new_key, encode(without_none(asked)))


def rotate_key(key: int, overlap: Duration | None) -> Call[NewKey]:
    asked = {} if overlap is None else {"overlap": seconds_of(overlap)}
    return Call("POST", f"/v1/keys/{key}/rotate", _read_new_key, encode(asked))


def revoke_key(key: int) -> Call[None]:
    return Call("DELETE", f"/v1/keys/{key}", lambda body: None)
