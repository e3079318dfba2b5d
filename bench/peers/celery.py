"""Celery on Redis, without results."""

from bench.peers.base import Peer

PEER = Peer(
    name="celery",
    language="python",
    packages=(
        "celery==5.7.0",
        "packaging==26.3",
        "redis==8.1.0",
        "hiredis==3.5.0",
    ),
    server="redis",
    program="celery.py",
    modes=("one",),
    tasks=6_000,
    workers=2,
    tuning=(
        "Redis transport with hiredis, results ignored, prefetch multiplier 128 (its documentation: many "
        "short tasks), no gossip, mingle or heartbeat; the solo pool in each of two processes. Of tasks with a time "
        "its loop starts ten, and then waits for a second or for whatever else wakes it, which with this pool is "
        "little: that is its figure for 2,000 at once. Other pools were not tried."
    ),
)
