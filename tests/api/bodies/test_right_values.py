"""What is wrong in a body is told with what would be right there."""

from typing import Any

import pytest

from duetime.api.bodies.requests import BulkRequest, TaskRequest
from duetime.api.limits.breakers import BreakerRequest
from duetime.api.schedules.schemas import ScheduleBatchRequest
from duetime.api.server.http import decode_json, make_decoder
from duetime.api.types.schemas import TypeRequest
from duetime.errors import InvalidInput


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        (BreakerRequest, b'{"state": "half"}', "state: 'half' is none of: auto, closed, open"),
        (
            TaskRequest,
            b'{"type": "a", "priority": "urgent"}',
            "priority: 'urgent' is none of: critical, high, low, normal",
        ),
        (
            TypeRequest,
            b'{"unique": {"states": ["ready", "done"]}}',
            "unique.states[1]: 'done' is none of: scheduled, ready, running, retrying, paused, succeeded,"
            " dead, cancelled, expired",
        ),
        (
            ScheduleBatchRequest,
            b'{"items": [{"name": "x", "spec": {"every": 1}, "task": {"type": "a"}, "misfire": "no"}]}',
            "items[0].misfire: 'no' is none of: fire_latest, fire_all, skip",
        ),
        (
            TypeRequest,
            b'{"throttel": 1}',
            "throttel: there is no such field; there are: schema, defaults, limits, throttle, rate_limit, debounce,"
            " unique",
        ),
        (
            TypeRequest,
            b'{"rate_limit": {"limits": 1, "limit": 1, "period": 1}}',
            "rate_limit.limits: there is no such field; there are: limit, period, key",
        ),
        (
            BulkRequest,
            b'{"filter": {"frm": 1}}',
            "filter.frm: there is no such field; there are: type, queue, priority, label, from, to, schedule, state",
        ),
        (TaskRequest, b'{"type": "a", "priority": 7}', "priority: expected `str`, got `int`"),
        (TaskRequest, b"[]", "expected `object`, got `array`"),
    ],
)
def test_a_wrong_value_is_told_with_what_would_be_right(kind: Any, body: bytes, detail: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        decode_json(make_decoder(kind), body)

    assert wrong.value.detail == detail
