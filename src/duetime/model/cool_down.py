"""How long an open breaker waits before its probes: longer with every opening, until it is forgiven; no I/O."""

import random

from duetime.model.breaker_config import BreakerConfig


class CoolDown:
    __slots__ = ("_chance", "_config", "forgiven_ms", "openings")

    def __init__(self, config: BreakerConfig, now_ms: int, chance: random.Random) -> None:
        self._config = config
        self._chance = chance
        #: Counted since the openings were last forgiven.
        self.openings = 0
        #: A breaker that stays closed until then begins anew.
        self.forgiven_ms = now_ms

    def forgive_if_due(self, now_ms: int) -> None:
        if now_ms >= self.forgiven_ms:
            self.openings = 0

    def is_remembered(self, now_ms: int) -> bool:
        """Whether the next opening would last longer than the first of a new breaker."""
        return self.openings > 0 and now_ms < self.forgiven_ms

    def next_ms(self) -> int:
        """Note one more opening. Return how long it lasts."""
        config = self._config
        cool_down = min(config.first_cool_down_ms * 2 ** min(self.openings, 20), config.max_cool_down_ms)
        spread = 1.0 + config.jitter * (2.0 * self._chance.random() - 1.0)
        self.openings += 1
        return max(1, int(cool_down * spread))

    def closed(self, now_ms: int) -> None:
        self.forgiven_ms = now_ms + self._config.forgive_ms
