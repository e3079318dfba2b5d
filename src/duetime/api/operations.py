"""What the API offers, as data: one `Operation` for each method and path.

The router and the OpenAPI document are both made from it, so neither can contain
something that the other does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

#: Which roles may call what.
ADMINS = frozenset({"admin"})
OWNERS = ADMINS | {"owner"}
OPERATORS = OWNERS | {"operator"}
PRODUCERS = OPERATORS | {"producer"}
WORKERS = OPERATORS | {"worker"}
EVERYONE = PRODUCERS | WORKERS | {"viewer"}
#: Roles whose keys may be confined to types and queues; owners and admins manage the whole tenant.
CONFINABLE = EVERYONE - OWNERS


class Confined(Enum):
    """What a key that is confined to types and queues gets of an operation."""

    #: The part that belongs to the types and queues that the key reaches; the handler checks that.
    PART = "part"
    #: All of it: nothing in it belongs to a type or a queue.
    ALL = "all"
    #: Nothing, because it is about the whole tenant: 403.
    NONE = "none"


@dataclass(frozen=True)
class Parameter:
    """One query parameter or header, with its JSON schema."""

    name: str
    description: str
    schema: Mapping[str, Any]
    place: str = "query"
    #: Whether it may be given more than once.
    is_many: bool = False


@dataclass(frozen=True)
class Reply:
    """One answer: what it means, and the type of its body."""

    description: str
    body: Any = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    name: str
    tag: str
    summary: str
    replies: Mapping[int, Reply]
    description: str = ""
    #: The type of the JSON body; None: the call takes no body.
    body: Any = None
    #: Whether the body may be left out.
    is_body_optional: bool = False
    #: Other media types of the body, each with its schema.
    other_bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    #: Codes of problems that do not follow from its method, path and body.
    also: tuple[int, ...] = ()
    #: Its path may name what does not exist yet, as that of a PUT may: no 404.
    may_name_new: bool = False
    needs_key: bool = True
    #: The most bytes of the body. A small body cannot hold a list that costs much memory when it is read.
    max_body: int = 1024 * 1024
    #: A batch, or a read whose answer may be large: only a few of these are handled at a time for one tenant.
    is_large: bool = False
    #: Its body is read although the tenant has too many at work: without it the tenant's workers count as dead.
    is_vital: bool = False
    #: An example of the body, for the reference.
    example: Any = None

    #: Roles whose keys may call it; None: everyone may read, operators may do the rest.
    roles: frozenset[str] | None = None
    #: What a confined key gets of it.
    confined: Confined = Confined.NONE

    @cached_property
    def allowed_roles(self) -> frozenset[str]:
        if self.roles is not None:
            return self.roles
        return EVERYONE if self.method == "GET" else OPERATORS

    @cached_property
    def problems(self) -> frozenset[int]:
        """Codes of the problems it can answer with, besides those that every call has."""
        codes = set(self.also)
        if self.needs_key:
            codes.add(422)
            if self.method != "GET":
                codes.add(413)
            if self.body is not None:
                codes |= {400, 415}
            if "{" in self.path and self.method != "PUT" and not self.may_name_new:
                codes.add(404)
        return frozenset(codes)

    @cached_property
    def query_names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.parameters if parameter.place == "query")
