"""graphile-worker with a larger local queue than its documentation shows: the best setting for a no-op."""

from bench.peers.base import Peer

PEER = Peer(
    name="graphile-worker-wide",
    language="node",
    packages=("graphile-worker@0.18.0", "node@24.21.0"),
    server="postgres",
    program="graphile_worker.mjs",
    modes=("bulk",),
    tasks=100_000,
    workers=2,
    tuning=(
        "As graphile-worker, but with a localQueue of 2,000, the best for a no-op here; "
        "its documentation has no such size. completeJobBatchDelay and failJobBatchDelay 0, prepared "
        "statements, a pool of 10 connections, "
        "pollInterval 20 ms (default 2 s) for tasks due later. Two workers (one: 0.6 of the drain). Bulk: its SQL "
        "function add_jobs, 2,000 a call on two connections, about twice the speed of its Node twin addJobs, which "
        "returns every row."
    ),
    environment={"LOCAL_QUEUE_SIZE": "2000"},
)
