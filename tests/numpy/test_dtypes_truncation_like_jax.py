"""Requests of 64-bit dtypes while these are disabled: they warn in the same cases as in JAX, at the user's line."""

import warnings

import numpy as np
import pytest

import shardwise
from shardwise.compiler.arrays.promotion import requested_dtype

jax = pytest.importorskip("jax")

F64, X = np.ones(3), np.ones(3, np.float32)

CALLS = {
    "zeros by name": lambda jax, jnp: jnp.zeros(3, dtype="float64"),
    "zeros by numpy's type": lambda jax, jnp: jnp.zeros(3, np.float64),
    "zeros by numpy's dtype": lambda jax, jnp: jnp.zeros(3, np.dtype("int64")),
    "zeros by scalar type": lambda jax, jnp: jnp.zeros(3, jnp.float64),
    "zeros of int_": lambda jax, jnp: jnp.zeros(3, jnp.int_),
    "zeros of float": lambda jax, jnp: jnp.zeros(3, float),
    "zeros of int": lambda jax, jnp: jnp.zeros(3, dtype=int),
    "zeros of complex": lambda jax, jnp: jnp.zeros(3, dtype=complex),
    "zeros of float32": lambda jax, jnp: jnp.zeros(3, "float32"),
    "ones": lambda jax, jnp: jnp.ones(3, dtype="complex128"),
    "empty": lambda jax, jnp: jnp.empty(3, dtype="uint64"),
    "full": lambda jax, jnp: jnp.full(3, 2, dtype="int64"),
    "full of a numpy float64": lambda jax, jnp: jnp.full(3, np.float64(2)),
    "zeros_like": lambda jax, jnp: jnp.zeros_like(X, dtype="float64"),
    "zeros_like a float64 array": lambda jax, jnp: jnp.zeros_like(F64),
    "ones_like": lambda jax, jnp: jnp.ones_like(X, dtype="float64"),
    "full_like": lambda jax, jnp: jnp.full_like(X, 2, dtype="float64"),
    "array of a float64 array": lambda jax, jnp: jnp.array(F64),
    "array with dtype": lambda jax, jnp: jnp.array(F64, dtype="float64"),
    "array of a list with dtype": lambda jax, jnp: jnp.array([1, 2], dtype=np.int64),
    "asarray of a float64 array": lambda jax, jnp: jnp.asarray(F64),
    "asarray with dtype": lambda jax, jnp: jnp.asarray(F64, dtype=np.float64),
    "asarray with float": lambda jax, jnp: jnp.asarray(F64, dtype=float),
    "astype": lambda jax, jnp: jnp.asarray(X).astype("float64"),
    "astype int64": lambda jax, jnp: jnp.asarray(X).astype(jnp.int64),
    "astype float": lambda jax, jnp: jnp.asarray(X).astype(float),
    "jnp.astype": lambda jax, jnp: jnp.astype(jnp.asarray(X), "float64"),
    "view": lambda jax, jnp: jnp.ones(4, "float32").view("int32"),
    "arange": lambda jax, jnp: jnp.arange(3, dtype="int64"),
    "arange without dtype": lambda jax, jnp: jnp.arange(np.int64(3)),
    "linspace": lambda jax, jnp: jnp.linspace(0, 1, 3, dtype="float64"),
    "logspace": lambda jax, jnp: jnp.logspace(0, 1, 3, dtype="float64"),
    "geomspace": lambda jax, jnp: jnp.geomspace(1, 2, 3, dtype="float64"),
    "eye": lambda jax, jnp: jnp.eye(2, dtype="float64"),
    "identity": lambda jax, jnp: jnp.identity(2, dtype="float64"),
    "tri": lambda jax, jnp: jnp.tri(2, dtype="float64"),
    "sum": lambda jax, jnp: jnp.sum(X, dtype="float64"),
    "sum of a float64 array": lambda jax, jnp: jnp.sum(F64),
    "method sum": lambda jax, jnp: jnp.asarray(X).sum(dtype=np.float64),
    "prod": lambda jax, jnp: jnp.prod(X, dtype="float64"),
    "mean": lambda jax, jnp: jnp.mean(X, dtype="float64"),
    "var": lambda jax, jnp: jnp.var(X, dtype="float64"),
    "std": lambda jax, jnp: jnp.std(X, dtype="float64"),
    "cumsum": lambda jax, jnp: jnp.cumsum(X, dtype="float64"),
    "cumprod": lambda jax, jnp: jnp.cumprod(X, dtype="float64"),
    "nansum": lambda jax, jnp: jnp.nansum(X, dtype="float64"),
    "nanmean": lambda jax, jnp: jnp.nanmean(X, dtype="float64"),
    "nanvar": lambda jax, jnp: jnp.nanvar(X, dtype="float64"),
    "trace": lambda jax, jnp: jnp.trace(jnp.eye(2), dtype="float64"),
    "argsort": lambda jax, jnp: jnp.argsort(X),
    "concatenate": lambda jax, jnp: jnp.concatenate([X, X], dtype="float64"),
    "stack": lambda jax, jnp: jnp.stack([X, X], dtype="float64"),
    "dot": lambda jax, jnp: jnp.dot(X, X, preferred_element_type="float64"),
    "einsum": lambda jax, jnp: jnp.einsum("i,i", X, X, preferred_element_type="float64"),
    "convolve": lambda jax, jnp: jnp.convolve(X, X, preferred_element_type="float64"),
    "scalar type": lambda jax, jnp: jnp.float64(3),
    "promotion with a float64 array": lambda jax, jnp: jnp.asarray(X) + F64,
    "device_put of a float64 array": lambda jax, jnp: jax.device_put(F64),
    "jit of a float64 array": lambda jax, jnp: jax.jit(lambda x: x)(F64),
    "astype in jit": lambda jax, jnp: jax.jit(lambda x: x.astype("float64"))(X),
    "convert_element_type": lambda jax, jnp: jax.lax.convert_element_type(X, "float64"),
    "iota": lambda jax, jnp: jax.lax.iota("int64", 3),
    "lax.full": lambda jax, jnp: jax.lax.full((3,), 2, "int64"),
    "one_hot": lambda jax, jnp: jax.nn.one_hot(jnp.arange(3), 3, dtype="float64"),
    "normal": lambda jax, jnp: jax.random.normal(jax.random.key(0), (3,), "float64"),
    "normal of float": lambda jax, jnp: jax.random.normal(jax.random.key(0), (3,), float),
    "uniform": lambda jax, jnp: jax.random.uniform(jax.random.key(0), (3,), "float64"),
    "randint": lambda jax, jnp: jax.random.randint(jax.random.key(0), (3,), 0, 5, "int64"),
    "bits": lambda jax, jnp: jax.random.bits(jax.random.key(0), (3,), "uint64"),
    "initializer": lambda jax, jnp: jax.nn.initializers.zeros(jax.random.key(0), (3,), "float64"),
    "fftfreq": lambda jax, jnp: jnp.fft.fftfreq(3, dtype="float64"),
    "ShapeDtypeStruct": lambda jax, jnp: jax.ShapeDtypeStruct((3,), "float64"),
    "result_type": lambda jax, jnp: jnp.result_type("float64"),
    "canonicalize_dtype": lambda jax, jnp: jax.dtypes.canonicalize_dtype("float64"),
}


