"""Generate the client for plain code from the one for asyncio (`make client`).

Each `async_NAME.py` of `sdk/client` gives a `sync_NAME.py`, except the transport,
which is different for plain code.  The table below has the docstrings that differ
because the two clients differ.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "src" / "duetime" / "sdk" / "client"
MODULES = ("sender", "schedules", "administration", "client")

_WORDS = (
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Iterator|CallSender|Schedules|Administration|Client|Transport)\b", r"\1"),
    (r"\basync_(\w+)", r"sync_\1"),
    (r"\basyncio\b", "time"),
    (r"__a(enter|exit)__", r"__\1__"),
)

#: Docstring of the asyncio client → docstring of the plain client, by module.
_TEXTS = {
    "sender": {"Close the connections of this event loop and of all others.": "Close the connections."},
    "client": {
        "`AsyncClient`: submit, read and control tasks and schedules, and administer the service, for asyncio.\n\n"
        "`Client` is the same for plain code; `tests/sdk/write_client.py` generates it from this module.": "`Client`: "
        "submit, read and control tasks and schedules, and administer the service, from plain code.",
        "The client for asyncio code: `async with AsyncClient() as client`.\n\n    It may be used in several event "
        "loops, one after the other or at the same time, and on both sides of a fork.\n    ": "The client for plain "
        "code. Safe to share between threads, and between a process and its forked children.",
    },
}


def make(module: str) -> str:
    """The source of `sync_MODULE.py`."""
    text = replace_texts(module, (FOLDER / f"async_{module}.py").read_text("utf-8"))
    for pattern, new in _WORDS:
        text = re.sub(pattern, new, text)
    text = f"# Made by tests/sdk/write_client.py of async_{module}.py: change that, then `make client`.\n{text}"
    name = f"{FOLDER}/sync_{module}.py"
    tidied = _ruff(["check", "--fix", "--unsafe-fixes", "--select", "I,UP028,C4", "--quiet"], name, text)
    return _ruff(["format", "--quiet"], name, tidied)


def replace_texts(module: str, text: str) -> str:
    """Replace docstrings about the asyncio client with those about the plain one."""
    for old, new in _TEXTS.get(module, {}).items():
        if text.count(old) != 1:
            raise ValueError(f"async_{module}.py does not say once: {old}")
        text = text.replace(old, new)
    return text


def _ruff(command: list[str], name: str, text: str) -> str:
    asked = [sys.executable, "-m", "ruff", *command, "--stdin-filename", name, "-"]
    return subprocess.run(asked, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    for module in MODULES:
        (FOLDER / f"sync_{module}.py").write_text(make(module), "utf-8")


if __name__ == "__main__":
    main()
