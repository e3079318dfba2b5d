"""BullMQ: Node and Redis, finished jobs kept by default."""

from bench.peers.base import Peer

PEER = Peer(
    name="bullmq",
    language="node",
    packages=("bullmq@6.7.0", "ioredis@6.0.0", "node@24.21.0"),
    server="redis",
    program="bullmq.mjs",
    modes=("one", "twenty", "bulk"),
    tasks=30_000,
    workers=1,
    tuning=(
        "Worker with concurrency 100 (its documentation: 100 to 300 is standard; 50 and 300 gave the same), one "
        "process, since Redis needs the other core (two: 0.6 of the drain). Bulk: addBulk, 500 a call on three "
        "connections. ioredis, its default client. removeOnComplete as by default (jobs stay): 0 and 1,000 changed "
        "nothing. Redis with AOF, once a second, as its guide to production recommends."
    ),
)
