"""The signatures of numeric functions are those of JAX: names, kinds and defaults of parameters."""

import importlib
import inspect

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.numpy import (
    calculus,
    elementwise,
    equality,
    float_bits,
    histograms,
    integers,
    nans,
    ordering,
    polynomials,
    products,
    reductions,
    sets,
    statistics,
    windows,
)

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

MODULES = [importlib.import_module("shardwise.numpy.einsum")]
MODULES += [calculus, equality, elementwise, float_bits, reductions, histograms, integers, nans, ordering]
MODULES += [polynomials, products, sets, statistics, windows]
NAMES = sorted(
    name
    for name in jnp.__all__
    if inspect.isfunction(getattr(jnp, name))
    and any(vars(module).get(name) is getattr(jnp, name) for module in MODULES)
)


def describe(parameter):
    default = parameter.default
    if default is not inspect.Parameter.empty and not isinstance(default, (int, float, str, bool, type(None))):
        default = "an object"
    return parameter.name, parameter.kind, default


@pytest.mark.parametrize("name", NAMES)
def test_signature(name):
    theirs = getattr(jax.numpy, name)
    if isinstance(theirs, jax.numpy.ufunc):
        pytest.skip("a ufunc in JAX, with the signature (x, y)")
    ours, expected = (
        list(inspect.signature(function).parameters.values()) for function in (getattr(jnp, name), theirs)
    )
    assert [describe(parameter) for parameter in ours] == [describe(parameter) for parameter in expected]


@pytest.mark.parametrize("name", sw.ops.__all__)
def test_signature_of_segment_functions(name):
    ours, expected = (inspect.signature(getattr(package.ops, name)).parameters.values() for package in (sw, jax))
    assert list(map(describe, ours)) == list(map(describe, expected))


def test_the_listed_names_are_complete():
    assert len(NAMES) > 150
    assert np.isin(["einsum", "nanmedian", "polyfit", "unique_all"], NAMES).all()


def test_arrays_as_keyword_arguments():
    x, y = np.array([4, 6], np.int32), np.array([6, 9], np.int32)
    for name in ("gcd", "lcm", "fmax", "fmin"):
        np.testing.assert_array_equal(getattr(jnp, name)(x1=x, x2=y), getattr(np, name)(x, y))
    np.testing.assert_array_equal(jnp.kron(a=x, b=y), np.kron(x, y))
    np.testing.assert_array_equal(jnp.polyadd(a1=x, a2=y), x + y)
    np.testing.assert_array_equal(jnp.trunc(x=np.float32([1.5])), [1])
