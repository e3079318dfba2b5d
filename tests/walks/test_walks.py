"""The tables of the walks in the architecture say which files the work really goes through."""

import re

from walks.walker import walking
from walks.write_walks import PAGE

_TABLE = re.compile(r"^\*\*(.+?)\*\*: .*?\n\n((?:^\|.*\n)+)", re.MULTILINE)


async def test_the_architecture_shows_the_walks_as_they_are(database_url: str) -> None:
    documented = {name: _files_of(rows) for name, rows in _TABLE.findall(PAGE.read_text("utf-8"))}

    async with walking(database_url) as walker:
        idle = await walker.trace_idle()
        walks = await walker.walk_all()

    assert documented.keys() == {walk.name for walk in walks}
    for walk in walks:
        gone = documented[walk.name] - {step.file for step in walk.possible}
        new = set(walk.files) - documented[walk.name] - idle
        assert (gone, new) == (set(), set()), f"{walk.name}: run python tests/walks/write_walks.py"


def _files_of(rows: str) -> set[str]:
    files = set()
    for row in rows.splitlines()[2:]:
        folder, modules = (cell.strip() for cell in row.strip("|").split("|"))
        files |= {f"{name}.py" if folder == "duetime" else f"{folder}/{name}.py" for name in modules.split(", ")}
    return files
