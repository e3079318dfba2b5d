"""The gate of a task: the limits that it has to pass besides those of its tenant and queue.

Tasks with the same gate, of the same queue and class, are alike in everything that may
keep them waiting; when they have to wait, they do so in one lane of that gate.

A task that a worker was about to get but does not handle waits at a gate, too: at the
gate of its type, which only workers that handle the type pass.
"""

import hashlib
from functools import lru_cache
from typing import Protocol

import msgspec

from duetime.model.limits import TypeLimits
from duetime.model.origin import host_of
from duetime.model.task import Options

#: Its kind, its name, and the value inside the payload: ("type", "mail", ""), ("type_key", "mail", "c-7"),
#: ("type_rate", "mail", "c-7"), ("key", "c-7", ""), ("rate", "sms", ""), ("host", "example.com:443", ""). ("handles",
#: "mail", "") limits nothing: a worker that takes what waits there has to handle the type.
MeterName = tuple[str, str, str]
Gate = tuple[MeterName, ...]

_HANDLES = "handles"
#: Scopes that name a type: all tasks that wait there are of that type.
_OF_A_TYPE = frozenset({_HANDLES, "type", "type_key", "type_rate"})

MAX_VALUE = 255
_encode = msgspec.json.encode
_decode_any = msgspec.json.Decoder().decode
_decode_gate = msgspec.json.Decoder(tuple[MeterName, ...]).decode


class GateRules(Protocol):
    """The rules that decide which gate a task has."""

    def of_type(self, tenant: int, name: str) -> TypeLimits | None: ...

    def has_key(self, tenant: int, key: str) -> bool:
        """Whether a limit is stored for such a key."""
        ...

    def is_slowed(self, tenant: int, host: str) -> bool:
        """Whether calls to a target are held back."""
        ...


def gate_of(rules: GateRules, tenant: int, type_name: str, payload: bytes, options: Options | None) -> Gate:
    """What the task has to pass, in a fixed order; nothing for most tasks."""
    gate: list[MeterName] = []
    limits = rules.of_type(tenant, type_name)
    if limits is not None and not limits.is_empty:
        gate += _of_type(limits, type_name, payload)
    if options is not None:
        if options.concurrency_key is not None and rules.has_key(tenant, options.concurrency_key):
            gate.append(("key", options.concurrency_key, ""))
        if options.rate_key is not None and rules.has_key(tenant, options.rate_key):
            gate.append(("rate", options.rate_key, ""))
        if options.target is not None:
            host = host_of(options.target.url)
            if rules.is_slowed(tenant, host):
                gate.append(("host", host, ""))
    return tuple(gate)


def encode_gate(gate: Gate) -> str:
    return _encode(gate).decode() if gate else ""


# A plan calls this for each lane, for each of its limits.
@lru_cache(maxsize=2_048)
def decode_gate(text: str) -> Gate:
    return _decode_gate(text) if text else ()


def with_type(gate: Gate, type_name: str) -> Gate:
    """The same gate, for tasks of one type alone."""
    return gate if any(scope in _OF_A_TYPE for scope, _, _ in gate) else (*gate, (_HANDLES, type_name, ""))


def limits_at(gate: str) -> Gate:
    """The parts of a gate that are limits."""
    return tuple(name for name in decode_gate(gate) if name[0] != _HANDLES)


# A claim calls this for each lane and each holder that waits.
@lru_cache(maxsize=8_192)
def type_at(gate: str) -> str | None:
    """The type of all tasks that wait at the gate; None: they may be of any type."""
    return next((name for scope, name, _ in decode_gate(gate) if scope in _OF_A_TYPE), None)


@lru_cache(maxsize=8_192)
def is_for_type_alone(gate: str) -> bool:
    """Whether the tasks at the gate wait only for a worker that handles their type, and for no limit."""
    return bool(gate) and not limits_at(gate)


def _of_type(limits: TypeLimits, name: str, payload: bytes) -> list[MeterName]:
    split_cap = limits.max_running is not None and limits.concurrency_key is not None
    split_rate = limits.rate is not None and limits.rate_key is not None
    found: list[MeterName] = []
    if (limits.max_running is not None and not split_cap) or (limits.rate is not None and not split_rate):
        found.append(("type", name, ""))
    if split_cap or split_rate:
        value = _decode_any(payload)
        if split_cap and limits.concurrency_key is not None:
            found.append(("type_key", name, _value_at(value, limits.concurrency_key)))
        if split_rate and limits.rate_key is not None:
            found.append(("type_rate", name, _value_at(value, limits.rate_key)))
    return found


def _value_at(value: object, path: str) -> str:
    """The value as text; tasks without a value share the text of null."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    text = value if isinstance(value, str) else _encode(value).decode()
    if len(text) <= MAX_VALUE:
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
