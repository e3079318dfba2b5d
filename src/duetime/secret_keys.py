"""The keys that encrypt tenants' secrets: where they are read from, and how they are written."""

import base64
import os
import secrets
from pathlib import Path

from duetime.config import Config
from duetime.errors import UsageError

KEY_BYTES = 32
#: The file in a data folder.
FILE_NAME = "secrets.key"


def read_secrets_keys(config: Config) -> list[bytes]:
    """The keys for secrets: the first encrypts, all of them decrypt; raises a UsageError that repeats none of them."""
    keys = []
    for place, text in enumerate(config.secrets_keys, 1):
        try:
            keys.append(read_key(text))
        except ValueError as error:
            raise UsageError(f"secrets_keys: key {place} {error}") from None
    if config.secrets_key_file is not None:
        keys += _read_key_file(Path(config.secrets_key_file))
    return keys


def _read_key_file(file: Path) -> list[bytes]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"secrets_key_file {file} cannot be read: {why}") from error
    keys = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            try:
                keys.append(read_key(text))
            except ValueError as error:
                raise UsageError(f"secrets_key_file {file}: line {number} {error}") from None
    if not keys:
        raise UsageError(f"secrets_key_file {file} holds no key; make one with `openssl rand -base64 32`")
    return keys


def read_key(text: str) -> bytes:
    """Parse 32 bytes, as 64 hexadecimal digits or as base64; raises a ValueError that does not repeat them."""
    try:
        if len(text) == 2 * KEY_BYTES:
            key = bytes.fromhex(text)
        else:
            key = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError("is not 32 bytes in hexadecimal or base64, as `openssl rand -base64 32` makes them")
    return key


def make_key_file(file: Path) -> None:
    """Write a new key that only its owner can read; an existing file stays as it is."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as stream:
        stream.write(base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode() + "\n")
        stream.flush()
        # Data that is encrypted with the key is durable, so the key has to be durable as well.
        os.fsync(stream.fileno())
