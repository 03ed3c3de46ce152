"""Run the examples in the docstrings of all public functions; their results have the declared types."""

import doctest
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NewType, get_args, get_origin

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import (
    ad,
    ad_checkpoint,
    checkpoints,
    custom_batching,
    custom_derivatives,
    data,
    debug,
    distributed,
    dlpack,
    dtypes,
    experimental,
    export,
    image,
    lax,
    memory,
    nn,
    ops,
    parallel,
    profiler,
    random,
    ref,
    scipy,
    sharding,
    stablehlo,
    strategies,
    test_util,
    tree_util,
)
from shardwise.example_libraries import optimizers, stax
from shardwise.experimental import (
    compute_on,
    custom_partitioning,
    jet,
    maps,
    mesh_utils,
    ode,
    overlap,
    pallas,
    pjit,
    rnn,
    scheduling_groups,
    serialize_executable,
    shard_alike,
    shard_map,
    sparse,
    topologies,
    xla_metadata,
)
from shardwise.experimental import profiler as experimental_profiler
from shardwise.experimental import random as stateful_random
from shardwise.experimental.array_serialization import serialization, tensorstore_impl
from shardwise.experimental.compilation_cache import compilation_cache
from shardwise.experimental.pallas import tpu, triton
from shardwise.extend import backend
from shardwise.extend import random as extend_random
from shardwise.extend import sharding as extend_sharding

NAMESPACES: list[ModuleType] = [
    *(jnp, lax, nn, nn.initializers, ops),
    *(jnp.linalg, lax.linalg, scipy.linalg, jnp.fft, scipy.special),
    *(scipy.fft, scipy.optimize, scipy.sparse.linalg, sparse.linalg, stax),
    *(scipy.signal, scipy.ndimage, scipy.cluster.vq),
    *(random, scipy.stats, dtypes, dlpack, tree_util, test_util),
    *(pallas, tpu, triton, sw.kernels),
]
NAMESPACES += [member for name in scipy.stats.__all__ if isinstance(member := getattr(scipy.stats, name), ModuleType)]
# Classes of these modules also have examples.
WITH_CLASSES: list[ModuleType] = [
    *(sw, debug, sharding, profiler, ad_checkpoint, checkpoints, data, strategies, parallel, stablehlo, export),
    *(experimental, custom_partitioning, maps, mesh_utils, pjit, shard_map, sparse, optimizers),
    *(custom_batching, image, ref, scipy.interpolate, scipy.spatial.transform),
    *(serialization, tensorstore_impl),
    *(ad, memory, jet, ode, rnn, stateful_random, backend, extend_random, extend_sharding),
    *(compute_on, experimental_profiler, scheduling_groups, serialize_executable, topologies, xla_metadata),
    *(compilation_cache, overlap, shard_alike),
]
CUSTOM_PARTITIONING = "the example of `custom_partitioning` uses it"
NO_EXAMPLE = {
    **{f"shardwise.{name}": "a former name, which warns" for name in ("host_count", "host_id", "host_ids")},
    "shardwise.as_jax": "changes what `import jax` means in the process; docs/ecosystem.md shows it",
    "shardwise.checkpoints.import_orbax": "needs a checkpoint that Orbax wrote; test_orbax.py has some",
    "shardwise.checkpoints.read_orbax": "needs a checkpoint that Orbax wrote; test_orbax.py has some",
    "shardwise.checkpoints.Manifest": "`read_manifest` returns it",
    "shardwise.checkpoints.Restored": "`Manager.restore` returns it",
    "shardwise.checkpoints.Save": "`save` returns it",
    "shardwise.strategies.LocalState": "`local_updates` has functions that return it",
    "shardwise.strategies.LocalUpdates": "`local_updates` returns it",
    "shardwise.strategies.Zero": "`zero` returns it",
    "shardwise.parallel.Pipeline": "`pipeline` returns it",
    "shardwise.stablehlo.LoadedModule": "`stablehlo.load` returns it",
    "shardwise.parallel.Schedule": "`pipeline_schedule` returns it",
    "shardwise.profiler.register_subprocess": "needs a process with a profiler server",
    "shardwise.profiler.start_server": "keeps a port open until the process ends",
    "shardwise.profiler.stop_server": "needs a server of `start_server`",
    **{
        f"shardwise.experimental.custom_partitioning.{name}": CUSTOM_PARTITIONING
        for name in ("ArrayMapping", "CompoundFactor", "SdyShardingRule")
    },
}
SCOPE = {"jax": sw, "pallas": pallas, "sw": sw, "jnp": jnp, "lax": lax, "np": np, "P": sw.P}


