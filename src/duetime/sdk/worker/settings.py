"""The settings of a worker, checked once."""

from dataclasses import dataclass

from duetime.sdk.errors import ConfigurationError
from duetime.sdk.transport.route import Route


@dataclass(frozen=True)
class WorkerSettings:
    url: str
    key: str
    #: None: all queues of the tenant.
    queues: tuple[str, ...] | None
    tags: tuple[str, ...]
    #: How many async handlers run at a time.
    concurrency: int
    #: How many plain handlers run at a time.
    threads: int
    #: How many tasks wait in the worker in addition to those that run. None: as many as a tenth of a second needs.
    prefetch: int | None
    shutdown_timeout: float
    #: How long it may be silent before it counts as dead. None: the value of its queues or of the server.
    max_silence: float | None = None
    #: None: the environment decides.
    proxy: str | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.threads < 1:
            raise ConfigurationError("a worker needs concurrency and threads of 1 or more")
        if self.prefetch is not None and self.prefetch < 0:
            raise ConfigurationError("prefetch cannot be negative")
        if self.shutdown_timeout < 0:
            raise ConfigurationError("shutdown_timeout cannot be negative")
        if self.max_silence is not None and not 6 <= self.max_silence <= 600:
            raise ConfigurationError('max_silence is from "6s" to "10m"')
        if self.queues is not None and not self.queues:
            raise ConfigurationError("a worker needs a queue; queues=None takes from all of them")

    @property
    def route(self) -> Route:
        return Route.to(self.url, self.key, proxy=self.proxy)
