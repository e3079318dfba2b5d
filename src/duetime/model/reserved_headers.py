"""The request headers that duetime sets itself: a target cannot have them.

They frame the message, belong to one connection, or are trusted only because duetime sets them.
"""

RESERVED_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
RESERVED_PREFIXES = ("webhook-", "duetime-")


def is_reserved(name: str) -> bool:
    lowered = name.lower()
    return lowered in RESERVED_HEADERS or lowered.startswith(RESERVED_PREFIXES)
