"""Every function with a parameter for a sharding in JAX has it here."""

import importlib
import inspect

import pytest

import shardwise as sw
import shardwise.numpy as jnp

pytestmark = pytest.mark.jax
jax = pytest.importorskip("jax")

PARAMETERS = {"out_sharding", "out_shardings", "sharding"}
MODULES = [
    "",
    "numpy",
    "numpy.linalg",
    "numpy.fft",
    "lax",
    "lax.linalg",
    "random",
    "nn",
    "nn.initializers",
    "ops",
    "scipy.special",
    "scipy.linalg",
    "image",
    "experimental",
]


def sharding_parameters(function):
    """Return the names of the parameters of a function that are shardings."""
    try:
        return PARAMETERS & set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def functions_of_jax():
    """Return the functions of JAX with a parameter for a sharding: (module, name, parameters)."""
    rows = []
    for module in MODULES:
        home = importlib.import_module(f"jax.{module}".rstrip("."))
        for name in sorted(dir(home)):
            function = getattr(home, name)
            if not name.startswith("_") and callable(function) and not inspect.isclass(function):
                rows.append((module, name, sharding_parameters(function)))
    return [row for row in rows if row[2]]


def test_functions_with_out_sharding_in_jax_have_it_here():
    rows = functions_of_jax()
    assert len(rows) > 70
    missing = []
    for module, name, parameters in rows:
        home = importlib.import_module(f"shardwise.{module}".rstrip("."))
        function = getattr(home, name, None)
        missing += [f"{module}.{name}({parameter}=)" for parameter in parameters - sharding_parameters(function)]
    assert not missing


@pytest.mark.parametrize("kind", ["method", "at"])
def test_methods_with_out_sharding_in_jax_have_it_here(kind):
    theirs, ours = (type(jax.numpy.ones(3).at[0]), type(jnp.ones(3).at[0])) if kind == "at" else (jax.Array, sw.Array)
    names = [name for name in dir(theirs) if not name.startswith("_")]
    with_sharding = {name: sharding_parameters(getattr(theirs, name)) for name in names}
    with_sharding = {name: parameters for name, parameters in with_sharding.items() if parameters}
    assert len(with_sharding) >= (10 if kind == "at" else 4)
    assert all(parameters <= sharding_parameters(getattr(ours, name)) for name, parameters in with_sharding.items())
