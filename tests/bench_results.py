"""Results as a whole run leaves them, with figures that a test can know by heart."""

from bench.results import Machine, Measurement, PeerFacts, Results, Run

#: submit one, twenty, bulk, drain, sustained; lag p50, p99; burst last.  0: the peer has no such API.
FIGURES: dict[str, tuple[float, ...]] = {
    "duetime": (980, 3_100, 44_100, 27_900, 18_400, 2.6, 9.1, 150),
    "graphile-worker": (634, 938, 31_751, 29_244, 15_697, 4.2, 14, 186),
    "pg-boss": (741, 1_092, 24_524, 19_363, 11_858, 223, 478, 292),
    "pgqueuer": (941, 1_236, 26_601, 13_496, 9_096, 6.0, 22, 306),
    "procrastinate": (512, 805, 5_999, 533, 416, 6.5, 17, 5_010),
    "bullmq": (2_585, 5_332, 12_740, 7_377, 5_464, 2.1, 5.9, 433),
    "bullmq-synced": (1_101, 2_702, 9_940, 5_377, 3_464, 3.1, 8.9, 533),
    "dramatiq": (2_301, 0, 0, 4_857, 2_353, 16, 74, 1_794),
    "taskiq": (1_695, 2_694, 0, 2_480, 1_570, 1.7, 5.6, 2_791),
    "celery": (1_032, 0, 0, 612, 518, 4.8, 14, 1_884),
}
REDIS = ("bullmq", "bullmq-synced", "dramatiq", "taskiq", "celery")


def make_results(*measurements: Measurement, errors: dict[str, str] | None = None, is_quick: bool = False) -> Results:
    """Results of these measurements; `errors`: peers that could not be installed, and why."""
    peers = [
        PeerFacts(
            name,
            "redis" if name in REDIS else "postgres",
            [] if name == "duetime" else [f"{name}==1.2.3"],
            2,
            "Its documentation says so.",
            (errors or {}).get(name, ""),
        )
        for name in FIGURES
    ]
    return Results(
        began_at="2026-01-02T03:04:05Z",
        ended_at="2026-01-02T05:06:07Z",
        arguments=[],
        is_quick=is_quick,
        machine=Machine(2, "A processor", 24.6, "6.1.0", "Debian GNU/Linux 12"),
        versions={"PostgreSQL": "18.1", "Redis": "7.0.15"},
        commit="0123456789abcdef0123456789abcdef01234567",
        is_dirty=False,
        peers=peers,
        measurements=list(measurements),
    )


def measured(
    scenario: str,
    peer: str,
    variant: str = "",
    *,
    rows: list[dict[str, float | str]] | None = None,
    cpu: dict[str, float] | None = None,
    spread: float = 0.0,
    **figures: float,
) -> Measurement:
    """Three runs around the figures given."""
    runs = [
        Run({name: value * factor for name, value in figures.items()}, cpu or {}, rows or [])
        for factor in (1 - spread, 1.0, 1 + spread)
    ]
    return Measurement.of(scenario, peer, variant, runs)


def measure_peers() -> list[Measurement]:
    """What is measured of every peer."""
    found = []
    for peer, (one, twenty, bulk, drain, sustained, p50, p99, last) in FIGURES.items():
        cpu = {"producer": 12.0, "workers": 30.0, "server": 45.0} | ({"node": 24.0} if peer == "duetime" else {})
        for variant, rate in (("one", one), ("twenty", twenty), ("bulk", bulk)):
            if rate:
                found.append(
                    measured("submit", peer, variant, rate=rate, spread=0.08, cpu={"producer": 20.0, "server": 9.0})
                )
        found.append(measured("drain", peer, rate=drain, spread=0.05, cpu={"workers": 30.0, "server": 40.0}))
        found.append(measured("sustained", peer, rate=sustained, spread=0.1, cpu=cpu))
        found.append(measured("lag", peer, p50_ms=p50, p99_ms=p99, max_ms=p99 * 2))
        found.append(measured("burst", peer, early=0, last_ms=last, p50_ms=last / 2))
    found.append(measured("submit", "duetime", "one wrk", rate=1_420, spread=0.02, cpu={"wrk": 4.0, "node": 90.0}))
    found.append(measured("submit", "duetime", "twenty wrk", rate=5_900, spread=0.02, cpu={"wrk": 4.0, "node": 80.0}))
    found.append(measured("sustained", "duetime", "no keys", rate=19_000, cpu={"producer": 11.0, "node": 20.0}))
    return found


