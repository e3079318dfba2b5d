"""dramatiq on Redis."""

from bench.peers.base import Peer

PEER = Peer(
    name="dramatiq",
    language="python",
    packages=(
        "dramatiq==2.2.1",
        "redis==8.1.0",
        "hiredis==3.5.0",
    ),
    server="redis",
    program="dramatiq.py",
    modes=("one",),
    tasks=20_000,
    workers=2,
    tuning=("Redis broker with hiredis; 8 threads in each of two processes, its default number."),
)
