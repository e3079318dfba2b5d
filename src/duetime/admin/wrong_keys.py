"""What wrong keys may cost: who sends them, how often the database is asked, what the log says.

A wrong key is remembered for a second, but an attacker sends a new one each
time, so each peer also has an allowance of look-ups that find nothing.  Beyond
it, unknown keys of that peer are refused without asking.  A key that was valid
here before is looked up in any case: one bad client behind a shared address
must not lock out the others.

A second, equal allowance is for answers: beyond it, each refusal of that peer
waits for a while, so that a client which asks without a pause does not take the
node's time from everybody else.  All of it is bounded by entries of fixed size.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from duetime import metrics
from duetime.clock import Monotonic
from duetime.errors import TooManyWrongKeys
from duetime.model.token_bucket import TokenBucket

log = structlog.get_logger()
#: How long a wrong key is remembered.
REMEMBER_SECONDS = 1.0
#: Each is a hash and a time.
REMEMBER_AT_MOST = 10_000
#: How many look-ups without a result, and refusals at once, a peer may have.
BURST = 100.0
PER_SECOND = 10.0
#: Concurrent look-ups may overdraw the allowance, at most by this, so that it recovers within seconds.
MOST_OVERDRAWN = 50.0
#: How long a refusal waits when the peer has had too many.
PENALTY_SECONDS = 1.0
#: The most peers that are remembered; those that failed last stay.
PEERS_AT_MOST = 10_000
#: The most keys that were valid here, which are never refused without a look-up.
VALID_AT_MOST = 20_000
REPORT_EVERY_SECONDS = 10.0
LINES_AT_MOST = 5
#: As long as the hint of a key in lists.
_HINT_LENGTH = 8


@dataclass(slots=True)
class _Peer:
    lookups: TokenBucket
    answers: TokenBucket
    #: Since the last report.
    count: int = 0
    throttled: int = 0
    hint: str = ""

    @classmethod
    def at(cls, now: float) -> "_Peer":
        lookups, answers = (TokenBucket(PER_SECOND, BURST, BURST, now * 1000) for _ in range(2))
        return cls(lookups, answers)

    def refill(self, now: float) -> None:
        self.lookups.fill(now * 1000)
        self.answers.fill(now * 1000)


class WrongKeys:
    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        #: When the database is to be asked again for each; the oldest first.
        self._wrong: OrderedDict[bytes, float] = OrderedDict()
        #: Peers; those that failed last are at the end.
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._valid: OrderedDict[bytes, None] = OrderedDict()
        #: Peers with something to report.
        self._unreported: dict[str, _Peer] = {}
        self._reported_at = float("-inf")

    def is_wrong(self, hashed: bytes) -> bool:
        """Whether it was looked up a moment ago and belongs to nobody."""
        until = self._wrong.get(hashed)
        return until is not None and until > self._monotonic()

    def was_valid(self, hashed: bytes) -> bool:
        return hashed in self._valid

    def note_valid(self, hashed: bytes) -> None:
        """The key is valid: from now on it is looked up whatever its peer has sent."""
        self._wrong.pop(hashed, None)
        self._valid[hashed] = None
        self._valid.move_to_end(hashed)
        if len(self._valid) > VALID_AT_MOST:
            self._valid.popitem(last=False)

    def note_wrong(self, hashed: bytes, asked_at: float) -> None:
        """The database did not know it at that time."""
        self._valid.pop(hashed, None)
        self._wrong[hashed] = asked_at + REMEMBER_SECONDS
        self._wrong.move_to_end(hashed)
        if len(self._wrong) > REMEMBER_AT_MOST:
            self._wrong.popitem(last=False)

    def check(self, peer: str, key: str) -> None:
        """Raise if an unknown key may not be looked up for this peer."""
        found = self._peers.get(peer)
        if found is None:
            return
        found.refill(self._monotonic())
        if not found.lookups.whole:
            metrics.WRONG_KEYS_THROTTLED.inc()
            self._count(peer, found, key)
            found.throttled += 1
            raise TooManyWrongKeys(found.lookups.seconds_until(1.0))

    def charge_lookup(self, peer: str, key: str) -> None:
        """Note that the peer sent a key that nobody has."""
        metrics.WRONG_KEYS_LOOKED_UP.inc()
        found = self._failing(peer)
        found.lookups.take(min(1.0, found.lookups.tokens + MOST_OVERDRAWN))
        self._count(peer, found, key)

    def charge(self, peer: str, key: str, *, is_readable: bool) -> None:
        """Note that the peer sent what needed no look-up: no possible key, or one that was just wrong."""
        (metrics.WRONG_KEYS_REMEMBERED if is_readable else metrics.WRONG_KEYS_UNREADABLE).inc()
        # What cannot be one of our keys may be a secret of somebody else: none of it is logged.
        self._count(peer, self._failing(peer), key if is_readable else "")

    def penalty_seconds(self, peer: str) -> float:
        """How long the answer to a wrong key is delayed. It takes one from the peer's allowance."""
        found = self._failing(peer)
        if found.answers.whole:
            found.answers.take(1.0)
            return 0.0
        return PENALTY_SECONDS

    def tidy(self) -> None:
        """Forget what is over, and log what came."""
        now = self._monotonic()
        while self._wrong and next(iter(self._wrong.values())) <= now:
            self._wrong.popitem(last=False)
        if self._unreported and now - self._reported_at >= REPORT_EVERY_SECONDS:
            self._reported_at = now
            self._report()

    def _report(self) -> None:
        worst = sorted(self._unreported.items(), key=lambda each: -each[1].count)
        for peer, found in worst[:LINES_AT_MOST]:
            others = max(0, len(worst) - LINES_AT_MOST)
            log.warning(
                "wrong API keys",
                peer=peer,
                count=found.count,
                throttled=found.throttled,
                begins=found.hint or None,
                other_peers=others,
            )
        for _, found in worst:
            found.count = found.throttled = 0
        self._unreported = {}

    def _failing(self, peer: str) -> _Peer:
        now = self._monotonic()
        found = self._peers.get(peer)
        if found is None:
            found = self._peers[peer] = _Peer.at(now)
            if len(self._peers) > PEERS_AT_MOST:
                gone, _ = self._peers.popitem(last=False)
                self._unreported.pop(gone, None)
        else:
            self._peers.move_to_end(peer)
            found.refill(now)
        return found

    def _count(self, peer: str, found: _Peer, key: str) -> None:
        found.count += 1
        found.hint = key[:_HINT_LENGTH] or found.hint
        self._unreported[peer] = found
