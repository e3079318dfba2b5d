"""When a failed attempt is tried again: with the names and the meaning of Cloud Tasks, plus jitter.

The wait doubles `max_doublings` times from `min_backoff`, then grows by the
last step, and never passes `max_backoff`: 10 s, 300 s, 3 doublings give
10, 20, 40, 80, 160, 240, 300, 300 …  A task is given up when its attempts are
used up, or when `max_retry_duration` has passed since its first attempt.  It is
given up as well when `max_crashes` of its attempts were lost with their holder:
those are counted separately, because such a task may be what kills its workers.
Attempts that were handed out and never begun do not count against the task: they
only make it wait, longer each time.

The default outlasts an outage of a working day: 20 attempts, with waits of 1,
2, 4 … 2,048 s and then seven waits of an hour, 8 h 8 min 15 s in all.
"""

import random

import msgspec

DEFAULT_MAX_ATTEMPTS = 20
#: The meaning of a stored policy without a number. It must not change: a task keeps the policy that was accepted with
#: it.
_UNSAID_MAX_ATTEMPTS = 5
DEFAULT_MAX_CRASHES = 3
#: How often a task that was handed out and never begun is handed out again at once; then it waits, longer each time.
FREE_RELEASES = 3
MOST_RELEASE_WAIT_SECONDS = 300.0
#: The count stops here: the column holds no more.
MOST_RELEASES = 30_000


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All durations in seconds."""

    max_attempts: int = _UNSAID_MAX_ATTEMPTS
    min_backoff: float = 1.0
    max_backoff: float = 3600.0
    max_doublings: int = 16
    max_retry_duration: float | None = None
    max_crashes: int = DEFAULT_MAX_CRASHES

    def backoff(self, failures: int) -> float:
        """Seconds to wait after this many failures (1 or more), before jitter."""
        doublings = min(failures - 1, self.max_doublings)
        # 2.0 ** 1024 overflows; no wait needs more than 60 doublings.
        wait = self.min_backoff * 2.0 ** min(doublings, 60)
        if failures - 1 > self.max_doublings:
            wait += (failures - 1 - self.max_doublings) * wait
        return min(wait, self.max_backoff)

    def wait(self, failures: int, chance: random.Random) -> float:
        """The backoff with up to 10 % more or less, so that failed tasks are not all tried again at the same moment."""
        return self.backoff(failures) * chance.uniform(0.9, 1.1)

    def waits_after(self, failures: int) -> float:
        """The sum of all waits that are still to come after this many failures, before jitter."""
        return sum(self.backoff(each) for each in range(failures + 1, self.max_attempts))


def wait_after_release(releases: int) -> float:
    """Seconds until a task that was never begun this many times is handed out again: 0, 0, 0, 1, 2, 4 … 300."""
    if releases <= FREE_RELEASES:
        return 0.0
    return min(2.0 ** min(releases - FREE_RELEASES - 1, 60), MOST_RELEASE_WAIT_SECONDS)


#: For a task that was submitted without a policy; such a task stores no policy.
DEFAULT_RETRY = RetryPolicy(max_attempts=DEFAULT_MAX_ATTEMPTS)
