"""Run tests with every supported minor version of jaxlib, without jax: `make test-versions`.

python tests/jaxlib_versions.py [PYTEST_ARGUMENT ...]

Each pair of Python and jaxlib has an environment of its own, such as `.venv-3.12-jaxlib-0.11.2`. A pair whose Python is
not installed is skipped, and the summary says so.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[1]

# The oldest and the newest supported version, and those between them, each with the oldest Python that has its wheels
# or a newer one, so that every supported minor version of Python is tested too.
PAIRS = (("3.11", "0.10.2"), ("3.12", "0.11.2"), ("3.13", "0.12.0.1"))


def find_python(version: str) -> str | None:
    """Return a command that runs Python `version`, such as "3.12"; None if it is not installed.

    The command is `python3.12` of the PATH, or else that of pyenv: its shim on the PATH fails unless the version is
    selected.
    """
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(pyenv.glob(f"versions/{version}*/bin/{name}"))
    for command in filter(None, (which(name), *map(str, reversed(installed)))):
        run = subprocess.run([command, "-c", ""], capture_output=True, check=False)
        if run.returncode == 0:
            return command
    return None


def environment(command: str, python: str, jaxlib: str) -> Path:
    """Return the folder of the environment for a pair, brought up to date if pyproject.toml is newer."""
    folder = ROOT / f".venv-{python}-jaxlib-{jaxlib}"
    stamp, project = folder / ".installed", ROOT / "pyproject.toml"
    if not stamp.exists() or stamp.stat().st_mtime < project.stat().st_mtime:
        print(f"Installing into {folder.name} (the first time, this takes a minute or two) ...", flush=True)
        subprocess.run([command, "-m", "venv", folder], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [folder / "bin/python", *install, "--editable", f"{ROOT}[check]", f"jaxlib=={jaxlib}"], check=True
        )
        stamp.touch()
    return folder


def run_pair(command: str, python: str, jaxlib: str, arguments: Sequence[str]) -> str:
    """Run pytest in the environment of a pair, and return "passed" or how it failed."""
    interpreter = environment(command, python, jaxlib) / "bin/python"
    print(f"Python {python} with jaxlib {jaxlib}:", flush=True)
    check = (
        "from importlib.metadata import version; from importlib.util import find_spec; "
        f"assert version('jaxlib') == {jaxlib!r}, version('jaxlib'); assert not find_spec('jax'), 'jax is importable'"
    )
    for step in (["-c", check], ["-m", "pytest", *arguments]):
        code = subprocess.run([interpreter, *step], cwd=ROOT, check=False).returncode
        if code:
            return f"failed with exit code {code}"
    return "passed"


def main(arguments: Sequence[str]) -> int:
    """Run all pairs, print a summary, and return the exit code: 0 if none failed and at least one ran."""
    outcomes = {}
    for python, jaxlib in PAIRS:
        command = find_python(python)
        outcomes[python, jaxlib] = (
            run_pair(command, python, jaxlib, arguments)
            if command is not None
            else f"SKIPPED: there is no python{python} on the PATH or in pyenv"
        )
    for (python, jaxlib), outcome in outcomes.items():
        print(f"Python {python} with jaxlib {jaxlib}: {outcome}")
    passed = [outcome for outcome in outcomes.values() if outcome == "passed"]
    failed = [outcome for outcome in outcomes.values() if outcome.startswith("failed")]
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
