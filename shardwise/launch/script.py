"""Run a script or a module in this process, with Shardwise or JAX itself as `jax`."""

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from shardwise.base.config import config
from shardwise.jax_modules.install import as_jax


def run_script(script: str, arguments: Sequence[str], is_module: bool, exact: bool = False) -> None:
    """Run a script or module as `__main__`, in which `import jax` is Shardwise.

    Args:
        script: the script, or the module.
        arguments: its arguments.
        is_module: whether it is a module, as with `python -m`.
        exact: whether the setting `jax_compatibility` is "exact".

    Raises:
        SystemExit: if there is no such module, or if the script raises it.
    """
    if exact:
        config.update("jax_compatibility", "exact")
    as_jax()
    if not is_module:
        run_as_main(script, arguments)
        return
    sys.argv = [script, *arguments]
    sys.path[0] = ""
    if not _exists(script):
        print(f"shardwise run: there is no module {script!r}", file=sys.stderr)
        sys.exit(2)
    runpy.run_module(script, run_name="__main__", alter_sys=True)


def run_as_main(script: str, arguments: Sequence[str]) -> None:
    """Run a script as `__main__`, as `python` does: with its own arguments, and its folder first in `sys.path`."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


@contextmanager
def summary_after_script(print_summary: Callable[[], None]) -> Iterator[None]:
    """Print a summary after the script that runs in the block. If it ends with `sys.exit`, its exit code is kept."""
    try:
        yield
    except SystemExit:
        print_summary()
        raise
    print_summary()


def _exists(module: str) -> bool:
    """Return whether a module exists, which may be in a package. Errors in the package are raised."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        return False
    except ValueError:  # an empty name
        return False
