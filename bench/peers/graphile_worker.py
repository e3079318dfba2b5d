"""graphile-worker, as its performance page sets it up."""

from bench.peers.base import Peer

PEER = Peer(
    name="graphile-worker",
    language="node",
    packages=("graphile-worker@0.18.0",),
    server="postgres",
    program="graphile_worker.mjs",
    modes=(
        "one",
        "twenty",
        "bulk",
    ),
    tasks=100_000,
    workers=2,
    tuning=(
        "Prepared statements, 24 concurrent jobs, localQueue of 500, completeJobBatchDelay and "
        "failJobBatchDelay 0, as on its performance page; 10 connections a process; pollInterval 100 ms for "
        "tasks of the future (2 s by default). Bulk: the SQL function add_jobs, 1,000 at a time on three "
        "connections."
    ),
)
