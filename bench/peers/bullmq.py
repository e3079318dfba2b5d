"""BullMQ on Redis."""

from bench.peers.base import Peer

PEER = Peer(
    name="bullmq",
    language="node",
    packages=(
        "bullmq@6.7.0",
        "ioredis@6.0.0",
    ),
    server="redis",
    program="bullmq.mjs",
    modes=(
        "one",
        "twenty",
        "bulk",
    ),
    tasks=40_000,
    workers=1,
    tuning=(
        "addBulk, 500 at a time on three connections; one worker process with concurrency 100 (two were "
        "slower here); finished jobs kept, as by default."
    ),
)
