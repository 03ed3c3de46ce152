"""What all tests share: a mesh of 8 virtual devices, and a compiler that spends less time on each small program."""

import os
import zlib

# Thousands of small programs are compiled: LLVM's optimiser would take most of the time. `make demo` and the
# benchmarks run with it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()

import pytest

import shardwise as sw


@pytest.fixture(scope="session")
def mesh():
    """4 × 2, axes `data` and `model`."""
    return sw.make_mesh((4, 2), ("data", "model"))


TABLES = {"numpy", "lax", "nn", "random", "scipy"}  # folders of tests that go through tables of functions


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of the cases of a test that goes through a table, every run takes the first and a third of the others. The rest
    are for `make slow`."""
    seen = set()
    for item in items:
        if item.path.parent.name not in TABLES or not hasattr(item, "callspec"):
            continue
        test = (item.path, item.originalname)
        if test in seen and zlib.crc32(item.nodeid.encode()) % 3:
            item.add_marker(pytest.mark.slow)
        seen.add(test)
