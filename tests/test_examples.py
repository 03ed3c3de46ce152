"""Every public function shows one example, and what it shows is what happens."""

import doctest
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import dlpack, dtypes, lax, nn, ops, random, scipy, tree_util
from shardwise.experimental import maps

NAMESPACES: list[ModuleType] = [
    *(jnp, lax, nn, nn.initializers, ops),
    *(jnp.linalg, lax.linalg, scipy.linalg, jnp.fft, scipy.special),
    *(random, scipy.stats, dtypes, dlpack, tree_util, maps),
]
NAMESPACES += [found for name in scipy.stats.__all__ if isinstance(found := getattr(scipy.stats, name), ModuleType)]
SCOPE = {"jax": sw, "sw": sw, "jnp": jnp, "lax": lax, "np": np, "P": sw.P}


def public(namespace: ModuleType) -> Iterator[tuple[str, Any]]:
    """The functions that the namespace offers and that are ours."""
    for name in sorted(namespace.__all__):
        found = getattr(namespace, name)
        module = getattr(found, "__module__", None) or ""
        if callable(found) and not isinstance(found, type) and module.startswith("shardwise"):
            yield name, found


FUNCTIONS = {f"{space.__name__}.{name}": function for space in NAMESPACES for name, function in public(space)}
FUNCTIONS |= {f"shardwise.{name}": getattr(sw, name) for name in ("pmap", "shard_map", "smap")}
FUNCTIONS |= {"shardwise.experimental.shard_map": sw.experimental.shard_map.shard_map}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example(name: str) -> None:
    function = FUNCTIONS[name]
    text = function.__doc__ or ""
    assert text, f"{name} has no docstring"
    example = doctest.DocTestParser().get_doctest(text, dict(SCOPE), name, None, 0)
    assert example.examples, f"{name} shows no example"
    shown: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example, out=shown.append).failed == 0, "".join(shown)
