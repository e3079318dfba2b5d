"""BullMQ on a Redis that syncs its log before it answers: as durable as a commit in PostgreSQL."""

from dataclasses import replace

from bench.peers import bullmq

PEER = replace(
    bullmq.PEER,
    name="bullmq-synced",
    is_synced=True,
    tuning=(
        "As bullmq, but Redis with `appendfsync always`: it syncs its log before it answers, so a job that was "
        "acknowledged is on the disk, as a task of duetime is. Redis syncs once for all commands that it found waiting."
    ),
)