def measure_alone() -> list[Measurement]:
    """What is measured of duetime alone."""
    kept = {}
    for name, empty in (
        ("sustained", 18_000.0),
        ("drain", 27_000.0),
        ("p50_ms", 2.6),
        ("p99_ms", 9.0),
        ("burst_last_ms", 150.0),
    ):
        kept |= {f"{name}_empty": empty, f"{name}_waiting": empty * 0.97, f"{name}_percent": 97.0}
    memory = {"memory_empty_mb": 49.0, "memory_filled_mb": 72.0, "memory_waiting_mb": 52.0}
    soak: list[dict[str, float | str]] = [
        {
            "minute": minute,
            "memory_mb": 60 + minute / 5,
            "tasks": 648_000,
            "p50_ms": 4.0 + minute % 3,
            "p99_ms": 21.0 + 7 * (minute % 4),
            "max_ms": 90.0,
        }
        for minute in range(1, 16)
    ]
    snapshot: list[dict[str, float | str]] = [
        {"minute": minute, "rate": 18_000.0 - 300 * minute, "claimed": 1_000_000, "entries_per_task": 1.0 + minute / 10}
        for minute in range(1, 11)
    ]
    load: list[dict[str, float | str]] = [
        {
            "load_percent": load,
            "rate": 180.0 * load,
            "producer": 11.0,
            "workers": 30.0,
            "node": 24.0 + 200 / load,
            "server": 50.0,
        }
        for load in (1, 10, 50, 100)
    ]
    moves: list[dict[str, float | str]] = [{"move": "bulk", "rate": 112_000, "client": 3.0, "server": 7.0}]
    limits = {"one": 1_443.0, "bulk": 112_000.0, "drain": 97_000.0, "sustained": 50_000.0}
    return [
        measured("limit", "duetime", "minimal", rows=moves, **limits),
        measured("limit", "duetime", "statements", rows=moves, **{name: rate * 0.7 for name, rate in limits.items()}),
        measured("limit", "duetime", "lifecycle", rows=moves, **{name: rate * 0.6 for name, rate in limits.items()}),
        measured("waiting", "duetime", "tomorrow", tasks=1e7, **kept, **memory),
        measured("waiting", "duetime", "today", tasks=1e7, **kept, **memory),
        measured(
            "snapshot",
            "duetime",
            rows=snapshot,
            rate_before=18_000,
            rate_last=15_000,
            last_percent=83.3,
            most_entries_per_task=2.0,
            errors=0,
        ),
        measured(
            "soak",
            "duetime",
            rows=soak,
            sustained_rate=18_000,
            rate=10_800,
            worst_p99_ms=42.0,
            within_5s_percent=100.0,
            early=0,
            memory_first_mb=60.0,
            memory_last_mb=63.0,
            errors=0,
        ),
        measured(
            "targets",
            "duetime",
            rate=4_600,
            settled_rate=4_400,
            failed=0,
            aiohttp_rate=6_000,
            aiohttp_us=120.0,
            cpu={"node": 190.0, "nginx": 12.0},
        ),
        measured(
            "load",
            "duetime",
            rows=load,
            rate=18_000,
            idle_percent=0.8,
            idle_polled_percent=1.0,
            memory_mb=49.0,
            memory_after_mb=60.0,
        ),
    ]
