"""What nodes that share the shards say to each other, as it travels between them."""

import uuid

import msgspec

from duetime.database.lineage import TimelinePosition
from duetime.lifecycle.holders.holders import BeatAnswer, Named
from duetime.model.attempt import Past
from duetime.model.breaker_status import BreakerStatus
from duetime.model.task import LeasedTask
from duetime.model.tenant_breaker import Record
from duetime.scheduler.plan import Ask, LaneStatus


class Poll(msgspec.Struct, frozen=True, array_like=True):
    ask: Ask
    wait_seconds: float


class Beat(msgspec.Struct, frozen=True, array_like=True):
    tenant: int
    name: str
    attempts: list[Named]
    key: int | None = None


encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
decode_tasks = msgspec.msgpack.Decoder(list[LeasedTask]).decode
decode_wakes = msgspec.msgpack.Decoder(list[uuid.UUID]).decode
decode_ended = msgspec.msgpack.Decoder(list[Past]).decode
decode_poll = msgspec.msgpack.Decoder(Poll).decode
decode_beat = msgspec.msgpack.Decoder(Beat).decode
decode_beaten = msgspec.msgpack.Decoder(BeatAnswer).decode
decode_status = msgspec.msgpack.Decoder(LaneStatus).decode
decode_records = msgspec.msgpack.Decoder(dict[int, Record]).decode
decode_breakers = msgspec.msgpack.Decoder(list[BreakerStatus]).decode
decode_place = msgspec.msgpack.Decoder(TimelinePosition).decode
