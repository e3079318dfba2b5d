"""`duetime cluster`, on a real node."""

from cli.conftest import Run


def test_a_single_node_feeds_all_shards(duetime: Run) -> None:
    listed = duetime("cluster", "--json").json

    [node] = listed["items"]
    assert (node["shards"], node["answers"], listed["next"]) == (256, True, None)
    assert node["name"] in duetime("cluster").out
