"""Holders that wait for work: each poll is answered once, with the tasks it got or with nothing.

A poll of a holder whose beats are not heard waits as well, but the core does not know of it (`hearing`).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from duetime.clock import Monotonic
from duetime.model.task import LeasedTask
from duetime.scheduler.core import Core
from duetime.scheduler.hearing import Hearing
from duetime.scheduler.plan import Ask

#: A worker that is fully occupied does not ask, but still counts as present for this long.
REMEMBER_ASKS_SECONDS = 90.0
#: How many ended holders are remembered: another node may forward a poll before it learns of the end.
_MOST_ENDED = 10_000


class Polls:
    def __init__(
        self,
        core: Core,
        on_ask: Callable[[], object],
        give_back: Callable[[list[LeasedTask]], object],
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`give_back` is called with the tasks of a poll whose caller went away at the moment of the answer."""
        self._core = core
        self._on_ask = on_ask
        self._give_back = give_back
        self._monotonic = monotonic
        self._waiting: dict[int, tuple[Ask, asyncio.Future[list[LeasedTask]]]] = {}
        self.hearing = Hearing(monotonic)
        #: Asks that wait for a beat of their holder.
        self._muted: dict[int, Ask] = {}
        #: Polls whose time ended while a claim for them was under way.
        self._overdue: set[int] = set()
        self._numbers = 0
        #: By holder, its last ask and when it came.
        self._asked: dict[int, tuple[Ask, float]] = {}
        #: Holders that have ended, the latest last.
        self._ended: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, ask: Ask, seconds: float) -> list[LeasedTask]:
        """Wait for tasks for the holder; none when the time is over, or the holder has ended."""
        if ask.holder in self._ended:
            return []
        self._numbers += 1
        number = self._numbers
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[LeasedTask]] = loop.create_future()
        self._waiting[number] = (ask, answer)
        self._asked[ask.holder] = (ask, self._monotonic())
        if self.hearing.is_unheard(ask):
            self._muted[number] = ask
        else:
            self._core.ask(number, ask)
            self._on_ask()
        # Not `asyncio.timeout`, which would need a shield: the caller continues in the round after its answer.
        waited = loop.call_later(seconds, self._end, number)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                self._give_back(answer.result())
            raise
        finally:
            waited.cancel()
            self._waiting.pop(number, None)
            self._muted.pop(number, None)
            self._overdue.discard(number)
            self._core.withdraw(number)

    def is_open(self, number: int) -> bool:
        """Whether a poll waits there that was not answered yet."""
        waiting = self._waiting.get(number)
        return waiting is not None and not waiting[1].done()

    def answer(self, number: int, tasks: list[LeasedTask]) -> None:
        """Answer a poll; only while it is open."""
        ask, answer = self._waiting[number]
        if tasks:
            self.hearing.gave(ask)
        answer.set_result(tasks)

    def end_overdue(self, numbers: Iterable[int]) -> None:
        """Answer overdue polls with nothing: the claim for them has ended and brought them nothing."""
        for number in self._overdue.intersection(numbers):
            if self.is_open(number):
                self.answer(number, [])

    def end_all(self) -> None:
        """Answer all polls with nothing; polls with a claim under way get what it brings."""
        for number in list(self._waiting):
            self._end(number)

    def close(self) -> None:
        """Answer all remaining polls with nothing: no claim is under way any more."""
        for _, answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_result([])

    def _end(self, number: int) -> None:
        if self._core.is_being_served(number):
            self._overdue.add(number)
        elif self.is_open(number):
            self._core.withdraw(number)
            self.answer(number, [])

    def holders(self) -> set[int]:
        """The holders that asked for work lately."""
        return set(self._asked)

    def forget(self, holders: Collection[int]) -> None:
        """End the polls of holders that have ended; what a claim under way brings for them is released."""
        self._asked = {holder: asked for holder, asked in self._asked.items() if holder not in holders}
        self.hearing.forget(holders)
        muted = [number for number, ask in self._muted.items() if ask.holder in holders]
        for number in [*self._core.asks_of(holders), *muted]:
            self._core.withdraw(number)
            if self.is_open(number):
                self.answer(number, [])
        self._ended |= dict.fromkeys(holders)
        while len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def hear(self, beats: Mapping[int, int]) -> list[Ask]:
        """Take the counters of all living holders; returns the asks that get nothing from now on."""
        fallen_silent = self.hearing.look(beats)
        unheard = self.hearing.unheard
        for number, ask in [each for each in self._muted.items() if each[1].holder not in unheard]:
            del self._muted[number]
            self._core.ask(number, ask)
            self._on_ask()
        for number in self._core.asks_of(unheard) if unheard else ():
            if not self._core.is_being_served(number):
                self._muted[number] = self._core.ask_of(number)
                self._core.withdraw(number)
        return fallen_silent

    def has_ended(self, holder: int) -> bool:
        """Whether this node knows that the holder has ended."""
        return holder in self._ended

    def recent_asks(self) -> list[Ask]:
        """The asks of heard holders that wait now, or asked for work lately."""
        lately = self._monotonic() - REMEMBER_ASKS_SECONDS
        self._asked = {holder: asked for holder, asked in self._asked.items() if asked[1] >= lately}
        return [ask for ask, _ in self._asked.values() if ask.holder not in self.hearing.unheard]
