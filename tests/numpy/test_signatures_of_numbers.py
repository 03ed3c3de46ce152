"""Numeric functions take what JAX's take: the same arguments, by position or by name, with the same defaults."""

import importlib
import inspect

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.numpy import (
    calculus,
    comparing,
    elementwise,
    floats,
    functions,
    histograms,
    integers,
    nans,
    ordering,
    polynomials,
    products,
    sets,
    statistics,
    windows,
)

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

MODULES = [importlib.import_module("shardwise.numpy.einsum")]
MODULES += [calculus, comparing, elementwise, floats, functions, histograms, integers, nans, ordering]
MODULES += [polynomials, products, sets, statistics, windows]
NAMES = sorted(
    name
    for name in jnp.__all__
    if inspect.isfunction(getattr(jnp, name))
    and any(vars(module).get(name) is getattr(jnp, name) for module in MODULES)
)


def shown(parameter):
    default = parameter.default
    if default is not inspect.Parameter.empty and not isinstance(default, (int, float, str, bool, type(None))):
        default = "something"
    return parameter.name, parameter.kind, default


@pytest.mark.parametrize("name", NAMES)
def test_signature(name):
    theirs = getattr(jax.numpy, name)
    if isinstance(theirs, jax.numpy.ufunc):
        pytest.skip("an object there, which takes two arrays")
    ours, wanted = (list(inspect.signature(function).parameters.values()) for function in (getattr(jnp, name), theirs))
    assert [shown(parameter) for parameter in ours] == [shown(parameter) for parameter in wanted]


@pytest.mark.parametrize("name", sw.ops.__all__)
def test_signature_of_segments(name):
    ours, wanted = (inspect.signature(getattr(package.ops, name)).parameters.values() for package in (sw, jax))
    assert list(map(shown, ours)) == list(map(shown, wanted))


def test_there_are_names():
    assert len(NAMES) > 150
    assert np.isin(["einsum", "nanmedian", "polyfit", "unique_all"], NAMES).all()


def test_arrays_by_name():
    x, y = np.array([4, 6], np.int32), np.array([6, 9], np.int32)
    for name in ("gcd", "lcm", "fmax", "fmin"):
        np.testing.assert_array_equal(getattr(jnp, name)(x1=x, x2=y), getattr(np, name)(x, y))
    np.testing.assert_array_equal(jnp.kron(a=x, b=y), np.kron(x, y))
    np.testing.assert_array_equal(jnp.polyadd(a1=x, a2=y), x + y)
    np.testing.assert_array_equal(jnp.trunc(x=np.float32([1.5])), [1])
