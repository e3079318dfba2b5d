"""graphile-worker with a far larger local queue than it documents: the best we found for a no-op."""

from bench.peers.base import Peer

PEER = Peer(
    name="graphile-worker-wide",
    language="node",
    packages=("graphile-worker@0.18.0",),
    server="postgres",
    program="graphile_worker.mjs",
    modes=("bulk",),
    tasks=100_000,
    workers=2,
    tuning=(
        "Prepared statements, 24 concurrent jobs, localQueue of 4,000, completeJobBatchDelay and "
        "failJobBatchDelay 0; 10 connections a process; pollInterval 100 ms for tasks of the future (2 s by "
        "default). Bulk: the SQL function add_jobs, 1,000 at a time on three connections. Its documentation "
        "names no such size; it was the best of 500 to 4,000 here, and locks that many jobs in each process."
    ),
    environment={"LOCAL_QUEUE_SIZE": "4000"},
)
