"""taskiq on Redis streams."""

from bench.peers.base import Peer

PEER = Peer(
    name="taskiq",
    language="python",
    packages=(
        "taskiq==0.13.0",
        "taskiq-redis==1.2.4",
        "orjson==3.13.0",
        "redis==8.1.0",
        "hiredis==3.5.0",
        "uvloop==0.23.0",
    ),
    server="redis",
    program="taskiq.py",
    modes=(
        "one",
        "twenty",
    ),
    tasks=20_000,
    workers=2,
    tuning=(
        "Redis streams, orjson, 100 messages a read, 100 tasks at once, parameters not validated; its "
        "scheduler with a list source, looked at every second, for tasks of the future."
    ),
)
