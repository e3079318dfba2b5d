"""Request bodies about keys and signing secrets."""

from typing import Annotated, Literal, cast

from msgspec import Meta, Struct

from duetime.api.bodies.requests import Instant, said
from duetime.api.bodies.seconds import Overlapping, SigningOverlap

Pattern = Annotated[
    str,
    said("A name, in which * stands for any characters.", pattern="^[A-Za-z0-9*?._:/-]{1,128}$", maxLength=128),
]


Network = Annotated[str, said("An IP address, or a network such as 10.0.0.0/8.", format="network", maxLength=64)]


class KeyRequest(Struct, forbid_unknown_fields=True):
    """A key to be made, for the caller's tenant, or for another tenant by an admin."""

    role: Literal["producer", "worker", "operator", "viewer", "owner", "admin"] = "admin"
    name: Annotated[str, Meta(max_length=100, description="What the key is for.")] = ""
    types: Annotated[
        list[Pattern], Meta(max_length=50, description="Only tasks of these types. Not for owners and admins.")
    ] = []
    queues: Annotated[
        list[Pattern], Meta(max_length=50, description="Only tasks in these queues. Not for owners and admins.")
    ] = []
    expires_at: Annotated[Instant | None, Meta(description="The key is not valid from this time on.")] = None
    allowed_ips: Annotated[
        list[Network], Meta(max_length=100, description="Only from these addresses and networks. Empty: from anywhere.")
    ] = []


class RotateRequest(Struct, forbid_unknown_fields=True):
    """How long the old key stays valid."""

    overlap: Overlapping = cast(Overlapping, 3600.0)


class RotateSigningRequest(Struct, forbid_unknown_fields=True):
    """How long calls are signed with the former secret as well."""

    overlap: SigningOverlap = cast(SigningOverlap, 86_400.0)
