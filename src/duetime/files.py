"""How many files this process may have open: every connection is one.

The soft limit is often 1,024 because old programs cannot handle more; the hard
limit is what the machine really allows.  Nothing here uses `select`, so a node
raises its soft limit, and the processes that it starts (node processes, the embedded
PostgreSQL) inherit that.  Workers do not raise it: handlers are other people's code.
"""

import resource

import structlog

log = structlog.get_logger()
#: No node needs more, and some systems call any number "unlimited".
MOST_FILES = 1_048_576
#: With less, a busy node runs out of connections.
SANE_FILES = 4_096
#: Listeners, logs, connections to other nodes, look-ups of names, temporary files.
_OTHERS = 64


def raise_limit() -> int:
    """Raise the soft limit as far as the hard limit allows, and return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            # Some systems allow less than they report.
            log.warning("the limit of open files cannot be raised", limit=soft, wanted=wanted, error=str(error))
    if soft != resource.RLIM_INFINITY and soft < SANE_FILES:
        log.warning("few files can be open at once: raise the hard limit (ulimit -Hn)", limit=soft, sane=SANE_FILES)
    return read_limit()


def read_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def room_for_connections(limit: int, *, database: int, calls: int) -> int:
    """How many client connections fit beside those to the database and to HTTP targets.

    Each call may have one connection under way and one kept for the next call.  At least a quarter is
    left for clients: a call that finds no file fails and is repeated, a client is refused.
    """
    return max(limit - _OTHERS - database - 2 * calls, limit // 4, 1)
