"""Breakers that are forced open or closed by hand: stored, so that every node obeys, now and after a restart."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Literal

import msgspec

from duetime.admin.changes import Change, read_changes
from duetime.admin.tenant_breakers import begin_slowly, close_tenant
from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import InvalidInput
from duetime.model.breaker_status import TENANT_HOST, Forced
from duetime.signals import AwaitedSignal

MAX_FORCED_PER_TENANT = 1_000
MAX_NOTE_CHARACTERS = 500

_SQL = load(__package__, "breakers.sql")


class ForcedBreaker(msgspec.Struct, frozen=True):
    host: str
    forced: Forced
    note: str
    updated_at: datetime


class ForcedBreakers:
    def __init__(
        self,
        database: Database,
        obey: Callable[[Mapping[tuple[int, str], Forced]], None],
        reread: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`obey` is called with all forced breakers whenever they are read; `reread` reads what else counts as a
        change of breakers.
        """
        self._database = database
        self._obey = obey
        self._reread = reread
        #: Something was changed on this node: the nodes that share the shards should look now.
        self.changed_here = AwaitedSignal[[]]()
        self._forced: dict[tuple[int, str], Forced] = {}
        self._seen: Change | None = None
        # Of two concurrent reads, the one with the older rows must not write last.
        self._reading = asyncio.Lock()

    async def refresh(self, change: Change | None = None) -> None:
        """Read what has changed; `change` is the latest change, if it was read already."""
        async with self._reading:
            if change is None:
                change = (await read_changes(self._database))["breakers"]
            if change != self._seen:
                if self._seen is not None and change.follows(self._seen):
                    rows = await self._database.run(_SQL["read_changed"], seen=self._seen.number)
                    changed = {each["tenant"] for each in rows}
                    forced = {place: state for place, state in self._forced.items() if place[0] not in changed}
                else:
                    rows = await self._database.run(_SQL["read_all"])
                    forced = {}
                forced |= {(each["tenant"], each["host"]): each["forced"] for each in rows if each["host"] is not None}
                self._forced = forced
                if self._reread is not None:
                    await self._reread()
                self._seen = change
            self._obey(self._forced)

    async def put(
        self, tenant: int, host: str, state: Literal["open", "closed", "auto"], note: str, *, by: int | None = None
    ) -> None:
        """Force a breaker, or let it decide by itself again; nodes that can be reached obey at once."""
        if host == TENANT_HOST and state == "auto":
            held = (await self.of_tenant(tenant)).get(host)
            if held is not None and held.forced == "open":
                # Before the change: a host that is let go must not start everything at once.
                await begin_slowly(self._database, tenant)
        if state == "auto":
            await run_once(self._database, _SQL["set_free"], tenant=tenant, host=host, note=note, by=by)
        else:
            [row] = await self._database.run(_SQL["count_of_tenant"], tenant=tenant, host=host)
            if row["breakers"] >= MAX_FORCED_PER_TENANT:
                raise InvalidInput.at("host", f"a tenant has at most {MAX_FORCED_PER_TENANT} forced breakers")
            await run_once(self._database, _SQL["force"], tenant=tenant, host=host, forced=state, note=note, by=by)
        if host == TENANT_HOST and state == "closed":
            await close_tenant(self._database, tenant)
        await self.changed()

    async def changed(self) -> None:
        """Obey here, and tell all nodes that can be reached to look."""
        await self.refresh()
        await self.changed_here()

    async def of_tenant(self, tenant: int) -> dict[str, ForcedBreaker]:
        rows = await self._database.run(_SQL["read_of_tenant"], tenant=tenant)
        return {row["host"]: ForcedBreaker(row["host"], row["forced"], row["note"], row["updated_at"]) for row in rows}
