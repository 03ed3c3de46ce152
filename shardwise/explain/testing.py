"""A pytest plugin with `comm_budget` and `memory_budget` as fixtures and as marks. Enable it in conftest.py:

pytest_plugins = ["shardwise.explain.testing"]
"""

from collections.abc import Generator
from contextlib import ExitStack

import pytest

from shardwise.explain import budget
from shardwise.explain import memory_budget as memory

_BUDGETS = {"comm_budget": budget.comm_budget, "memory_budget": memory.memory_budget}


@pytest.fixture
def comm_budget() -> type[budget.comm_budget]:
    """Return `shardwise.comm_budget`: `with comm_budget(all_reduce=1): step(x)`."""
    return budget.comm_budget


@pytest.fixture
def memory_budget() -> type[memory.memory_budget]:
    """Return `shardwise.memory_budget`: `with memory_budget(2e9): step(x)`."""
    return memory.memory_budget


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    config.addinivalue_line("markers", "comm_budget(*, bytes=None, **counts): limit the collectives of the test")
    config.addinivalue_line("markers", "memory_budget(bytes): limit the memory of the programs of the test")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the body of a test with the marks under its budgets. Fixtures do not count."""
    with ExitStack() as budgets:
        for name, limit in _BUDGETS.items():
            if mark := item.get_closest_marker(name):
                budgets.enter_context(limit(*mark.args, **mark.kwargs))
        return (yield)
