"""duetime itself, measured as its users run it: a node, the HTTP API, the SDK."""

from bench.peers.base import Peer

PEER = Peer(
    name="duetime",
    language="duetime",
    packages=(),
    server="duetime",
    program="duetime.py",
    modes=("one", "twenty", "bulk"),
    tasks=100_000,
    workers=2,
    tuning=(
        "One node (`duetime up --database-url`) with its default settings. The SDK's AsyncClient: bulk is submit_many "
        "in batches of 1,000, six in flight. Two workers (Worker) with concurrency 1,000 and an async handler."
    ),
)
