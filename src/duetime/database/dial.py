"""One connection to PostgreSQL for a command, or one sentence that says why there is none."""

import asyncpg

from duetime.database.driver import DroppedConnection
from duetime.errors import UsageError
from duetime.passwords import hide_passwords

#: For an address that it cannot read, asyncpg's message may quote a part of the password.
_NO_ADDRESS = (
    "its address cannot be read; it is like postgresql://user:password@host:5432/database, with the special characters "
    "of the password in percent form (%2F for /, %40 for @)"
)


async def dial(url: str, *, command_timeout: float) -> asyncpg.Connection:
    """Open a connection. Raise a UsageError without any password in it."""
    try:
        return await asyncpg.connect(
            url, timeout=10.0, command_timeout=command_timeout, connection_class=DroppedConnection
        )
    except ValueError as error:
        raise UsageError(f"the database does not answer: {_NO_ADDRESS}") from error
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = hide_passwords(str(error)) or type(error).__name__
        raise UsageError(f"the database does not answer: {why}") from error
