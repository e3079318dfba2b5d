"""Write the tables of the five walks into docs/architecture.md: `python tests/walks/write_walks.py [--calls]`.

`--calls` prints every function instead, and writes nothing.
"""

import asyncio
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import services
from walks.tracing import Walk
from walks.walker import walking

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
_BLOCK = re.compile(r"(?<=<!-- walks -->\n).*?(?=<!-- /walks -->)", re.DOTALL)


def write(tables: str) -> None:
    PAGE.write_text(_BLOCK.sub(lambda _: f"\n{tables}\n\n", PAGE.read_text("utf-8")), "utf-8")


def trace_all() -> list[Walk]:
    with services.private_folder() as folder:
        embedded = services.start_embedded(folder / "embedded")
        try:
            server = services.Server.at(embedded.dsn_of("postgres"))
            server.make_template()
            walks = asyncio.run(_walk(server.url_of(server.make_database())))
            server.admin.close()
        finally:
            asyncio.run(embedded.stop())
    return walks


async def _walk(database_url: str) -> list[Walk]:
    async with walking(database_url) as walker:
        return await walker.walk_all()


def main() -> None:
    walks = trace_all()
    if "--calls" in sys.argv[1:]:
        print("\n\n".join(walk.list_calls() for walk in walks))
    else:
        write("\n\n".join(walk.table() for walk in walks))


if __name__ == "__main__":
    main()
