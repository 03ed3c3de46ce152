"""The hooks of pre-commit run the checks of the Makefile, with the versions of ruff and mypy in pyproject.toml."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tests.make_commands import make_commands

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
(REPOSITORY,) = CONFIGURATION["repos"]
HOOKS = {hook["id"]: hook for hook in REPOSITORY["hooks"]}


def test_hooks_are_local_so_that_no_second_version_is_installed():
    assert REPOSITORY["repo"] == "local"
    assert {hook["language"] for hook in HOOKS.values()} == {"system"}


def test_hooks_run_all_linters_in_the_environment_of_the_makefile():
    commands = [command for hook in HOOKS.values() for command in make_commands(hook["entry"].removeprefix("make "))]
    assert set(commands) == {
        ".venv/bin/ruff format --check .",
        ".venv/bin/ruff check .",
        ".venv/bin/mypy",
        ".venv/bin/lint-imports",
    }


@pytest.mark.parametrize("tool", ["ruff", "mypy"])
def test_environment_has_the_version_of_pyproject(tool):
    check = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["check"]
    (bound,) = [found[1] for requirement in check if (found := re.fullmatch(rf"{tool}==([\d.]+)\.\*", requirement))]
    assert f"{version(tool)}.".startswith(f"{bound}.")


def test_every_stage_of_a_hook_is_installed():
    stages = {stage for hook in HOOKS.values() for stage in hook.get("stages", ["pre-commit"])}
    assert stages == set(CONFIGURATION["default_install_hook_types"])
