"""One node's part of the budgets, with a clock of its own and a store that counts its questions."""

from collections.abc import Mapping

from structlog.testing import capture_logs

from duetime.budgets.allowance import Allowance
from duetime.budgets.contract import Want, first_tokens
from duetime.errors import Unavailable


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingStore:
    """A store by the test's clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls = 0
        self.granted = 0.0
        self.is_away = False
        self._kept: dict[str, tuple[float, float]] = {}

    async def take(self, wanted: Mapping[str, Want]) -> dict[str, float]:
        self.calls += 1
        if self.is_away:
            raise Unavailable("away")
        granted = {}
        for name, want in wanted.items():
            tokens, at = self._kept.get(name, (first_tokens(want.rate, want.burst), self.clock.now))
            tokens = min(want.burst, tokens + want.rate * (self.clock.now - at))
            granted[name] = float(min(int(tokens), want.tokens))
            self._kept[name] = (tokens - granted[name], self.clock.now)
            self.granted += granted[name]
        return granted

    async def close(self) -> None: ...


async def test_a_node_alone_is_exact_and_starts_with_a_seconds_worth() -> None:
    clock = Clock()
    allowance = Allowance(None, monotonic=clock)
    want = Want(10.0, 100.0, 1.0)

    started = sum(allowance.take_now("a", want) or 0 for _ in range(50))
    clock.now += 1000
    rested = sum(allowance.take_now("a", want) or 0 for _ in range(500))
    clock.now += 0.05
    half = allowance.take_now("a", want)
    wait = allowance.seconds_until("a", want)
    clock.now += wait

    assert (started, rested, half) == (10, 100, 0)
    assert 0.049 < wait < 0.051
    assert allowance.take_now("a", want) == 1
    await allowance.close()


async def test_a_batch_gets_what_is_there_or_all_or_nothing() -> None:
    clock = Clock()
    allowance = Allowance(None, monotonic=clock)

    assert allowance.take_now("a", Want(10.0, 10.0, 25.0), is_whole=True) == 0
    assert allowance.take_now("a", Want(10.0, 10.0, 25.0)) == 10
    assert allowance.take_now("a", Want(10.0, 10.0, 25.0)) == 0


async def test_steady_use_is_fetched_ahead_and_asks_a_few_times_a_second() -> None:
    clock = Clock()
    store = CountingStore(clock)
    allowance = Allowance(store, monotonic=clock)
    want = Want(1000.0, 1000.0, 1.0)

    granted = 0
    for _ in range(2000):
        clock.now += 0.005
        granted += await allowance.take("a", want)

    assert granted == 2000
    # 200 a second for ten seconds.
    assert store.calls <= 60
    await allowance.close()


async def test_nodes_together_keep_the_rate_within_a_second() -> None:
    clock = Clock()
    store = CountingStore(clock)
    nodes = [Allowance(store, monotonic=clock) for _ in range(3)]
    want = Want(100.0, 50.0, 1.0)

    granted = 0
    for step in range(3000):
        clock.now += 0.001
        granted += await nodes[step % 3].take("a", want)

    assert 0.8 * 300 <= granted <= 100.0 * (3 + 1) + 50
    assert granted <= store.granted
    for node in nodes:
        await node.close()


async def test_what_was_fetched_is_not_saved_up() -> None:
    clock = Clock()
    store = CountingStore(clock)
    allowance = Allowance(store, monotonic=clock)
    for _ in range(100):
        clock.now += 0.01
        await allowance.take("a", Want(100.0, 100.0, 1.0))
    calls = store.calls

    clock.now += 3600

    assert allowance.take_now("a", Want(100.0, 100.0, 1.0)) is None
    assert await allowance.take("a", Want(100.0, 100.0, 500.0)) == 100
    assert store.calls == calls + 1


async def test_an_empty_bucket_is_refused_without_asking_each_time() -> None:
    clock = Clock()
    store = CountingStore(clock)
    allowance = Allowance(store, monotonic=clock)
    want = Want(1.0, 1.0, 1.0)
    assert await allowance.take("a", want) == 1

    refused = [await allowance.take("a", want) for _ in range(1000)]
    calls = store.calls
    clock.now += 1.0

    assert (sum(refused), calls) == (0, 2)
    assert await allowance.take("a", want) == 1
    assert allowance.seconds_until("a", want) == 1.0


async def test_without_any_store_each_node_hands_out_the_rate_by_itself() -> None:
    clock = Clock()
    store = CountingStore(clock)
    store.is_away = True
    allowance = Allowance(store, monotonic=clock)
    want = Want(10.0, 100.0, 1.0)

    with capture_logs() as logs:
        granted = sum([await allowance.take("a", want) for _ in range(50)])

    assert granted == 10
    assert len(logs) == 1
