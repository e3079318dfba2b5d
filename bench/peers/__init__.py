"""The peers, by name, in the order in which tables show them."""

from importlib import import_module

from bench.peers.base import Peer

_MODULES = (
    "duetime",
    "graphile_worker",
    "graphile_worker_wide",
    "pg_boss",
    "pgqueuer",
    "procrastinate",
    "bullmq",
    "bullmq_synced",
    "dramatiq",
    "taskiq",
    "celery",
)


def _read() -> dict[str, Peer]:
    peers: list[Peer] = [import_module(f"bench.peers.{name}").PEER for name in _MODULES]
    return {peer.name: peer for peer in peers}


PEERS: dict[str, Peer] = _read()
