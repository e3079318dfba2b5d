"""pg-boss, worked in batches."""

from bench.peers.base import Peer

PEER = Peer(
    name="pg-boss",
    language="node",
    packages=("pg-boss@12.35.0",),
    server="postgres",
    program="pg_boss.mjs",
    modes=(
        "one",
        "twenty",
        "bulk",
    ),
    tasks=100_000,
    workers=1,
    tuning=(
        "Bulk: insert(), 1,000 at a time on three connections. work() with batchSize 1,000, localConcurrency "
        "2, burstWhenBatchFull, the least polling interval it takes (0.5 s), and its LISTEN/NOTIFY wake-ups "
        "on."
    ),
)
