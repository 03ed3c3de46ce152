"""Settings and fixtures of all tests, and the `table` marker.

`make test` runs the tests without the marker `slow`, `make slow` those with it. Heavy tests have the marker themselves.
A test that is parametrized by a long table has `@pytest.mark.table(default=N)`: its first N cases run by default, in
the order of the table, and the others are marked `slow`.
"""

import gc
import os
import sys
from collections import Counter
from types import SimpleNamespace

# The tests compile thousands of small programs, and LLVM's optimizations would take most of the time. `make demo` and
# the benchmarks run with them.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
os.environ["SHARDWISE_VERIFY_PROGRAMS"] = "true"  # every rewrite and every derivative is verified
os.environ["SHARDWISE_PROGRESS"] = "false"  # with `pytest -s`, standard error may be a terminal
os.environ["JAX_NUM_CPU_DEVICES"] = "8"  # JAX is an oracle for programs on several devices

import hypothesis
import pytest

import shardwise as sw

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy machine is slow; tests assert no times
hypothesis.settings.load_profile("any machine")
gc.disable()  # until all tests are collected, which creates millions of objects and no garbage


@pytest.fixture(scope="session")
def mesh():
    """A 4 × 2 mesh with the axes `data` and `model`."""
    return sw.make_mesh((4, 2), ("data", "model"))


@pytest.fixture
def explicit_mesh():
    """A 4 × 2 mesh with the Explicit axes `X` and `Y`, which is the current mesh during the test."""
    with sw.set_mesh(sw.make_mesh((4, 2), ("X", "Y"), axis_types=sw.sharding.AxisType.Explicit)) as mesh:
        yield mesh


@pytest.fixture
def ipython(monkeypatch):
    """A shell in place of IPython's, which runs cell 3 under the file name `/tmp/ipykernel_1/3.py`.

    `outputs` lists the outputs of the cell, each as a dict from MIME types to representations.
    """
    outputs = []
    cells = {"/tmp/ipykernel_1/3.py": ("Cell", "In[3]")}
    shell = SimpleNamespace(
        execution_count=3,
        compile=SimpleNamespace(format_code_name=cells.get),
        display_pub=SimpleNamespace(publish=outputs.append),
        outputs=outputs,
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return shell


def pytest_addoption(parser):
    parser.addoption(
        "--only-with-jax",
        action="append",
        default=[],
        metavar="PATH",
        help="of the tests under PATH, run only those that compare with jax; may be given several times",
    )


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config, items):
    """Mark the cases of a table after the first `default` ones as slow, and apply `--only-with-jax`."""
    paths = {config.rootpath / path for path in config.getoption("only_with_jax")}
    files = {file for file in {item.path for item in items} if not paths.isdisjoint((file, *file.parents))}
    items[:] = [item for item in items if item.path not in files or item.get_closest_marker("jax")]
    seen = Counter()
    for item in items:
        if (table := item.get_closest_marker("table")) is None:
            continue
        function = item.nodeid.partition("[")[0]
        seen[function] += 1
        if seen[function] > table.kwargs["default"]:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Exempt tests and modules from garbage collection: every full collection would take a second to visit them.

    Collections are rarer than by default, because Hypothesis runs a callback in each.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)
    gc.enable()


def pytest_sessionfinish():
    """Save the coverage of this worker of pytest-xdist, which may be killed before its interpreter ends."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is not None:
        current.save()
