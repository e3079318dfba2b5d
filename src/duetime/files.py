"""How many files this process may have open: every connection is one.

The soft limit is often 1,024 because old programs cannot bear more; the hard
limit is what the machine really allows.  Nothing here uses `select`, so a node
raises its own, and what it starts (node processes, the embedded PostgreSQL)
inherits that.  Workers do not: handlers are other people's code.
"""

import resource

import structlog

log = structlog.get_logger()
#: Nothing needs more, and some systems call any number "unlimited".
MOST_FILES = 1_048_576
#: With less, a busy node runs out of connections.
SANE_FILES = 4_096
#: Listeners, logs, lines to other nodes, look-ups of names, temporary files.
_OTHERS = 64


def raise_limit() -> int:
    """Raise the soft limit as far as the hard one goes; the limit that is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            # Some systems allow less than they say.
            log.warning("the limit of open files cannot be raised", limit=soft, wanted=wanted, error=str(error))
    if soft != resource.RLIM_INFINITY and soft < SANE_FILES:
        log.warning("few files can be open at once: raise the hard limit (ulimit -Hn)", limit=soft, sane=SANE_FILES)
    return read_limit()


def read_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def room_for_connections(limit: int, *, database: int, calls: int) -> int:
    """How many connections of clients fit beside those to the database and to HTTP targets.

    As many connections to targets are kept for the next call as calls are made.  At least a quarter is
    left for clients: calls that find no file fail and are repeated, clients are refused.
    """
    return max(limit - _OTHERS - database - 2 * calls, limit // 4, 1)
