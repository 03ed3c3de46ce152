"""Run the CUDA library as any other PJRT plugin, under several names and by each way to register one.

    python -m benchmarks.gpu_plugin [--only NAME ...]

Each scenario is a process of its own, in an environment with fake installed packages. It runs programs on the platform
and compares them with NumPy. The exit status is 1 if a scenario fails, and 2 if the CUDA plugin is not installed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from shardwise.runtime.plugins.discovery import VARIABLE
from shardwise.runtime.plugins.registry import plugins

TIME = 300  # seconds per scenario

MODULE = """
    from jax._src.lib import xla_client
    import jax._src.xla_bridge as xb

    def initialize():
        options = xla_client.generate_pjrt_gpu_plugin_options()
        xb.register_plugin({name!r}, priority={priority}, library_path={library!r}, options=options)
"""


@final
@dataclass(frozen=True)
class Scenario:
    """A way to register the CUDA library, and the expected outcome.

    Attributes:
        name: its name.
        prepare: writes packages into a folder, given the CUDA library, and returns environment variables.
        platforms: the platforms in use, in order.
        arguments: the arguments of the worker.
        warning: a part of a warning that must be printed; without it, there must be no warning.
        error: a part of the error with which the process must end; empty if the programs must run.
        has_jax: whether modules of the name `jax` are in the process afterwards.
    """

    name: str
    prepare: Callable[[Path, str], dict[str, str]]
    platforms: tuple[str, ...]
    arguments: tuple[str, ...] = ("",)
    warning: str = ""
    error: str = ""
    has_jax: bool = False


def entry_point(name: str, priority: int, library: str | None = None) -> Callable[[Path, str], dict[str, str]]:
    """Install a distribution whose entry point registers a library, by default CUDA's, through jax's function."""

    def prepare(site: Path, cuda: str) -> dict[str, str]:
        package = f"maker_of_{name}"
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[jax_plugins]\n{name} = {package}\n")
        code = MODULE.format(name=name, priority=priority, library=library or cuda)
        (site / f"{package}.py").write_text(textwrap.dedent(code))
        return {}

    return prepare


def namespace_module(name: str, priority: int) -> Callable[[Path, str], dict[str, str]]:
    """Install a module of the namespace package `jax_plugins` that registers the CUDA library."""

    def prepare(site: Path, cuda: str) -> dict[str, str]:
        (site / "jax_plugins").mkdir()
        code = MODULE.format(name=name, priority=priority, library=cuda)
        (site / "jax_plugins" / f"{name}.py").write_text(textwrap.dedent(code))
        return {}

    return prepare


def by_variable(site: Path, cuda: str) -> dict[str, str]:
    """Name the CUDA library in the environment variable, and request its platform."""
    return {VARIABLE: f"by_path:{cuda}", "JAX_PLATFORMS": "by_path"}


def by_json(site: Path, cuda: str) -> dict[str, str]:
    """Name a file with the path of the CUDA library and an option."""
    path = site / "options.json"
    path.write_text(json.dumps({"library_path": cuda, "create_options": {"memory_fraction": 0.1}}))
    return {VARIABLE: f"by_json:{path}", "JAX_PLATFORMS": "by_json"}


def two_names(site: Path, cuda: str) -> dict[str, str]:
    """Leave the installed plugin the default, and use the same library under a second name."""
    return {VARIABLE: f"second:{cuda}"}


def broken_variable(site: Path, cuda: str) -> dict[str, str]:
    """Name a file that is no library, and request its platform."""
    path = site / "broken.so"
    path.write_text("not a library, although it is as long as the header of one would be, and somewhat longer")
    return {VARIABLE: f"broken:{path}", "JAX_PLATFORMS": "broken"}


def nothing(site: Path, cuda: str) -> dict[str, str]:
    """Change nothing."""
    return {}


SCENARIOS = (
    Scenario("installed plugin", nothing, ("cuda",)),
    Scenario("entry point", entry_point("renamed", 700), ("renamed",)),
    Scenario("entry point of a lower priority", entry_point("renamed", 100), ("cuda", "renamed"), ("renamed",)),
    Scenario("entry point under as_jax", entry_point("renamed", 700), ("renamed",), ("", "--as-jax"), has_jax=True),
    Scenario("namespace module", namespace_module("renamed", 700), ("renamed",)),
    Scenario("variable", by_variable, ("by_path",)),
    Scenario("variable with a JSON file", by_json, ("by_json",)),
    Scenario("two names of one library", two_names, ("cuda", "second"), ("second",)),
    Scenario(
        "broken entry point",
        entry_point("broken", 900, "/nowhere/broken.so"),
        ("cuda",),
        warning="the PJRT plugin 'broken' (/nowhere/broken.so, from maker_of_broken, the entry point 'broken'",
    ),
    Scenario("broken and requested", broken_variable, (), error="PlatformError: the PJRT plugin 'broken'"),
)


def run(scenario: Scenario, cuda: str) -> list[str]:
    """Run a scenario, print its checks, and return its problems."""
    with tempfile.TemporaryDirectory() as folder:
        variables = scenario.prepare(Path(folder), cuda)
        set_here = (VARIABLE, "JAX_PLATFORMS", "SHARDWISE_PLATFORMS")
        kept = {name: value for name, value in os.environ.items() if name not in set_here}
        environment = {
            **kept,
            "PYTHONPATH": os.pathsep.join([folder, str(Path(__file__).resolve().parents[1]), *sys.path]),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # one process has two clients on one GPU
            **variables,
        }
        command = [sys.executable, "-m", "benchmarks.gpu_plugin_worker", *scenario.arguments]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, timeout=TIME, check=False, env=environment
            )
        except subprocess.TimeoutExpired as error:
            return [f"no end within {TIME} s", *_indented(str(error.stdout)), *_indented(str(error.stderr))]
    problems = outcome_problems(scenario, process.returncode, process.stdout, process.stderr)
    if problems:
        problems += ["variables: " + json.dumps(variables), f"exit status {process.returncode}, standard error:"]
        problems += _indented(process.stderr[-6000:])
    return problems


def outcome_problems(scenario: Scenario, status: int, out: str, err: str) -> list[str]:
    """Return how the output of a worker differs from what is expected."""
    if scenario.error:
        return [] if status and scenario.error in err else [f"the process must end with {scenario.error!r}"]
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if status or not lines:
        return ["the process failed", *_indented(out)]
    state, *rows = lines
    print(f"    {state['device']}; platforms {state['platforms']}; {state['version']!r}")
    problems = []
    if tuple(state["platforms"]) != scenario.platforms:
        problems.append(f"platforms {state['platforms']}, expected {list(scenario.platforms)}")
    if bool([name for name in state["jax_modules"] if name != "jax._src.sharding_impls"]) != scenario.has_jax:
        problems.append(f"modules of jax in the process: {state['jax_modules']}")
    has_warning = scenario.warning in err if scenario.warning else "UserWarning" not in err
    if not has_warning:
        problems.append(f"expected the warning {scenario.warning!r}" if scenario.warning else "an unexpected warning")
    for row in rows:
        print(f"    {row['check']:10} {'ok' if row['ok'] else 'BAD':4} {row['error']}")
        if not row["ok"]:
            problems += [f"check {row['check']}: {row['error']}", *_indented(row.get("traceback", ""))]
    return problems


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def environment_report() -> dict[str, Any]:
    """Return the plugins that are installed here."""
    return {plugin.name: f"{plugin.library} (priority {plugin.priority})" for plugin in plugins.all()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="the names of scenarios to run")
    options = parser.parse_args()
    print(f"Installed plugins: {environment_report()}")
    cuda = plugins.get("cuda")
    if cuda is None:
        print("The CUDA plugin is not installed: nothing was run.")
        return 2
    failed = []
    for scenario in SCENARIOS:
        if options.only and scenario.name not in options.only:
            continue
        print(f"{scenario.name}:", flush=True)
        problems = run(scenario, cuda.library)
        print("\n".join(f"  {problem}" for problem in problems) if problems else "  ok", flush=True)
        failed += [scenario.name] if problems else []
    print(f"failed: {', '.join(failed)}" if failed else "all scenarios are ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