def warnings_of(call, package):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(package, package.numpy)
    return [str(warning.message) for warning in caught if "truncated" in str(warning.message)]


@pytest.mark.jax
@pytest.mark.parametrize("name", CALLS)
def test_request_of_64_bits_warns_as_in_jax(name):
    expected, actual = warnings_of(CALLS[name], jax), warnings_of(CALLS[name], shardwise)
    assert bool(actual) == bool(expected), (actual, expected)
    assert len(actual) <= 1


def test_warning_names_the_line_and_the_fix():
    with pytest.warns(UserWarning, match="Explicitly requested dtype float64 is not available") as caught:
        shardwise.numpy.eye(3, dtype="float64")
    assert caught[0].filename == __file__
    assert "so eye uses float32 (truncated)" in str(caught[0].message)
    assert "config.update('jax_enable_x64', True)" in str(caught[0].message)


def test_warning_is_shown_once_per_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            shardwise.numpy.asarray(X).astype("float64")
        shardwise.numpy.asarray(X).astype("float64")
    assert [warning.lineno for warning in caught] == [caught[0].lineno, caught[0].lineno + 1]


def test_setting_makes_it_an_error():
    with shardwise.config.override("explicit_x64_dtypes", "error"):
        with pytest.raises(ValueError, match="Explicitly requested dtype int64 is not available"):
            shardwise.numpy.zeros(3, dtype="int64")
        with pytest.raises(ValueError, match="Explicitly requested dtype float64 is not available"):
            shardwise.jit(lambda x: x.astype("float64"))(X)
        assert shardwise.numpy.zeros(3, dtype=float).dtype == np.float32


def test_no_warning_with_x64():
    with shardwise.enable_x64(True):
        assert requested_dtype("f", "float64") == np.float64
