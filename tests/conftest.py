"""What all tests share: a mesh of 8 virtual devices, and a compiler that spends less time on each small program."""

import os
import zlib

# Thousands of small programs are compiled: LLVM's optimiser would take most of the time. `make demo` and the
# benchmarks run with it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
# jaxlib's LAPACK calls wait for others of the threads on which all devices run: eight at once may take the last one.
os.environ.setdefault("PJRT_NPROC", "24")
os.environ["SHARDWISE_VERIFY_PROGRAMS"] = "true"  # every rewrite and derivative is checked
os.environ["JAX_NUM_CPU_DEVICES"] = "8"  # as many as here have by default: an oracle for what several devices do

import pytest

import shardwise as sw


@pytest.fixture(scope="session")
def mesh():
    """4 × 2, axes `data` and `model`."""
    return sw.make_mesh((4, 2), ("data", "model"))


TABLES = {"numpy", "lax", "nn", "random", "scipy"}  # folders of tests that go through tables of functions


HEAVY = ("jax", "scipy", "numpy", "mesh", "gradient", "map", "slope", "device")  # they compile much, some of it twice


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of tests that go through tables, every run takes a sixth of those that compile much, and of the cases of the
    others the first and a third of the rest. `make slow` has them all."""
    seen = set()
    for item in items:
        if item.path.parent.name not in TABLES:
            continue
        test = (item.path, item.originalname)
        digest = zlib.crc32(item.nodeid.encode())
        heavy = any(word in item.originalname or word in item.path.stem.partition("_like")[2] for word in HEAVY)
        if digest % 6 if heavy else test in seen and hasattr(item, "callspec") and digest % 3:
            item.add_marker(pytest.mark.slow)
        seen.add(test)
