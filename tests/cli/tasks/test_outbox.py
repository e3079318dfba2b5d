"""`duetime outbox`, on a real node."""

import json

import psycopg

from cli.conftest import Run
from faults.processes import embedded_url
from nodes import NodeProcess
from services import wait_until


def test_what_the_outbox_refused_is_listed_judged_again_and_thrown_away(
    duetime: Run, node: NodeProcess, name: str
) -> None:
    with psycopg.connect(embedded_url(node)) as connection:
        body = json.dumps({"type": name, "priority": "urgent"})
        first, second = (
            connection.execute("SELECT duetime.enqueue('default', %s)", (body,)).fetchone() for _ in range(2)
        )
    assert first is not None
    assert second is not None
    number, other = str(first[0]), str(second[0])
    wait_until(lambda: duetime("outbox", "show", other).out.startswith(f"Number {other}  refused"))

    listed = duetime("outbox", "list")
    assert number in listed.out
    assert name in listed.out
    assert "priority" in duetime("outbox", "show", number).out
    assert [each["id"] for each in duetime("outbox", "list", "--json").json["items"]] == [int(number), int(other)]

    assert duetime("outbox", "delete", number).out == "Deleted 1 task.\n"
    assert duetime("outbox", "show", number).code == 1
    assert duetime("outbox", "retry", "--all").out == "Retried 1 task.\n"
    wait_until(lambda: duetime("outbox", "show", other, "--json").json["state"] == "refused")
    assert duetime("outbox", "delete", "--all", "--json").json == {"deleted": [int(other)]}

    assert duetime("outbox", "retry").code == 2
    assert duetime("outbox", "retry", "1", "--all").code == 2
