"""The rules of CONTRIBUTING.md that a program can check; each failure says where, and what to do."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "duetime"
TESTS = ROOT / "tests"
#: How SQL begins.  "DELETE" alone is a method of HTTP.
_SQL = re.compile(
    r"\s*(?:(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|MERGE|WITH|VALUES|SET|RESET|SHOW|DECLARE|FETCH|COPY|CALL|DO"
    r"|CREATE|ALTER|DROP|TRUNCATE|COMMENT ON|GRANT|REVOKE|LOCK|VACUUM|ANALYZE|REINDEX|EXPLAIN|LISTEN|UNLISTEN|NOTIFY"
    r"|PREPARE|EXECUTE|DEALLOCATE|DISCARD|SAVEPOINT|RELEASE)\s|(?:BEGIN|COMMIT|ROLLBACK|ABORT|START TRANSACTION)\b)"
)
#: Where SQL stands in a module all the same, and why.
SQL_IN_PYTHON = {
    "outbox.py": "runs on the producer's own connection: each driver marks parameters in its own way",
    "sdk/once.py": "as outbox.py",
}
#: Where values have no type that we could name: JSON, other packages, what users hand in.
ANY_TYPE = (
    *("api/", "cli/", "sdk/", "outbox.py", "watchdog.py"),
    *(
        "model/flow.py",
        "model/payload_schema.py",
        "model/schema_parts.py",
        "model/schema_weight.py",
        "model/template.py",
    ),
)
MOST_LINES = 400
#: Modules that are longer and have no seam yet along which they come apart.  None may be added.
LONG_MODULES = {
    "api/schedules/handlers.py",
    "api/tasks/handlers.py",
    "api/tasks/validation.py",
    "database/embedded.py",
    "executor/executor.py",
    "lifecycle/holders/holders.py",
    "lifecycle/schedules/changes.py",
    "lifecycle/submission/flow.py",
    "model/breaker.py",
    "parts.py",
    "scheduler/core.py",
    "scheduler/firing.py",
    "scheduler/gating.py",
    "scheduler/limits.py",
}
#: Tests that sleep for a fixed time, and what no condition could tell them.
SLEEPING_TESTS = {
    "test_garbage_behind_a_long_poll_is_answered_after_it": "that what was sent first was read by itself",
    "test_a_poll_ends_with_its_connection_although_something_came_behind_it": "as above",
    "test_nothing_expires_after_the_close": "that nothing happens",
    "test_the_hold_outlasts_a_database_that_is_away": "that nothing happens",
    "test_a_worker_that_waits_for_the_server_can_be_stopped": "that it waits",
    "test_a_server_that_is_away_loses_no_report": "that it is away for a while",
    "test_a_process_that_was_stopped_blames_nobody": "that the process stood still",
}
#: Tests that replace a function of ours.  None may be added: hand in a clock, a double of the other side, or force the
#: race with real parts.
REPLACING_FILES = {
    "admin/test_wrong_keys.py",
    "api/limits/test_breakers.py",
    "api/server/test_express.py",
    "api/server/test_unread.py",
    "api/tenancy/test_key_networks.py",
    "api/tenancy/test_key_uses.py",
    "cluster/test_mesh.py",
    "lifecycle/holders/test_holder_names.py",
    "lifecycle/submission/test_sharing_commits.py",
    "scheduler/test_firing_wakes.py",
    "scheduler/test_gating.py",
    "scheduler/test_sharing.py",
}
DOCS_WIDTH = 120


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Every module of the package, by its place in it."""
    files = sorted(PACKAGE.rglob("*.py"))
    return [(str(file.relative_to(PACKAGE)), ast.parse(file.read_text("utf-8"))) for file in files]


def texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """The strings of a module that are not documentation."""
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node


def test_sql_lies_in_files_of_its_own() -> None:
    found = [(place, node.lineno) for place, tree in modules() for node in texts(tree) if _SQL.match(str(node.value))]

    surplus = [f"{place}:{line}" for place, line in found if place not in SQL_IN_PYTHON]
    assert surplus == [], "move the statement into a .sql file beside the module"
    assert SQL_IN_PYTHON.keys() <= {place for place, _ in found}, "take what holds no SQL any more from the list"


