"""`make quick` lints, and runs tests of every stage of the compiler and of what runs its programs."""

from pathlib import Path

from tests.make_commands import make_commands

ROOT = Path(__file__).resolve().parents[1]


def test_quick_lints_and_tests_every_stage():
    *lint, tests = make_commands("quick")
    assert lint == [".venv/bin/ruff format --check .", ".venv/bin/ruff check .", ".venv/bin/lint-imports"]
    paths = [word for word in tests.split() if word.startswith("tests/")]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    stages = [path.parent.name for path in (ROOT / "shardwise/compiler").glob("*/__init__.py")]
    assert {"trace", "partition", "lower"} <= set(stages)
    folders = [*(f"compiler/{stage}" for stage in stages), "processes", "runtime", "api"]
    assert [folder for folder in folders if not any(f"{path}/".startswith(f"tests/{folder}/") for path in paths)] == []
    assert "tests/compiler/test_pipeline.py" in paths
