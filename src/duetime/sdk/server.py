"""Find the server's address and the key, in the same way for clients, workers and the command line.

Values that are given come first, then the environment (`DUETIME_URL`, `DUETIME_KEY`),
then the data folder of a `duetime up` on this machine: the one that
`DUETIME_DATA` names, else `.duetime` in the folder that the process runs in.  A
key that was found in a folder is only ever sent to this machine.
"""

import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

from duetime.sdk.errors import ConfigurationError


def find_server(url: str | None, key: str | None) -> tuple[str, str]:
    """Return the checked address and key, or raise a ConfigurationError that says what to give."""
    url, key = look_for_server(url, key)
    if not url:
        raise ConfigurationError(
            "there is no server address: give url= or set DUETIME_URL, or run in the folder of a `duetime up`"
        )
    if not key:
        raise ConfigurationError(
            f"there is no API key for {url}: give key= or set DUETIME_KEY, or run in the folder of a `duetime up` on "
            "this machine"
        )
    return check_server(url, key)


def look_for_server(
    url: str | None, key: str | None, *, data: str | None = None, default_url: str = ""
) -> tuple[str, str | None]:
    """Return what is known of both, not yet checked. `data` names a folder in place of the environment."""
    environment = {} if data else os.environ
    folder = Path(data or os.environ.get("DUETIME_DATA") or ".duetime")
    url = url or environment.get("DUETIME_URL") or _read(folder / "url") or default_url
    key = key or environment.get("DUETIME_KEY")
    if not key and is_this_machine(_host_of(url)):
        key = _read(folder / "key")
    return url, key


def check_server(url: str, key: str) -> tuple[str, str]:
    """Return the address and key in the form in which they are used, or raise a ConfigurationError."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f'"{url}" is not a server address: {error}') from error
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(f'"{url}" is not a server address: it looks like http://127.0.0.1:8080')
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigurationError("the API key has characters that no key has")
    return url.rstrip("/"), key


def _read(file: Path) -> str | None:
    try:
        return file.read_text("utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigurationError(f"{file} cannot be read: {reason}") from error


def is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
