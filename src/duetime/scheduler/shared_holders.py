"""Workers whose beats arrive at any node: one node hears all beats of a worker, and all learn that it has ended.

Only that node knows which attempts two beats in a row did not name.
"""

from collections.abc import Iterable, Sequence

from duetime.errors import WorkerNameTaken
from duetime.lifecycle.holders.holders import BeatResult, Holders, Named
from duetime.scheduler.membership import ANNOUNCE_SECONDS, Membership
from duetime.scheduler.messages import Beat, Beaten, Done, Left
from duetime.scheduler.messenger import Messenger
from duetime.service import Errands

BEAT_SECONDS = 5.0


class SharedHolders:
    """What the API needs from holders, on whichever node they are heard."""

    def __init__(self, messenger: Messenger, membership: Membership, holders: Holders) -> None:
        self._messenger = messenger
        self._membership = membership
        self._holders = holders
        self._errands = Errands("holders that have ended")
        messenger.serve(Beat, self._hear_beat)
        messenger.serve(Left, self._hear_left)

    async def close(self) -> None:
        self._errands.cancel()

    async def register(self, tenant: int, name: str, key: int | None = None) -> int:
        return await self._holders.register(tenant, name, key)

    async def beat(self, tenant: int, name: str, attempts: Sequence[Named], key: int | None = None) -> BeatResult:
        """Pass a beat to the one node that hears the holder; without that node, this one hears it."""
        owner = self._membership.owner_of(f"holder {tenant} {name}")
        if owner is not None and owner != self._membership.name:
            beat = Beat(tenant, name, list(attempts), key)
            reply = await self._messenger.ask(owner, beat, Beaten, BEAT_SECONDS)
            if reply is not None:
                if reply.answer.is_taken:
                    raise WorkerNameTaken(name)
                return reply.answer
        return await self._holders.beat(tenant, name, attempts, key)

    async def allow_silence(self, holder: int, seconds: float | None) -> None:
        await self._holders.allow_silence(holder, seconds)

    async def sign_off(self, tenant: int, name: str, attempts: Sequence[Named], key: int | None = None) -> int | None:
        """Sign off, and tell the other nodes; a node that is not reached learns of it within a second by itself."""
        holder = await self._holders.sign_off(tenant, name, attempts, key)
        if holder is not None:
            await self._tell_left(holder)
        return holder

    def tell_ended(self, holders: Iterable[int]) -> None:
        """End the polls of these holders on the other nodes, too: they were ended here."""
        for holder in holders:
            self._errands.begin(self._tell_left(holder))

    async def _tell_left(self, holder: int) -> None:
        await self._messenger.ask_all(Left(holder), Done, ANNOUNCE_SECONDS)

    async def _hear_beat(self, beat: Beat) -> Beaten:
        try:
            return Beaten(await self._holders.beat(beat.tenant, beat.name, beat.attempts, beat.key))
        except WorkerNameTaken:
            return Beaten(BeatResult([], [], is_taken=True))

    async def _hear_left(self, left: Left) -> Done:
        self._holders.forget({left.holder})
        return Done()
