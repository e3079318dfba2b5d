"""Judge the URL and the headers of a task's target, and seal the headers that are secret."""

import ipaddress
import re
from urllib.parse import urlsplit

import msgspec

from duetime.api.bodies.requests import TargetRequest
from duetime.errors import EgressRefused, FieldError, NoSecretsKey
from duetime.model.egress_rules import EgressJudge
from duetime.model.headers import HIDDEN, secret_names
from duetime.model.origin import split_origin
from duetime.model.reserved_headers import is_reserved
from duetime.model.task import Target
from duetime.model.vault import Vault

MAX_URL = 2083
MAX_HEADER_BYTES = 16 * 1024

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[ -~\t]*[!-~])?)?")
_URL = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HOST = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?"
)


def check_egress(url: str, judge: EgressJudge | None) -> None:
    """Raise why the tenant may not call a valid URL."""
    refusal = judge.refusal(split_origin(url)[0]) if judge is not None else None
    if refusal is not None:
        raise EgressRefused.at("target.url", refusal)


def check_target(target: TargetRequest, errors: list[FieldError]) -> Target:
    if wrong := _wrong_with_url(target.url):
        errors.append(FieldError("target.url", wrong))
    size = 0
    for name, value in target.headers.items():
        size += len(name) + len(value)
        path = f"target.headers.{name[:80]}"
        if not _HEADER_NAME.fullmatch(name):
            errors.append(FieldError(path, "is not a header name: letters, digits and hyphens"))
        elif is_reserved(name):
            errors.append(FieldError(path, "is set by duetime itself; leave it out"))
        elif not _HEADER_VALUE.fullmatch(value):
            errors.append(FieldError(path, "a header's value is ASCII without line breaks or spaces at its ends"))
    if size > MAX_HEADER_BYTES:
        errors.append(FieldError("target.headers", f"at most {MAX_HEADER_BYTES} bytes in all"))
    if target.headers or target.secret_headers:
        _check_secrets(target, errors)
    return Target(
        target.url,
        target.method,
        target.headers,
        timeout=None if target.timeout is None else float(target.timeout),
        retry_on=target.retry_on,
    )


def _check_secrets(target: TargetRequest, errors: list[FieldError]) -> None:
    known = {name.lower() for name in target.headers}
    for place, name in enumerate(target.secret_headers or ()):
        if name.lower() not in known:
            errors.append(FieldError(f"target.secret_headers[{place}]", "names a header that is not in headers"))
    for name in secret_names_of(target):
        if target.headers[name] == HIDDEN:
            # A client that writes back what it read would lose the secret.
            path = f"target.headers.{name[:80]}"
            errors.append(FieldError(path, f"{HIDDEN} is shown in place of a secret; send the secret itself again"))


def secret_names_of(target: TargetRequest) -> list[str]:
    """The names of the secret headers, as they are written in the request."""
    return secret_names(target.headers, target.secret_headers or ())


def seal_target(target: Target, secret: list[str], vault: Vault, tenant: int) -> Target:
    """The target as it is stored; raises NoSecretsKey rather than store a secret in plain text."""
    if not secret:
        return target
    if not vault:
        raise NoSecretsKey(secret[0])
    return msgspec.structs.replace(
        target,
        headers={name: value for name, value in target.headers.items() if name not in secret},
        secret_headers={name: vault.seal(tenant, name, target.headers[name]) for name in secret},
    )


def _wrong_with_url(url: str) -> str | None:
    if len(url) > MAX_URL:
        return f"is longer than {MAX_URL} characters"
    if not _URL.fullmatch(url):
        return "has characters that a URL cannot have; percent-encode them"
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        is_address = ":" in host and bool(ipaddress.IPv6Address(host))
    except ValueError:
        return "is not a URL; it looks like https://example.com/path"
    if parts.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    if "@" in parts.netloc:
        return "must not have a user name or password; send an Authorization header"
    if not is_address and (len(host) > 253 or not _HOST.fullmatch(host)):
        return "has no valid host; it looks like https://example.com/path"
    if port == 0:
        return "port 0 cannot be called"
    return None
