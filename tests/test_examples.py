"""Run the examples in the docstrings of all public functions."""

import doctest
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import (
    ad_checkpoint,
    debug,
    distributed,
    dlpack,
    dtypes,
    experimental,
    lax,
    nn,
    ops,
    profiler,
    random,
    scipy,
    sharding,
    tree_util,
)
from shardwise.experimental import custom_partitioning, maps, mesh_utils, pjit, shard_map

NAMESPACES: list[ModuleType] = [
    *(jnp, lax, nn, nn.initializers, ops),
    *(jnp.linalg, lax.linalg, scipy.linalg, jnp.fft, scipy.special),
    *(random, scipy.stats, dtypes, dlpack, tree_util),
]
NAMESPACES += [member for name in scipy.stats.__all__ if isinstance(member := getattr(scipy.stats, name), ModuleType)]
# Classes of these modules also have examples.
WITH_CLASSES: list[ModuleType] = [
    *(sw, debug, sharding, profiler, ad_checkpoint),
    *(experimental, custom_partitioning, maps, mesh_utils, pjit, shard_map),
]
CUSTOM_PARTITIONING = "the example of `custom_partitioning` uses it"
NO_EXAMPLE = {
    "shardwise.profiler.start_server": "keeps a port open until the process ends",
    "shardwise.profiler.stop_server": "needs a server of `start_server`",
    **{
        f"shardwise.experimental.custom_partitioning.{name}": CUSTOM_PARTITIONING
        for name in ("ArrayMapping", "CompoundFactor", "SdyShardingRule")
    },
}
SCOPE = {"jax": sw, "sw": sw, "jnp": jnp, "lax": lax, "np": np, "P": sw.P}


def public(namespace: ModuleType, classes: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the public functions of a module that are defined in the package; with `classes`, its classes too."""
    for name in sorted(namespace.__all__):
        member = getattr(namespace, name)
        module = getattr(member, "__module__", None) or ""
        if callable(member) and (classes or not isinstance(member, type)) and module.startswith("shardwise"):
            yield name, member


FUNCTIONS = {f"{space.__name__}.{name}": function for space in NAMESPACES for name, function in public(space)}
FUNCTIONS |= {
    f"{space.__name__}.{name}": member for space in WITH_CLASSES for name, member in public(space, classes=True)
}
FUNCTIONS |= {"shardwise.distributed.is_initialized": distributed.is_initialized}


def test_exceptions_are_names_without_an_example() -> None:
    for name in NO_EXAMPLE:
        assert ">>>" not in (FUNCTIONS[name].__doc__ or ""), name


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NO_EXAMPLE])
def test_example(name: str) -> None:
    function = FUNCTIONS[name]
    text = function.__doc__ or ""
    assert text, f"{name} has no docstring"
    example = doctest.DocTestParser().get_doctest(text, dict(SCOPE), name, None, 0)
    assert example.examples, f"{name} has no example"
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example, out=output.append).failed == 0, "".join(output)
