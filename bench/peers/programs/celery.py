"""celery under the benchmark: the Redis transport, no results, a worker that runs tasks in its own process."""

import os
from datetime import UTC, datetime

import redis
from celery import Celery
from celery.signals import worker_process_init, worker_ready

from .common import Tally, make_payload, pace_each, run, say_ready, send_each

app = Celery("benchmark", broker=os.environ["BENCH_REDIS"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    worker_redirect_stdouts=False,
)
#: Set in the process that runs the tasks, once it works.
tallies: list[Tally] = []


@app.task(name="benchmark")
def handle(payload: dict[str, object]) -> None:
    tallies[0].note(payload)


def setup() -> None:
    redis.Redis.from_url(os.environ["BENCH_REDIS"]).flushdb()


def submit(mode: str, count: int) -> float:
    with app.producer_pool.acquire(block=True) as producer:
        producer.connection.ensure_connection(timeout=10)
        return send_each(range(count), lambda _: handle.apply_async((make_payload(),), producer=producer))


def lag(rate: float, seconds: float) -> int:
    with app.producer_pool.acquire(block=True) as producer:
        producer.connection.ensure_connection(timeout=10)
        return pace_each(rate, seconds, lambda at: handle.apply_async((make_payload(at),), producer=producer))


def burst(count: int, at: float) -> float:
    due = datetime.fromtimestamp(at, UTC)
    with app.producer_pool.acquire(block=True) as producer:
        producer.connection.ensure_connection(timeout=10)
        return send_each(range(count), lambda _: handle.apply_async((make_payload(at),), eta=due, producer=producer))


def work(file: str) -> None:
    def count(**_: object) -> None:
        tallies.append(Tally(file))
        tallies[0].start()

    worker_process_init.connect(count, weak=False)
    worker_ready.connect(lambda **_: say_ready(), weak=False)
    options = ["--pool", "solo", "--concurrency", "1"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
    app.worker_main(["--quiet", "worker", "--hostname", f"worker-{os.getpid()}@%h", *options, *quiet])


if __name__ == "__main__":
    run(setup=setup, submit=submit, lag=lag, burst=burst, work=work)
