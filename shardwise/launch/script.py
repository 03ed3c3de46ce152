"""Runs a script or a module in this process, with Shardwise as `jax`."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from shardwise.jax_modules.install import as_jax


def run_script(script: str, arguments: Sequence[str], is_module: bool) -> None:
    """Run a script or module as `__main__`, in which `import jax` is Shardwise.

    Args:
        script: the script, or the module.
        arguments: its arguments.
        is_module: whether it is a module, as with `python -m`.
    """
    as_jax()
    sys.argv = [script, *arguments]
    if is_module:
        sys.path[0] = ""
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(script).resolve().parent)
        runpy.run_path(script, run_name="__main__")
