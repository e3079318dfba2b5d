"""DNS messages: the query for the addresses of a name, and the parser of a response.  Pure, no I/O.

Tenants choose the names that they ask for, and so the servers that answer.
So the work on one message is bounded: only a fixed number of its records is read.
"""

import re
import socket
import struct
from typing import NamedTuple

TYPE_A = 1
TYPE_AAAA = 28
_TYPE_CNAME = 5
_CLASS_IN = 1
_NAME_ERROR = 3
_MAX_NAME_BYTES = 255
_MAX_LABELS = 128
#: The most records that are read of an answer, and the most addresses taken; more than an honest server gives.
_MAX_RECORDS = 256
_MAX_ADDRESSES = 64
_MAX_ALIASES = 16
_IS_REPLY, _IS_TRUNCATED, _WANTS_RECURSION = 0x8000, 0x0200, 0x0100
_OPCODE = 0x7800

_LABEL = re.compile(r"[!-\-/-~]{1,63}")
_HEAD = struct.Struct("!HHHHHH")
_QUESTION_TAIL = struct.Struct("!HH")
_RECORD = struct.Struct("!HHIH")
_FAMILIES = {TYPE_A: (socket.AF_INET, 4), TYPE_AAAA: (socket.AF_INET6, 16)}


class Question(NamedTuple):
    id: int
    content: bytes
    #: The name in lower case, without the dot at its end.
    name: str
    type: int


class Reply(NamedTuple):
    """What a server answered; `addresses` are numeric."""

    addresses: tuple[str, ...] = ()
    #: The name does not exist. If this is false and there are no addresses, the name has none of the type.
    is_unknown: bool = False
    is_truncated: bool = False
    #: The response code of a server that does not answer the query; 0: it answers it.
    error: int = 0


class MessageError(ValueError):
    """This message is no answer to the query."""


def ask(id: int, name: str, type: int) -> Question:
    """A query that asks for recursion; raises ValueError for an invalid name."""
    bare = name.removesuffix(".")
    labels = bare.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or len(bare) + 2 > _MAX_NAME_BYTES:
        raise ValueError("it is not a domain name")
    encoded = b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"
    head = _HEAD.pack(id, _WANTS_RECURSION, 1, 0, 0, 0)
    return Question(id, head + encoded + _QUESTION_TAIL.pack(type, _CLASS_IN), bare.lower(), type)


def read_reply(question: Question, content: bytes) -> Reply:
    """Parse the answer to the query; raises MessageError."""
    try:
        return _read(question, content)
    except (struct.error, IndexError) as error:
        raise MessageError("the message ends too early") from error


def _read(question: Question, content: bytes) -> Reply:
    id, flags, questions, answers, _, _ = _HEAD.unpack_from(content)
    if id != question.id or not flags & _IS_REPLY or flags & _OPCODE or questions != 1:
        raise MessageError("it answers another question")
    name, at = _read_name(content, _HEAD.size)
    if (name, *_QUESTION_TAIL.unpack_from(content, at)) != (question.name, question.type, _CLASS_IN):
        raise MessageError("it answers another question")
    if flags & _IS_TRUNCATED:
        return Reply(is_truncated=True)
    code = flags & 0xF
    if code not in (0, _NAME_ERROR):
        return Reply(error=code)
    found = _addresses(question, content, at + _QUESTION_TAIL.size, min(answers, _MAX_RECORDS))
    return Reply(found, is_unknown=code == _NAME_ERROR)


def _addresses(question: Question, content: bytes, at: int, records: int) -> tuple[str, ...]:
    """The addresses of the name, with its aliases followed."""
    family, size = _FAMILIES[question.type]
    aliases: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for _ in range(records):
        owner, at = _read_name(content, at)
        type, klass, _, length = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        if at + length > len(content):
            raise MessageError("the message ends too early")
        if klass == _CLASS_IN:
            if type == _TYPE_CNAME:
                aliases.setdefault(owner, _read_name(content, at)[0])
            elif type == question.type and length == size:
                found.setdefault(owner, []).append(socket.inet_ntop(family, content[at : at + size]))
        at += length
    name = question.name
    for _ in range(_MAX_ALIASES):
        if name in found or name not in aliases:
            break
        name = aliases[name]
    return tuple(dict.fromkeys(found.get(name, ())))[:_MAX_ADDRESSES]


def _read_name(content: bytes, at: int) -> tuple[str, int]:
    """A name in lower case, and the position after it."""
    labels: list[bytes] = []
    after = -1
    for _ in range(_MAX_LABELS):
        length = content[at]
        if length >= 0xC0:
            target = (length & 0x3F) << 8 | content[at + 1]
            after = at + 2 if after < 0 else after
            # Pointers may only lead backwards, so this ends whatever the message contains.
            if target >= at:
                raise MessageError("a name refers to what follows it")
            at = target
        elif length > 63:
            raise MessageError("a name has a label of an unknown kind")
        elif length == 0:
            return b".".join(labels).decode("latin-1").lower(), at + 1 if after < 0 else after
        else:
            labels.append(content[at + 1 : at + 1 + length])
            at += 1 + length
    raise MessageError("a name has too many labels")