def test_the_documented_layers_are_those_that_import_linter_checks() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = (ROOT / "docs" / "architecture.md").read_text()
    documented = re.search(r"^## Layers\n+```\n(.*?)```", page, re.MULTILINE | re.DOTALL)

    assert documented is not None, "docs/architecture.md: the section Layers has to begin with a block of the layers"
    assert " ".join(documented[1].split()) == " > ".join(layers), (
        "docs/architecture.md: write the layers as pyproject.toml has them"
    )


def test_the_paths_of_the_architecture_exist() -> None:
    """A path from the package on; a name alone belongs to the folder that was named before, and may stand anywhere."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    files = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*") if file.suffix in (".py", ".sql")}
    names = {Path(file).name for file in files}
    folders = {str(parent) for file in files for parent in Path(file).parents}
    written = re.findall(r"`([\w/]+(?:/|\.py|\.sql))`", page)
    drawn = [path for block in re.findall(r"^```\n(.*?)^```", page, re.M | re.S) for path in _DRAWN.findall(block)]

    missing = [path for path in written if path not in files | names and path.rstrip("/") not in folders]
    missing += [path for path in drawn if path not in folders and f"{path}.py" not in files]

    assert len(written) > 50
    assert missing == []


def test_the_paths_on_other_pages_exist() -> None:
    """Those with a folder of the package, the tests or the benchmarks."""
    wrong = []
    for page in _pages():
        for path in re.findall(r"`(?:src/duetime/|duetime/)?([\w/]+/[\w.]+\.(?:py|sql))`", page.read_text("utf-8")):
            top = path.split("/")[0]
            if (PACKAGE / top).is_dir():
                exists = (PACKAGE / path).exists()
            else:
                exists = (ROOT / path).exists() or not (ROOT / top).is_dir()
            if not exists:
                wrong.append(f"{_name(page)}: {path}")

    assert wrong == []


#: `scheduler/feed` in a drawing; not a path of the API, which begins with a slash.
_DRAWN = re.compile(r"(?<![/\w])(?:api|cluster|executor|lifecycle|model|scheduler|sdk)(?:/\w+)+")


def test_the_code_uses_the_words_of_the_glossary() -> None:
    glossary = (ROOT / "docs" / "concepts.md").read_text("utf-8").partition("## Internal words")[2]
    words = [word for row in re.findall(r"^\| ([^|]+) \|", glossary, re.M)[2:] for word in row.split(", ")]
    code = " ".join(file.read_text("utf-8").lower() for file in PACKAGE.rglob("*.py"))

    unused = [word for word in words if not re.search(rf"(?<![a-z]){word.replace('-', '[-_ ]?')}", code)]

    assert len(words) > 20
    assert unused == [], "take it from the glossary"


def test_every_module_says_what_it_is_for() -> None:
    silent = [place for place, tree in modules() if tree.body and ast.get_docstring(tree) is None]

    assert silent == [], "begin the module with a docstring: what it is for, and what must hold"


def test_no_type_is_ignored() -> None:
    ignored = [
        f"{file.relative_to(PACKAGE)}:{number}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if re.search(r"#\s*type:\s*ignore|#\s*mypy:", line)
    ]

    assert ignored == [], "say the type, with `cast` where another package is wrong about it"


def test_any_is_for_the_edges() -> None:
    found = {
        place for place, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any"
    }

    assert {place for place in found if not place.startswith(ANY_TYPE)} == set(), "say the type"


def test_modules_are_short() -> None:
    lines = {place: len((PACKAGE / place).read_text("utf-8").splitlines()) for place, _ in modules()}
    long = {place for place, count in lines.items() if count > MOST_LINES}

    assert long - LONG_MODULES == set(), f"more than {MOST_LINES} lines: split it by noun or verb"
    assert LONG_MODULES - long == set(), "not long any more: take it from the list"


def test_there_is_one_token_bucket() -> None:
    """Nothing else adds the tokens that a rate gives in some time."""
    filling = re.compile(r"tokens \+ .*\b_?(rate|per_second) \*", re.IGNORECASE)
    others = {
        f"{place}:{node.lineno}"
        for place, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and filling.search(ast.unparse(node))
        if place != "model/token_bucket.py"
    }

    assert others == set(), "use model/token_bucket.py"


def test_tests_wait_for_what_they_want_to_see() -> None:
    """A loop may pause before it looks again, and slow work or a slow client may sleep; a test may not."""
    sleeping = {
        function.name
        for file in sorted(TESTS.rglob("test_*.py"))
        for function in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_")
        if any(_sleeps(statement) for statement in function.body)
    }

    assert sleeping - SLEEPING_TESTS.keys() == set(), "wait for the condition in place of a time"
    assert SLEEPING_TESTS.keys() - sleeping == set(), "does not sleep any more: take it from the list"


def _sleeps(node: ast.AST) -> bool:
    """Whether it sleeps for a time outside of loops and of functions of its own."""
    if isinstance(node, ast.While | ast.For | ast.AsyncFor | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("asyncio.sleep", "time.sleep"):
        return not (isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    return any(_sleeps(child) for child in ast.iter_child_nodes(node))


def test_no_test_is_left_out() -> None:
    skipping = re.compile(r"pytest\.(skip|importorskip|xfail)\(|mark\.(skip|skipif|xfail)\b")
    files = {
        str(file.relative_to(TESTS))
        for file in TESTS.rglob("*.py")
        if file != Path(__file__) and skipping.search(file.read_text("utf-8"))
    }

    # A call of the system that only Linux has.
    assert files == {"database/test_writeback.py"}


def test_tests_replace_nothing_of_ours() -> None:
    """They may lower a limit, and stand in for the standard library and the other side."""
    replacing = set()
    for file in sorted(TESTS.rglob("*.py")):
        text = file.read_text("utf-8")
        assert "unittest" + ".mock" not in text, f"{file.name}: use real parts"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "monkeypatch.setattr" and not _is_limit(node):
                replacing.add(str(file.relative_to(TESTS)))

    assert replacing - REPLACING_FILES == set(), "hand in a clock or a double of the other side, or use real parts"
    assert REPLACING_FILES - replacing == set(), "replaces nothing any more: take it from the list"


def _is_limit(call: ast.Call) -> bool:
    """Whether a patch gives a constant or a number another value, or is about another package."""
    *target, value = call.args
    path = ast.unparse(target[0]).strip("'") + ("." + str(ast.literal_eval(target[1])) if len(target) > 1 else "")
    owner, _, name = path.rpartition(".")
    return (
        owner in ("sys", "loop")
        or bool(re.fullmatch(r"_?[A-Z0-9_]+", name))
        or isinstance(value, ast.BinOp | ast.Constant)
    )


def test_the_fixtures_of_the_guide_exist() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = guide[guide.index("## Fixtures") : guide.index("## Migrations")]
    named = set(re.findall(r"`(\w+)`(?=[^|\n]*\|[^|\n]+\|$)", section, re.MULTILINE))
    made = {
        node.name
        for node in ast.walk(ast.parse((TESTS / "conftest.py").read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert named
    assert named - made == set()


#: Written by programs.
GENERATED_PAGES = {"docs/benchmarks.md", "docs/fairness.md"}


def _pages() -> list[Path]:
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [page for page in [*top, *sorted((ROOT / "docs").rglob("*.md"))] if _name(page) not in GENERATED_PAGES]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", _pages(), ids=_name)
def test_docs_are_wrapped(page: Path) -> None:
    """Tables, headings, code and generated parts are as wide as they are."""
    text = re.sub(r"^```.*?^```$|<!-- .*?<!-- [^>]*-->", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    wide = [line for line in text.splitlines() if len(line) > DOCS_WIDTH and not line.startswith(("|", "#"))]

    assert wide == [], f"wrap at {DOCS_WIDTH} characters"


@pytest.mark.parametrize("page", _pages(), ids=_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _without_code(page)):
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        if "://" not in link and (
            not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target))
        ):
            wrong.append(link)

    assert wrong == []


def _without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The names of the headings, as Markdown makes them."""
    headings = re.findall(r"^#+ (.*)$", _without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-") for heading in headings}
