"""A pytest plugin with `comm_budget` as a fixture and as a mark. Enable it in conftest.py:

pytest_plugins = ["shardwise.explain.testing"]
"""

from collections.abc import Generator

import pytest

from shardwise.explain import budget


@pytest.fixture
def comm_budget() -> type[budget.comm_budget]:
    """Return `shardwise.comm_budget`: `with comm_budget(all_reduce=1): step(x)`."""
    return budget.comm_budget


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "comm_budget(*, bytes=None, **counts): limit the collectives of the test")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the body of a test with the mark under its budget. Fixtures do not count."""
    mark = item.get_closest_marker("comm_budget")
    if mark is None:
        return (yield)
    with budget.comm_budget(*mark.args, **mark.kwargs):
        return (yield)
