"""The calls about task types, queues, limits, keys and tenants, and about running the service.

The caller names most things, so repeating a put or a pause changes nothing.
The server gives a key its id: if the answer is lost, the repeated call
makes another key, and the first one stays unused in the list.
"""

from collections.abc import Mapping

import msgspec

from duetime.sdk.calls.call import ApiCall, encode
from duetime.sdk.calls.collection import Collection
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.flow import KeyLimit, Queue, TaskType, TypePreview, TypePut
from duetime.sdk.shapes.keys import Key, NewKey
from duetime.sdk.shapes.operation import Act, Breaker, Node, OutboxNumber, Refused
from duetime.sdk.shapes.tenants import SigningSecret, Tenant, Tier

TYPES = Collection("types", TaskType, Page[TaskType])
QUEUES = Collection("queues", Queue, Page[Queue])
LIMITS = Collection("limits", KeyLimit, Page[KeyLimit])
KEYS = Collection("keys", Key, Page[Key])
TENANTS = Collection("tenants", Tenant, Page[Tenant])
TIERS = Collection("tiers", Tier, Page[Tier])
AUDIT = Collection("audit", Act, Page[Act])
BREAKERS = Collection("breakers", Breaker, Page[Breaker])
CLUSTER = Collection("cluster", Node, Page[Node])
OUTBOX = Collection("outbox", OutboxNumber, Page[OutboxNumber])
REFUSED = Collection("outbox", Refused, Page[Refused])

_read_type_put = msgspec.json.Decoder(TypePut).decode
_read_type_preview = msgspec.json.Decoder(TypePreview).decode
_read_new_key = msgspec.json.Decoder(NewKey).decode
_read_secret = msgspec.json.Decoder(SigningSecret).decode


def put_type(name: str, fields: Mapping[str, object]) -> ApiCall[TypePut]:
    return ApiCall("PUT", TYPES.path_of(name), _read_type_put, encode(fields))


def preview_type(name: str, fields: Mapping[str, object]) -> ApiCall[TypePreview]:
    return TYPES.post((name, "preview"), fields, _read_type_preview)


def create_key(fields: Mapping[str, object]) -> ApiCall[NewKey]:
    return KEYS.post((), fields, _read_new_key)


def rotate_key(key: int, fields: Mapping[str, object]) -> ApiCall[NewKey]:
    return KEYS.post((key, "rotate"), fields, _read_new_key)


def signing_secret() -> ApiCall[SigningSecret]:
    return ApiCall("GET", "/v1/signing-secret", _read_secret)


def rotate_signing_secret(fields: Mapping[str, object]) -> ApiCall[SigningSecret]:
    return ApiCall("POST", "/v1/signing-secret/rotate", _read_secret, encode(fields))
