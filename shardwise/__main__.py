"""The command line: `python -m shardwise run script.py ARGUMENT ...` runs a script with Shardwise as `jax`."""

import runpy
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from shardwise.jax_modules.install import as_jax


def main(arguments: Sequence[str]) -> None:
    """Parse the command line and run the command."""
    parser = ArgumentParser(prog="python -m shardwise", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a script or a module in which `import jax` is Shardwise")
    run.add_argument("-m", dest="is_module", action="store_true", help="run a module, as `python -m` does")
    run.add_argument("script", help="the script, or the module with -m")
    run.add_argument("arguments", nargs=REMAINDER, help="the arguments of the script")
    parsed = parser.parse_args(arguments)
    if not parsed.is_module and not Path(parsed.script).is_file():
        parser.error(f"there is no file {parsed.script}")
    as_jax()
    sys.argv = [parsed.script, *parsed.arguments]
    if parsed.is_module:
        sys.path[0] = ""
        runpy.run_module(parsed.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(parsed.script).resolve().parent)
        runpy.run_path(parsed.script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
