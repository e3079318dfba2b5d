"""The calls about task types, queues, limits and tenants, without I/O: what both clients share.

All of these are named by their caller, so to put or pause one again changes nothing.
"""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from duetime.sdk.admin_shapes import (
    KeyLimit,
    KeyLimitPage,
    Limits,
    Queue,
    QueuePage,
    TaskType,
    TypePage,
    TypePreview,
    TypePut,
)
from duetime.sdk.errors import Duration
from duetime.sdk.shapes import seconds_of
from duetime.sdk.tenant_shapes import SigningSecret, Tenant
from duetime.sdk.wire import Call, encode, make_query, without_none

_read_type = msgspec.json.Decoder(TaskType).decode
_read_types = msgspec.json.Decoder(TypePage).decode
_read_type_put = msgspec.json.Decoder(TypePut).decode
_read_type_preview = msgspec.json.Decoder(TypePreview).decode
_read_queue = msgspec.json.Decoder(Queue).decode
_read_queues = msgspec.json.Decoder(QueuePage).decode
_read_limit = msgspec.json.Decoder(KeyLimit).decode
_read_tenant = msgspec.json.Decoder(Tenant).decode
_read_secret = msgspec.json.Decoder(SigningSecret).decode
_read_limits = msgspec.json.Decoder(KeyLimitPage).decode


def _path(noun: str, name: str, *rest: str) -> str:
    return "/".join((f"/v1/{noun}", quote(name, safe=""), *rest))


def _page(noun: str, limit: int | None, cursor: str | None) -> str:
    return f"/v1/{noun}" + make_query({"limit": limit, "cursor": cursor})


def put_type(name: str, options: Mapping[str, Any]) -> Call[TypePut]:
    return Call("PUT", _path("types", name), _read_type_put, encode(without_none(options)))


def preview_type(name: str, options: Mapping[str, Any]) -> Call[TypePreview]:
    return Call("POST", _path("types", name, "preview"), _read_type_preview, encode(without_none(options)))


def get_type(name: str) -> Call[TaskType]:
    return Call("GET", _path("types", name), _read_type)


def list_types(*, limit: int | None, cursor: str | None) -> Call[TypePage]:
    return Call("GET", _page("types", limit, cursor), _read_types)


def delete_type(name: str) -> Call[None]:
    return Call("DELETE", _path("types", name), lambda body: None)


def limit_queue(name: str, limits: Limits | None) -> Call[Queue]:
    return Call("PUT", _path("queues", name), _read_queue, encode({"limits": limits}))


def allow_silence(name: str, max_silence: Duration | None) -> Call[Queue]:
    seconds = None if max_silence is None else seconds_of(max_silence)
    return Call("PUT", _path("queues", name), _read_queue, encode({"max_silence": seconds}))


def steer_queue(name: str, state: Literal["active", "paused"]) -> Call[Queue]:
    return Call("PUT", _path("queues", name), _read_queue, encode({"state": state}))


def get_queue(name: str) -> Call[Queue]:
    return Call("GET", _path("queues", name), _read_queue)


def list_queues(*, limit: int | None, cursor: str | None) -> Call[QueuePage]:
    return Call("GET", _page("queues", limit, cursor), _read_queues)


def delete_queue(name: str) -> Call[None]:
    return Call("DELETE", _path("queues", name), lambda body: None)


def put_limit(key: str, limits: Limits) -> Call[KeyLimit]:
    return Call("PUT", _path("limits", key), _read_limit, encode(limits))


def get_limit(key: str) -> Call[KeyLimit]:
    return Call("GET", _path("limits", key), _read_limit)


def list_limits(*, limit: int | None, cursor: str | None) -> Call[KeyLimitPage]:
    return Call("GET", _page("limits", limit, cursor), _read_limits)


def delete_limit(key: str) -> Call[None]:
    return Call("DELETE", _path("limits", key), lambda body: None)


def put_tenant(name: str, options: Mapping[str, Any]) -> Call[Tenant]:
    # None is sent: it takes a value away.
    return Call("PUT", _path("tenants", name), _read_tenant, encode(options))


def get_tenant(name: str) -> Call[Tenant]:
    return Call("GET", _path("tenants", name), _read_tenant)


def rotate_signing_secret(overlap: Duration) -> Call[SigningSecret]:
    body = encode({"overlap": seconds_of(overlap)})
    return Call("POST", "/v1/signing-secret/rotate", _read_secret, body)
