"""The commands that a target of the Makefile runs, without running them."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Tests may run under make, whose options and variables would change the output of this one.
_VARIABLES_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "WORKERS")


def make_commands(target: str) -> list[str]:
    """Return the commands of a target and of those that it depends on, in order, as if its environments were installed.

    Raises:
        AssertionError: if the Makefile has no such target.
    """
    installed = [word for path in (".venv", ".venv-nojax") for word in ("--old-file", f"{path}/.checks-installed")]
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES_OF_MAKE}
    run = subprocess.run(
        ["make", "--dry-run", *installed, target],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()
