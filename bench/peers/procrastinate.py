"""procrastinate, with jobs deferred in batches."""

from bench.peers.base import Peer

PEER = Peer(
    name="procrastinate",
    language="python",
    packages=(
        "procrastinate==3.10.0",
        "psycopg[binary]==3.3.8",
        "psycopg-pool==3.3.3",
        "uvloop==0.23.0",
    ),
    server="postgres",
    program="procrastinate.py",
    modes=(
        "one",
        "twenty",
        "bulk",
    ),
    tasks=5_000,
    workers=2,
    tuning=(
        "psycopg 3 with a pool in autocommit; batch_defer of 500 on three connections; concurrency 10; "
        "polling every 0.1 s for tasks of the future (5 s by default); ANALYZE after a bulk, which autovacuum "
        "would do within a minute."
    ),
)
