"""dramatiq under the benchmark: the Redis broker, a plain actor, worker threads."""

import os
import signal
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from .common import Tally, make_payload, pace_each, run, say_ready, send_each

THREADS = 8
TIMEOUT = 1000

broker = RedisBroker(url=os.environ["BENCH_REDIS"])
dramatiq.set_broker(broker)
tally: Tally


@dramatiq.actor(actor_name="benchmark")
def handle(payload: dict[str, object]) -> None:
    tally.note(payload)


def setup() -> None:
    redis.Redis.from_url(os.environ["BENCH_REDIS"]).flushdb()


def submit(mode: str, count: int) -> float:
    broker.client.ping()
    return send_each(range(count), lambda _: handle.send(make_payload()))


def lag(rate: float, seconds: float) -> int:
    broker.client.ping()
    return pace_each(rate, seconds, lambda at: handle.send(make_payload(at)))


def burst(count: int, at: float) -> float:
    broker.client.ping()

    def send(_: int) -> None:
        handle.send_with_options(args=(make_payload(at),), delay=max(0, round(1000 * (at - time.time()))))

    return send_each(range(count), send)


def work(file: str) -> None:
    global tally
    tally = Tally(file)
    tally.start()
    # Signals are blocked before the threads start, so that only this thread receives them.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    worker = dramatiq.Worker(broker, worker_threads=THREADS, worker_timeout=TIMEOUT)
    worker.start()
    say_ready()
    signal.sigwait(ends)
    worker.stop(timeout=5_000)
    tally.write()


if __name__ == "__main__":
    run(setup=setup, submit=submit, lag=lag, burst=burst, work=work)
