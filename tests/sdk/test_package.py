import subprocess
import sys

import duetime


def test_importing_duetime_loads_nothing_else() -> None:
    program = "import duetime, sys; print([n for n in ('httptools', 'msgspec', 'urllib3') if n in sys.modules])"

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"


def test_every_name_of_the_sdk_can_be_imported_from_duetime() -> None:
    for name in (
        "Client",
        "AsyncClient",
        "Worker",
        "Retry",
        "Permanent",
        "Snooze",
        "Context",
        "once",
        "Submission",
        "Schedule",
        "Throttle",
    ):
        assert getattr(duetime, name).__name__ == name
        assert name in dir(duetime)


def test_the_sdk_imports_nothing_of_the_server() -> None:
    program = (
        "import sys, duetime.sdk.worker.worker, duetime.sdk.worker.run\n"
        "import duetime.sdk.client.sync_client, duetime.sdk.client.async_client\n"
        "own = ('duetime.sdk', 'duetime.http1')\n"
        "print(sorted(n for n in sys.modules if n.startswith('duetime.') and not n.startswith(own)))\n"
        "print([n for n in ('psycopg', 'asyncpg', 'sqlalchemy') if n in sys.modules])"
    )

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.split("\n")[:2] == ["[]", "[]"]
