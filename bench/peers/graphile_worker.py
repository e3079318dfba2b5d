"""graphile-worker, as its performance page sets it up."""

from bench.peers.base import Peer

PEER = Peer(
    name="graphile-worker",
    language="node",
    packages=("graphile-worker@0.18.0", "node@24.21.0"),
    server="postgres",
    program="graphile_worker.mjs",
    modes=("one", "twenty", "bulk"),
    tasks=100_000,
    workers=2,
    tuning=(
        "As on its performance page: concurrentJobs 24, localQueue of 500, "
        "completeJobBatchDelay and failJobBatchDelay 0, prepared statements, a pool of 10 connections, "
        "pollInterval 20 ms (default 2 s) for tasks due later. Two workers (one: 0.6 of the drain). Bulk: its SQL "
        "function add_jobs, 2,000 a call on two connections, about twice the speed of its Node twin addJobs, which "
        "returns every row."
    ),
)
