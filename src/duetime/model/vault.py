"""Seal the secrets of tenants with keys that are not in the database, and open them again.

The same secret of the same tenant under the same name and key is always sealed
to the same text (a synthetic nonce): so a schedule that is put again compares
equal, and a repeated random number cannot break the cipher.  A reader of the
database can tell that two secrets are the same, but not what they are.

The text begins with the id of the key, so that it is known which key is missing.
It is bound to the tenant and the name: in another tenant's row, or under another
header, it does not open.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

_NONCE_BYTES = 24
#: The cipher is AES-256-GCM, with its own nonce.
_CIPHER_BYTES, _IV_BYTES = 32, 12
FINGERPRINT_BYTES = 16


class SealError(ValueError):
    """A sealed text cannot be opened; the message is for the tenant."""


@dataclass(frozen=True)
class _Key:
    id: str
    sealing: bytes
    naming: bytes
    digesting: bytes


class Vault:
    """The keys of this node: the first one seals, all of them open."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = [_derive(key) for key in dict.fromkeys(keys)]
        self._by_id = {key.id: key for key in self._keys}

    def __bool__(self) -> bool:
        """Whether it can seal."""
        return bool(self._keys)

    @property
    def key_ids(self) -> list[str]:
        return [key.id for key in self._keys]

    def seal(self, tenant: int, name: str, secret: str) -> str:
        """Seal the secret for storage; there must be a key."""
        key = self._keys[0]
        bound, plain = _bound(tenant, name), secret.encode()
        nonce = hashlib.blake2b(bound + plain, key=key.naming, digest_size=_NONCE_BYTES).digest()
        sealed = nonce + _cipher(key, nonce, bound).encrypt(plain)
        return f"{key.id}.{base64.urlsafe_b64encode(sealed).rstrip(b'=').decode()}"

    def open(self, tenant: int, name: str, sealed: str) -> str:
        """Open a sealed secret. Raise SealError if that is not possible."""
        key_id, _, text = sealed.partition(".")
        key = self._by_id.get(key_id)
        if key is None:
            raise SealError(f"no key of this node has the id {key_id[:16]}, with which it was encrypted")
        from cryptography.exceptions import InvalidTag

        bound = _bound(tenant, name)
        try:
            content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            nonce = content[:_NONCE_BYTES]
            return _cipher(key, nonce, bound).decrypt(content[_NONCE_BYTES:]).decode()
        except (InvalidTag, ValueError) as error:
            raise SealError("what is stored was changed, or was made for another tenant or header") from error

    def digest(self, data: bytes) -> bytes:
        """Fingerprints of data that hold secrets: one for each key, that of the first key first."""
        return b"".join(
            hashlib.blake2b(data, key=key.digesting, digest_size=FINGERPRINT_BYTES).digest() for key in self._keys
        )


def key_id_of(sealed: str) -> str:
    return sealed.partition(".")[0]


def is_same_fingerprint(stored: bytes, asked: bytes) -> bool:
    """Whether the stored fingerprint is one of those of the request: data with secrets have one for each key."""
    if stored == asked:
        return True
    places = range(0, len(asked), FINGERPRINT_BYTES)
    return any(hmac.compare_digest(stored, asked[place : place + FINGERPRINT_BYTES]) for place in places)


def _derive(key: bytes) -> _Key:
    """Derive a separate key for each use, and a name that reveals nothing about it."""

    def derive(use: bytes, size: int) -> bytes:
        return hashlib.blake2b(key=key, person=b"duetime " + use, digest_size=size).digest()

    return _Key(derive(b"id", 4).hex(), derive(b"seal", 32), derive(b"nonce", 32), derive(b"digest", 32))


def _bound(tenant: int, name: str) -> bytes:
    """The text that a sealed secret is bound to; neither part contains a NUL."""
    return f"{tenant}\0{name.lower()}\0".encode()


class _Cipher:
    """AES-256-GCM under a key that is used for only one text."""

    def __init__(self, key: bytes, iv: bytes, bound: bytes) -> None:
        # Half a megabyte of code that is not needed without secrets.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher, self._iv, self._bound = AESGCM(key), iv, bound

    def encrypt(self, plain: bytes) -> bytes:
        return self._cipher.encrypt(self._iv, plain, self._bound)

    def decrypt(self, sealed: bytes) -> bytes:
        return self._cipher.decrypt(self._iv, sealed, self._bound)


def _cipher(key: _Key, nonce: bytes, bound: bytes) -> _Cipher:
    made = hashlib.blake2b(nonce, key=key.sealing, digest_size=_CIPHER_BYTES + _IV_BYTES).digest()
    return _Cipher(made[:_CIPHER_BYTES], made[_CIPHER_BYTES:], bound)
