"""The secrets that sign the calls to a tenant's HTTP targets.

A tenant has one, and for a while after a rotation the one before it as well, so
that its receivers can change over; never more than two.  Each node keeps what
it has read until it hears of a rotation.
"""

import base64
import secrets
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from duetime.admin.tenants import SECRET_BYTES
from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import NotFound

_PREFIX = "whsec_"

_SQL = load(__package__, "signing.sql")


class Signing(NamedTuple):
    """What a tenant's calls are signed with now."""

    secret: bytes
    #: The one before, if it signs as well, and until when.
    former: bytes | None = None
    former_until: datetime | None = None
    #: How often it was rotated.
    version: int = 0

    def former_at(self, now: datetime) -> bytes | None:
        return self.former if self.former_until is not None and now < self.former_until else None


class Rotated(NamedTuple):
    signing: Signing
    #: Until when the former secret signed, if there was one.
    dropped_until: datetime | None


def show_secret(secret: bytes) -> str:
    """The secret as every Standard Webhooks library takes it."""
    return _PREFIX + base64.b64encode(secret).decode()


async def read_signing(database: Database, tenant: int) -> Signing:
    rows = await database.run(_SQL["read"], tenant=tenant)
    if not rows:
        raise NotFound("there is no such tenant")
    [row] = rows
    return Signing(row["signing_secret"], row["former_secret"], row["former_until"], row["signing_version"])


async def rotate_signing(
    database: Database, tenant: int, overlap_seconds: float, *, request: uuid.UUID | None = None, by: int | None = None
) -> Rotated:
    """Make a new secret. A request that was done before changes nothing and gets the current secret."""
    rows = await run_once(
        database,
        _SQL["rotate"],
        tenant=tenant,
        secret=secrets.token_bytes(SECRET_BYTES),
        seconds=overlap_seconds,
        request=request,
        key=by,
    )
    return Rotated(await read_signing(database, tenant), rows[0]["dropped_until"] if rows else None)


class SigningSecrets:
    """The secrets of tenants, each read once and again after a rotation."""

    def __init__(self, database: Database, versions: Callable[[], Mapping[int, int]]) -> None:
        self._database = database
        #: How often each tenant's secret was rotated, as far as the node knows; tenants that are missing: never.
        self._versions = versions
        self._known: dict[int, Signing] = {}

    async def of(self, tenant: int) -> Signing:
        known = self._known.get(tenant)
        if known is None or known.version < self._versions().get(tenant, 0):
            known = self._known[tenant] = await read_signing(self._database, tenant)
        return known
