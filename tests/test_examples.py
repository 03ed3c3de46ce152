"""Every public function shows one example, and what it shows is what happens."""

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
NAMESPACES += [found for name in scipy.stats.__all__ if isinstance(found := getattr(scipy.stats, name), ModuleType)]
# Of these, what is a class shows an example too.
WITH_CLASSES: list[ModuleType] = [
    *(sw, debug, sharding, profiler, ad_checkpoint),
    *(experimental, custom_partitioning, maps, mesh_utils, pjit, shard_map),
]
DATA = "holds what `custom_partitioning` shows in its example"
NO_EXAMPLE = {
    "shardwise.profiler.start_server": "keeps a port open until the process ends",
    "shardwise.profiler.stop_server": "ends what `start_server` began",
    **{
        f"shardwise.experimental.custom_partitioning.{name}": DATA
        for name in ("ArrayMapping", "CompoundFactor", "SdyShardingRule")
    },
}
SCOPE = {"jax": sw, "sw": sw, "jnp": jnp, "lax": lax, "np": np, "P": sw.P}


def public(namespace: ModuleType, classes: bool = False) -> Iterator[tuple[str, Any]]:
    """The functions that the namespace offers and that are ours; and perhaps its classes."""
    for name in sorted(namespace.__all__):
        found = getattr(namespace, name)
        module = getattr(found, "__module__", None) or ""
        if callable(found) and (classes or not isinstance(found, type)) and module.startswith("shardwise"):
            yield name, found


FUNCTIONS = {f"{space.__name__}.{name}": function for space in NAMESPACES for name, function in public(space)}
FUNCTIONS |= {
    f"{space.__name__}.{name}": found for space in WITH_CLASSES for name, found in public(space, classes=True)
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
    assert example.examples, f"{name} shows no example"
    shown: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example, out=shown.append).failed == 0, "".join(shown)
