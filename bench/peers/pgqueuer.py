"""pgqueuer, with jobs enqueued and dequeued in batches."""

from bench.peers.base import Peer

PEER = Peer(
    name="pgqueuer",
    language="python",
    packages=(
        "pgqueuer==1.6.0",
        "asyncpg==0.32.0",
        "uvloop==0.23.0",
    ),
    server="postgres",
    program="pgqueuer.py",
    modes=(
        "one",
        "twenty",
        "bulk",
    ),
    tasks=60_000,
    workers=2,
    tuning=(
        "asyncpg and uvloop; enqueue with lists of 1,000 on two connections; its own optimize_autovacuum; a "
        "worker that dequeues 500 at a time; ANALYZE after a bulk, which autovacuum would do within a minute."
    ),
)
