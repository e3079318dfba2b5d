"""Open the secret headers of a target for one call, and remove them from the stored answer."""

from collections.abc import Collection, Mapping

import msgspec
import structlog

from duetime.executor.messages import Response
from duetime.model.headers import HIDDEN
from duetime.model.task import LeasedTask
from duetime.model.vault import SealError, Vault, key_id_of

#: A shorter part of a secret is likely to occur in an answer by chance.
_LEAST_PART = 8

log = structlog.get_logger(__name__)


class Opener:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        #: Keys that were missing; each is logged once.
        self._missing: set[str] = set()

    def open(self, task: LeasedTask, tenant: int | None) -> dict[str, str] | None:
        """The secret headers of its target; None: there are none.  Raises SealError with the header's name."""
        target = None if task.options is None else task.options.target
        if target is None or not target.secret_headers:
            return None
        opened = {}
        for name, sealed in target.secret_headers.items():
            try:
                if tenant is None:
                    raise SealError("its tenant is not known here")
                opened[name] = self._vault.open(tenant, name, sealed)
            except SealError as error:
                if (key := key_id_of(sealed)) not in self._missing:
                    self._missing.add(key)
                    log.warning("a secret header cannot be decrypted", task=str(task.id), header=name, error=str(error))
                raise SealError(f"the secret header {name} cannot be decrypted, so no call is made: {error}") from error
        return opened


def hide_echoes(answer: Response, opened: Mapping[str, str]) -> Response:
    """The answer with the secrets removed where the target repeats them."""
    body, headers = answer.body, answer.headers
    for part in _parts(opened.values()):
        if part in body:
            body = body.replace(part, HIDDEN.encode())
        if any(part in value for _, value in headers):
            headers = tuple((name, value.replace(part, HIDDEN.encode())) for name, value in headers)
    if body is answer.body and headers is answer.headers:
        return answer
    return msgspec.structs.replace(answer, body=body, headers=headers)


def _parts(secrets: Collection[str]) -> list[bytes]:
    """Whole values, tokens after the name of a scheme, values of cookies; the longest first."""
    parts = {word for secret in secrets for word in (secret, *secret.split(), *_cookie_values(secret))}
    return sorted((part.encode() for part in parts if len(part) >= _LEAST_PART), key=len, reverse=True)


def _cookie_values(secret: str) -> list[str]:
    return [value.strip() for pair in secret.split(";") if (value := pair.partition("=")[2])]
