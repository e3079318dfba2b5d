"""Settings: where they come from, what is wrong with them, and that the documentation knows them all."""

from pathlib import Path

import msgspec
import pytest

from duetime.config import Config, read_config
from duetime.errors import UsageError

DOCUMENT = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text("utf-8")


@pytest.mark.parametrize("field", msgspec.structs.fields(Config), ids=lambda field: field.name)
def test_every_setting_is_documented_with_its_default(field: msgspec.structs.FieldInfo) -> None:
    [row] = [line for line in DOCUMENT.splitlines() if line.startswith(f"| `{field.name}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]

    is_given = field.default is not msgspec.NODEFAULT and field.default is not None
    assert cells[1] == (f"`{field.default}`" if is_given else "–")
    assert cells[2] == f"`DUETIME_{field.name.upper()}`"


def test_the_documentation_knows_no_setting_that_there_is_not() -> None:
    documented = {line.split("`")[1] for line in DOCUMENT.splitlines() if line.startswith("| `") and "DUETIME_" in line}

    assert documented - {"DUETIME_URL", "DUETIME_KEY", "DUETIME_LOG_FORMAT"} == {
        field.name for field in msgspec.structs.fields(Config)
    }


def test_the_command_line_wins_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "duetime.toml"
    file.write_text('host = "file"\nport = 1\nlog_level = "error"\n')

    config = read_config({"host": "given", "port": None}, {"DUETIME_HOST": "environment", "DUETIME_PORT": "2"}, file)

    assert (config.host, config.port, config.log_level) == ("given", 2, "error")


def test_networks_in_the_environment_are_a_list() -> None:
    config = read_config({}, {"DUETIME_EGRESS_ALLOW": "10.0.0.0/8,::1/128"})

    assert config.egress_allow == ["10.0.0.0/8", "::1/128"]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"port": "eighty"}, "port"),
        ({"port": "70000"}, "port"),
        ({"log_format": "xml"}, "log_format"),
        ({"log_level": "loud"}, "log_level"),
        ({"egress_allow": ["everything"]}, "egress_allow"),
        ({"database_url": "mysql://x"}, "database_url"),
        ({"retention_days": "0"}, "retention_days"),
        ({"processes": "0"}, "processes"),
        ({"processes": "many"}, "processes"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        read_config(given, {})


def test_a_wrong_value_is_said_without_the_words_of_a_parser() -> None:
    with pytest.raises(UsageError) as wrong:
        read_config({"port": "70000"}, {})

    assert str(wrong.value) == "setting port: expected `int` <= 65535"


def test_an_unknown_setting_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "duetime.toml"
    file.write_text("prot = 80\n")

    with pytest.raises(UsageError, match="prot"):
        read_config({}, {}, file)


@pytest.mark.parametrize("content", [None, b"port = ", b"\xff"])
def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "duetime.toml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(UsageError, match="configuration file"):
        read_config({}, {}, file)


def test_one_name_of_a_format_serves_nodes_and_workers() -> None:
    assert read_config({}, {"DUETIME_LOG_FORMAT": "text"}).log_format == "text"
