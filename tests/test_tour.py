"""docs/tour.md shows every stage of README's example as it is, and its files do not import what the page says."""

import ast
import re

import pytest

from tests.tour import DOCUMENT, ROOT, example_stages, with_stages

PAGE = DOCUMENT.read_text()
ROWS = re.findall(r"^\| `(shardwise/[\w/]+\.py)` \| .* \| (.*) \|$", PAGE, re.MULTILINE)


def test_stages_are_up_to_date():
    stages = example_stages()
    assert with_stages(PAGE, stages) == PAGE, "run `python -m tests.tour`"
    assert re.findall(r"^== (\d+)\. (\w+)$", PAGE, re.MULTILINE) == list(stages)


def test_an_outdated_stage_is_replaced():
    page = "```\n== 1. trace\nold\n\n== 2. inline\n```\n\ntext\n"
    stages = {("1", "trace"): "new", ("2", "inline"): "(unchanged since trace)"}
    expected = "```\n== 1. trace\nnew\n\n== 2. inline\n(unchanged since trace)\n```\n\ntext\n"
    assert with_stages(page, stages) == expected
    with pytest.raises(KeyError):
        with_stages("```\n== 1. tracing\n```\n", stages)


def test_twelve_files_have_a_section_each_in_the_order_of_the_table():
    sections = re.findall(r"^## (\d+)\. .*: `([\w/.]+)`$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in sections] == list(range(1, 13))
    assert [f"shardwise/{path}" for _, path in sections] == [path for path, _ in ROWS]


@pytest.mark.parametrize(("path", "cell"), ROWS, ids=[path for path, _ in ROWS])
def test_files_do_not_import_what_the_table_excludes(path, cell):
    imported = imported_modules(ROOT / path)
    for excluded in cell.split(", "):
        folder, *excepted = re.findall(r"`([\w/]+)`", excluded)
        assert (ROOT / "shardwise" / folder).is_dir() or (ROOT / "shardwise" / f"{folder}.py").is_file()
        inside = {module for module in imported if is_within(module, folder)}
        assert inside <= {f"shardwise.{name.replace('/', '.')}" for name in excepted}


def imported_modules(path):
    """Return the modules that a file imports, for type checkers too."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert any(name.startswith("shardwise.") for name in names)
    return names | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


def is_within(module, folder):
    return f"{module}.".startswith(f"shardwise.{folder.replace('/', '.')}.")


def test_files_that_the_page_names_exist():
    names = re.findall(r"`((?:[\w]+/)*\w+\.(?:py|toml))`", PAGE)
    assert len(names) > 25
    known = {str(file.relative_to(ROOT / "shardwise")) for file in (ROOT / "shardwise").rglob("*.*")}
    suffixes = {name for file in known for name in (file, f"shardwise/{file}", file.rpartition("/")[2])}
    assert [name for name in names if name not in suffixes and name != "mlp.py"] == []
