"""What all tests share: a mesh of 8 virtual devices, and a compiler that spends less time on each small program."""

import os

# Thousands of small programs are compiled: LLVM's optimiser would take most of the time. `make demo` and the
# benchmarks run with it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()

import pytest

import shardwise as sw


@pytest.fixture(scope="session")
def mesh():
    """4 × 2, axes `data` and `model`."""
    return sw.make_mesh((4, 2), ("data", "model"))