def public(namespace: ModuleType, classes: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the public functions of a module that are defined in the package; with `classes`, its classes too."""
    for name in sorted(namespace.__all__):
        member = getattr(namespace, name)
        module = getattr(member, "__module__", None) or ""
        is_class = isinstance(member, type | NewType)
        is_function = callable(member) and not isinstance(member, Enum)
        if is_function and (classes or not is_class) and module.startswith("shardwise"):
            yield name, member


FUNCTIONS = {f"{space.__name__}.{name}": function for space in NAMESPACES for name, function in public(space)}
FUNCTIONS |= {
    f"{space.__name__}.{name}": member for space in WITH_CLASSES for name, member in public(space, classes=True)
}
FUNCTIONS |= {
    "shardwise.custom_derivatives.linear_call": custom_derivatives.linear_call,
    "shardwise.distributed.is_initialized": distributed.is_initialized,
}


def test_exceptions_are_names_without_an_example() -> None:
    for name in NO_EXAMPLE:
        assert ">>>" not in (FUNCTIONS[name].__doc__ or ""), name


def has_type(value: Any, annotation: Any) -> bool:
    """Return whether a value has the type of an annotation; True for annotations other than arrays and containers."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is tuple and args[-1] is not ...:
        return isinstance(value, tuple) and len(value) == len(args) and all(map(has_type, value, args))
    if origin in (tuple, list):
        return isinstance(value, origin) and all(has_type(item, args[0]) for item in value)
    return annotation is Any or not isinstance(annotation, type) or isinstance(value, annotation)


def checks_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with a check of its result against its annotation."""
    source = inspect.unwrap(function)
    annotation = source.__annotations__.get("return", Any)
    if isinstance(annotation, str):
        annotation = eval(annotation, {**vars(sys.modules[source.__module__]), "Array": sw.Array})

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        result = function(*args, **keywords)
        assert has_type(result, annotation), f"declared as {annotation}, but returned {result!r}"
        return result

    return call


def test_results_are_compared_with_annotations() -> None:
    x = jnp.ones(2)
    assert has_type(x, sw.Array) and not has_type(1.0, sw.Array) and has_type(1.0, Any)
    assert has_type((x, x), tuple[sw.Array, sw.Array]) and not has_type((x,), tuple[sw.Array, sw.Array])
    assert has_type((x,), tuple[sw.Array, ...]) and not has_type([x, 1], list[sw.Array])


def run_example(name: str, text: str, folder: Path) -> None:
    """Run the example of a docstring. Raises AssertionError if there is none, or a result differs."""
    example = doctest.DocTestParser().get_doctest(text, {**SCOPE, "folder": folder}, name, None, 0)
    assert example.examples, f"{name} has no example"
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example, out=output.append).failed == 0, "".join(output)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NO_EXAMPLE])
def test_example(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    function = FUNCTIONS[name]
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
        module, _, attribute = name.rpartition(".")
        monkeypatch.setattr(importlib.import_module(module), attribute, checks_result(function))
    text = function.__doc__ or ""
    assert text, f"{name} has no docstring"
    run_example(name, text, tmp_path)


def methods_with_examples() -> dict[str, str]:
    """Return the docstrings of the methods and properties of public classes that have examples."""
    found = {}
    for name, member in FUNCTIONS.items():
        for attribute, method in vars(member).items() if isinstance(member, type) else ():
            text = getattr(getattr(method, "fget", method), "__doc__", None)
            if isinstance(text, str) and ">>>" in text and attribute != "__doc__":
                found[f"{name}.{attribute}"] = text
    return found


METHODS = methods_with_examples()


@pytest.mark.parametrize("name", METHODS)
def test_example_of_a_method(name: str, tmp_path: Path) -> None:
    run_example(name, METHODS[name], tmp_path)
