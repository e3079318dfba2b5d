"""Write `schema.sql`, the dump of what all migrations give (`make schema`)."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import services

SCHEMA = Path(__file__).parents[2] / "src" / "duetime" / "database" / "schema.sql"


def main() -> None:
    with services.private_folder() as folder:
        embedded = services.start_embedded(folder / "embedded")
        try:
            server = services.Server.at(embedded.dsn_of("postgres"))
            server.make_template()
            SCHEMA.write_text(services.dump_schema(services.find_pg_dump(), server.url_of(services.BARE_TEMPLATE)))
            server.admin.close()
        finally:
            asyncio.run(embedded.stop())


if __name__ == "__main__":
    main()
