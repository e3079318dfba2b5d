"""API keys, as answers."""

from datetime import datetime
from typing import Literal

import msgspec

Role = Literal["viewer", "producer", "worker", "operator", "owner", "admin"]


class Key(msgspec.Struct, frozen=True):
    """An API key in a list, without the key itself."""

    id: int
    hint: str = ""
    role: str = ""
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    name: str = ""
    types: list[str] = []
    queues: list[str] = []
    expires_at: datetime | None = None
    #: Addresses and networks from which it may be used. Empty: from anywhere.
    allowed_ips: list[str] = []
    #: Exact to about a minute.
    last_used_at: datetime | None = None
    last_used_from: str | None = None


class NewKey(msgspec.Struct, frozen=True):
    """A new key. `key` is shown only this once."""

    id: int
    key: str
    role: str = ""
    tenant: str = ""
    #: Effects that the caller may not expect.
    notes: list[str] = []

    def __repr__(self) -> str:
        return f"NewKey(id={self.id}, role={self.role!r}, tenant={self.tenant!r}, notes={self.notes!r})"
