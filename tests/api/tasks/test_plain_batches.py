"""Plain tasks of a batch are read in pieces that are bounded in bytes as well."""

from datetime import UTC, datetime

import msgspec

from duetime.api.bodies.requests import PlainTaskRequest, TaskRequest
from duetime.api.tasks.validation import BYTES_AT_ONCE, TaskReader
from duetime.model.task import MAX_PAYLOAD_BYTES

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_of_large_payloads_as_many_are_read_at_once_as_have_so_many_bytes() -> None:
    reader = TaskReader()
    # What it has not seen before is not plain.
    reader.read(TaskRequest(type="a"), 1, NOW)
    payload = msgspec.Raw(b'"%s"' % (b"x" * (MAX_PAYLOAD_BYTES - 2)))
    requests = [PlainTaskRequest(type="a", payload=payload)] * 250

    read = 0
    while read < len(requests):
        some = reader.read_plain(requests[read:], 1, NOW)
        assert 1 <= len(some) <= BYTES_AT_ONCE // MAX_PAYLOAD_BYTES
        read += len(some)
