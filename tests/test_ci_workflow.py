"""The workflow of GitHub runs `.ci/run`, and with it all checks of the Makefile, with every supported Python."""

import os
import re
import tomllib
from pathlib import Path

import yaml

from shardwise.version import NEWEST_JAXLIB
from tests.make_commands import make_commands

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
(JOB,) = WORKFLOW["jobs"].values()
MAKEFILE = (ROOT / "Makefile").read_text()


def test_workflow_runs_for_every_change():
    assert WORKFLOW[True] == {"push": {"branches": ["main"]}, "pull_request": None}  # YAML 1.1 reads `on` as true


def test_every_supported_python_is_tested():
    versions = JOB["strategy"]["matrix"]["python"]
    assert versions == [".".join(map(str, version)) for version in NEWEST_JAXLIB]
    (setup,) = [step for step in JOB["steps"] if step.get("uses", "").startswith("actions/setup-python@")]
    assert setup["with"]["python-version"] == "${{ matrix.python }}"
    assert (ROOT / setup["with"]["cache-dependency-path"]).is_file()


def test_the_only_command_is_ci_run():
    (command,) = [step for step in JOB["steps"] if "run" in step]
    assert command["run"] == ".ci/run"
    assert os.access(ROOT / command["run"], os.X_OK)
    for variable in command["env"]:
        assert re.search(rf"^{variable} \?= ", MAKEFILE, re.MULTILINE), f"the Makefile does not read {variable}"


def test_ci_run_runs_every_check():
    script = (ROOT / ".ci/run").read_text()
    (target,) = re.findall(r"^exec make (\w+)$", script, re.MULTILINE)
    commands = make_commands(target)
    tools = {Path(word).name for command in commands for word in command.split() if "/bin/" in word}
    assert {"ruff", "mypy", "lint-imports", "pytest"} <= tools
    check = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["check"]
    packages = {re.match(r"[\w-]+", requirement)[0] for requirement in check}
    assert tools - packages == {"lint-imports", "python"}  # the first one is of import-linter


def test_actions_have_a_version():
    actions = [step["uses"] for step in JOB["steps"] if "uses" in step]
    assert actions and all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in actions)
