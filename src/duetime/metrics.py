"""The counters and gauges of this process, for Prometheus.

Each process has one registry.  Counters are raised once for each batch; gauges are set
by periodic checks, never while a task is handled.  Every line names the node, because
processes that share a port answer in turn.  A metric about a tenant has the label
`tenant`, and is only shown to readers that may know of the tenant.
"""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_REGISTRY = CollectorRegistry()
ProcessCollector(registry=_REGISTRY)

_tasks = Counter("duetime_tasks_submitted", "Tasks that were stored, by what made them.", ["by"], registry=_REGISTRY)
TASKS_OF_CALLS = _tasks.labels("call")
TASKS_OF_SCHEDULES = _tasks.labels("schedule")

FIRES_REFUSED = Counter(
    "duetime_fires_refused",
    "Times of schedules that were skipped because their tenant's quotas left no room for a task.",
    registry=_REGISTRY,
)

TURNS_REFUSED = Counter(
    "duetime_turns_refused",
    "Turns of schedules that the database refused, by the error's SQLSTATE; each is tried again.",
    ["sqlstate"],
    registry=_REGISTRY,
)

_claims = Counter(
    "duetime_attempts_claimed",
    "Attempts that holders got: claimed, or stored for one that waited (hand_over).",
    ["way"],
    registry=_REGISTRY,
)
CLAIMED = _claims.labels("claim")
HANDED_OVER = _claims.labels("hand_over")

_settled = Counter("duetime_attempts_settled", "Attempts that ended, by outcome.", ["outcome"], registry=_REGISTRY)

BACKGROUND_FAILURES = Counter(
    "duetime_background_failures",
    "Background work that died or failed; what goes on for ever is started again.",
    ["work"],
    registry=_REGISTRY,
)

_wrong_keys = Counter(
    "duetime_wrong_keys", "Requests with an API key that is nobody's, by what it cost.", ["way"], registry=_REGISTRY
)
WRONG_KEYS_UNREADABLE = _wrong_keys.labels("unreadable")
WRONG_KEYS_REMEMBERED = _wrong_keys.labels("remembered")
WRONG_KEYS_LOOKED_UP = _wrong_keys.labels("looked_up")
WRONG_KEYS_THROTTLED = _wrong_keys.labels("throttled")

KEYS_OUT_OF_PLACE = Counter(
    "duetime_keys_out_of_place",
    "Requests with an API key from an address that is not among its allowed_ips.",
    registry=_REGISTRY,
)

OLDEST_DUE = Gauge(
    "duetime_oldest_due_seconds",
    "How long the oldest task of a class has waited past its time.",
    ["priority"],
    registry=_REGISTRY,
)
PRIORITY_INVERSION = Gauge(
    "duetime_priority_inversion",
    "1 while a class waits more than 5 s longer than a lower one of the same queue.",
    registry=_REGISTRY,
)
LANES_WITHOUT_WORKER = Gauge(
    "duetime_lanes_without_worker", "Lanes with due tasks that nobody who is there can run.", registry=_REGISTRY
)
WAITING_WITHOUT_WORKER = Gauge(
    "duetime_waiting_without_worker",
    "Lanes of a tenant with due tasks that nobody who is there can run, by the tags they require.",
    ["tenant", "requires"],
    registry=_REGISTRY,
)
TASKS_WITHOUT_HANDLER = Gauge(
    "duetime_tasks_without_handler",
    "Due tasks of a tenant that wait because no worker that is there handles their type, by type.",
    ["tenant", "type"],
    registry=_REGISTRY,
)

WORKERS_UNHEARD = Gauge(
    "duetime_workers_unheard",
    "Seconds since a worker was given work without a beat of it being heard: it gets no more until one is.",
    ["tenant", "worker"],
    registry=_REGISTRY,
)

_TENANT_BREAKERS = Gauge(
    "duetime_tenant_breakers", "Tenants that are stopped (open) or resume (closing).", ["state"], registry=_REGISTRY
)
_TENANT_BREAKER = Gauge(
    "duetime_tenant_breaker",
    "1 for a tenant that is stopped (open) or resumes.",
    ["tenant", "state"],
    registry=_REGISTRY,
)
#: The most stopped tenants that are named.
_MAX_NAMED = 200


CONNECTIONS = Gauge("duetime_connections", "Connections of clients that are open.", registry=_REGISTRY)
_closed = Counter(
    "duetime_connections_closed",
    "Connections that were closed although the client did not ask for it, by reason.",
    ["reason"],
    registry=_REGISTRY,
)
CLOSED = {reason: _closed.labels(reason) for reason in ("evicted", "evicted_peer", "refused", "refused_peer", "unread")}
UNSENT_BYTES = Gauge(
    "duetime_unsent_bytes", "Bytes of answers of which clients have not taken all.", registry=_REGISTRY
)
ACCEPT_ERRORS = Counter(
    "duetime_accept_errors", "Connections that could not be accepted, mostly for want of files.", registry=_REGISTRY
)

_BLOCKED = "the event loop was blocked for more than 0.1 s, by what ran."
LOOP_BLOCKED = Counter("duetime_loop_blocked", f"Times that {_BLOCKED}", ["operation"], registry=_REGISTRY)
LOOP_BLOCKED_SECONDS = Counter(
    "duetime_loop_blocked_seconds", f"Seconds that {_BLOCKED}", ["operation"], registry=_REGISTRY
)
_STARVED = "the event loop could not run for more than 0.1 s, because the machine did not let the process."
LOOP_STARVED = Counter("duetime_loop_starved", f"Times that {_STARVED}", registry=_REGISTRY)
LOOP_STARVED_SECONDS = Counter("duetime_loop_starved_seconds", f"Seconds that {_STARVED}", registry=_REGISTRY)
LOOP_DELAY = Histogram(
    "duetime_loop_delay_seconds",
    "How late the event loop came to a timer that it sets twenty times a second.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
    registry=_REGISTRY,
)


def show_tenant_breakers(states: Mapping[str, str]) -> None:
    """Set the tenants that are stopped or resume, by name; all others are removed."""
    _TENANT_BREAKER.clear()
    for state in ("open", "closing"):
        names = sorted(name for name, each in states.items() if each == state)
        _TENANT_BREAKERS.labels(state).set(len(names))
        for name in names[:_MAX_NAMED]:
            _TENANT_BREAKER.labels(name, state).set(1)


def count_settled(outcomes: Mapping[str, int]) -> None:
    """Count a batch of attempts that ended in this way."""
    for outcome, attempts in outcomes.items():
        _settled.labels(outcome).inc(attempts)


def render(node: str, *, shows_tenants: bool) -> bytes:
    """All metrics in the text format."""
    return generate_latest(_View(node, shows_tenants))


class _View(Collector):
    """The metrics that this reader may see."""

    def __init__(self, node: str, shows_tenants: bool) -> None:
        self._node = node
        self._shows_tenants = shows_tenants

    def collect(self) -> Iterator[Metric]:
        for found in _REGISTRY.collect():
            shown = Metric(found.name, found.documentation, found.type)
            shown.samples = [
                sample._replace(labels={"node": self._node, **sample.labels})
                for sample in found.samples
                # The creation times of counters are of no use, and would double the lines.
                if not sample.name.endswith("_created") and (self._shows_tenants or "tenant" not in sample.labels)
            ]
            if shown.samples:
                yield shown
