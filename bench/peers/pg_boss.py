"""pg-boss: Node and PostgreSQL, finished jobs kept for a week by default."""

from bench.peers.base import Peer

PEER = Peer(
    name="pg-boss",
    language="node",
    packages=("pg-boss@12.35.0", "node@24.21.0"),
    server="postgres",
    program="pg_boss.mjs",
    modes=("one", "twenty", "bulk"),
    tasks=100_000,
    workers=1,
    tuning=(
        "work() with batchSize 2,000, localConcurrency 4 and burstWhenBatchFull (fetch again at once while batches "
        "come back full). useListenNotify and the queue's notify, so that workers are woken and need not poll; "
        "pollingIntervalSeconds and notifyPollingIntervalSeconds 0.5, the least it takes, for tasks due later. "
        "Pool of 9 connections and the listener's. One worker process (two with as many fetchers: 0.75 of the drain). "
        "Bulk: insert(), 1,000 a call on three connections. Producers with supervise, schedule and migrate off. "
        "A partition of its own for the queue changed nothing and is off, as by default."
    ),
)
