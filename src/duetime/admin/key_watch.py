"""Watch the keys of callers that wait: they are told as soon as their key has ended or its rights have changed.

A long call is authorised when it begins.  Without this, a key that is revoked
during its call would still get what the call waited for.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from duetime.admin.keys import Caller

#: Called with the caller as it is now; None: the key is not valid any more.
Told = Callable[[Caller | None], object]


class KeyWatch:
    """Waiting callers, by the hash of their key."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, dict[object, tuple[Caller, Told]]] = {}

    def hashes(self) -> list[bytes]:
        """The keys that must be looked up again although no request uses them."""
        return list(self._waiting)

    @contextmanager
    def watch(self, caller: Caller, told: Told) -> Iterator[None]:
        place = object()
        self._waiting.setdefault(caller.hash, {})[place] = (caller, told)
        try:
            yield
        finally:
            of_key = self._waiting[caller.hash]
            del of_key[place]
            if not of_key:
                del self._waiting[caller.hash]

    def ended(self, hashed: bytes) -> None:
        """The key was revoked or has expired."""
        for _, told in list(self._waiting.get(hashed, {}).values()):
            told(None)

    def compare(self, looked_up: list[bytes], found: Mapping[bytes, Caller]) -> None:
        """Tell the callers whose key was not found, or has changed."""
        for hashed in looked_up:
            now = found.get(hashed)
            if now is None:
                self.ended(hashed)
                continue
            for before, told in list(self._waiting.get(hashed, {}).values()):
                # The caller with an admin key acts for the tenant that it named.
                same = msgspec.structs.replace(now, tenant=before.tenant, tenant_name=before.tenant_name)
                if same != before:
                    told(same)
