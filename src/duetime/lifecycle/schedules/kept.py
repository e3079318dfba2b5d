"""A cache in memory, bounded in bytes for each tenant; the least recently used value goes first."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Entry(NamedTuple, Generic[Value]):
    tenant: int
    value: Value
    size: int


class Kept(Generic[Key, Value]):
    """Values of tenants, each with about the bytes that it takes."""

    def __init__(self, *, most: int, most_bytes: int, most_bytes_of_a_tenant: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._most_bytes_of_a_tenant = most_bytes_of_a_tenant
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        #: The same keys for each tenant, in the same order.
        self._of: dict[int, OrderedDict[Key, None]] = {}
        self._bytes_of: dict[int, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def bytes_of(self, tenant: int) -> int:
        return self._bytes_of.get(tenant, 0)

    def get(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        self._of[entry.tenant].move_to_end(key)
        return entry.value

    def put(self, tenant: int, key: Key, value: Value, size: int) -> None:
        """Keep it, unless it alone is more than its tenant may have."""
        self.drop(key)
        if size > self._most_bytes_of_a_tenant:
            return
        self._entries[key] = _Entry(tenant, value, size)
        self._of.setdefault(tenant, OrderedDict())[key] = None
        self._bytes_of[tenant] = self.bytes_of(tenant) + size
        self.bytes += size
        while self.bytes_of(tenant) > self._most_bytes_of_a_tenant:
            self.drop(next(iter(self._of[tenant])))
        while self.bytes > self._most_bytes or len(self._entries) > self._most:
            self.drop(next(iter(self._entries)))

    def clear(self) -> None:
        for key in list(self._entries):
            self.drop(key)

    def drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.bytes -= entry.size
        self._bytes_of[entry.tenant] -= entry.size
        del self._of[entry.tenant][key]
        if not self._of[entry.tenant]:
            del self._of[entry.tenant], self._bytes_of[entry.tenant]
