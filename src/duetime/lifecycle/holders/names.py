"""The names of holders: which holder each stands for, and whose it is.

A name belongs to the key that first spoke under it, and to the keys that were
rotated from that one (its family), until its holder has ended.  So a key cannot
settle or give back what the worker of another key holds.  The owner is stored
with the holder: every node knows it, also after a restart.

What is known here may be older than the rows: nobody is refused before the
row was read again, and a holder that has ended has nothing that counts.
"""

from collections.abc import Collection
from typing import NamedTuple

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import WorkerNameTaken

SQL = load(__package__, "names.sql")


class _Known(NamedTuple):
    holder: int
    owner: int | None


class HolderNames:
    """`key` is the family of the key that calls; None: the node itself calls, and is not asked for a key."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[tuple[int, str], _Known] = {}

    async def register(self, tenant: int, name: str, key: int | None) -> int:
        """Return the id of the living holder of that name. Its first call makes it, and it then belongs to the key."""
        found = self._recall(tenant, name, key)
        if found is None:
            rows = await self._database.run(SQL["register"], tenant=tenant, name=name, key=key)
            if not rows:
                raise WorkerNameTaken(name)
            found = self._learn(tenant, name, rows[0]["id"], rows[0]["owner"])
        return found

    async def find(self, tenant: int, name: str, key: int | None) -> int | None:
        """Return the id of the living holder of that name, if it has ever called."""
        found = self._recall(tenant, name, key)
        if found is None:
            rows = await self._database.run(SQL["find"], tenant=tenant, name=name)
            if not rows:
                return None
            owner = rows[0]["owner"]
            if owner is None and key is not None:
                # It was stored before names had owners.
                return await self.register(tenant, name, key)
            if key is not None and owner != key:
                raise WorkerNameTaken(name)
            found = self._learn(tenant, name, rows[0]["id"], owner)
        return found

    def _recall(self, tenant: int, name: str, key: int | None) -> int | None:
        known = self._known.get((tenant, name))
        return known.holder if known is not None and (key is None or known.owner == key) else None

    def _learn(self, tenant: int, name: str, holder: int, owner: int | None) -> int:
        self._known[tenant, name] = _Known(holder, owner)
        return holder

    def holders(self) -> set[int]:
        """The holders that this node knows."""
        return {known.holder for known in self._known.values()}

    def forget(self, holders: Collection[int]) -> None:
        """Forget holders that have ended: the next call under one of their names makes a new holder."""
        self._known = {name: known for name, known in self._known.items() if known.holder not in holders}
