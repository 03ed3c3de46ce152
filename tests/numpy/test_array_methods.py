"""Methods and operators of arrays, compared with those of numpy's arrays."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import numpy as jnp
from shardwise.compiler.arrays.namespace import NamespaceMethods
from shardwise.compiler.trace.tracer import Tracer
from shardwise.numpy.array_methods import ArrayMethods

X = np.array([[3, -1, 2], [0, 5, -4]], np.float32)
N = np.array([[3, 1, 2], [0, 5, 4]], np.int32)

CALLS = {
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(),
    "diagonal": lambda x: x.diagonal(1),
    "dot": lambda x: x.dot(x.T),
    "nonzero": lambda x: x.nonzero()[1],
    "ptp": lambda x: np.ptp(x, 0) if isinstance(x, np.ndarray) else x.ptp(0),
    "ravel": lambda x: x.ravel(),
    "repeat": lambda x: x.repeat(2, 0),
    "searchsorted": lambda x: (x[1] ** 2).cumsum().searchsorted(x[0]),
    "squeeze": lambda x: x[:1].squeeze(0),
    "take": lambda x: x.take(2, 1),
    "trace": lambda x: x.trace(),
    "in": lambda x: 5 in x[1] and 7 not in x[1],
    "+": lambda x: +x,
    "divmod": lambda x: divmod(x, 3),
    "rdivmod": lambda x: divmod(7, x + 9),
    "matmul of vectors": lambda x: x[0] @ x[1],
}


@pytest.mark.parametrize("x", [X, N], ids=["f32", "i32"])
@pytest.mark.parametrize("name", CALLS)
def test_like_numpy(name, x):
    expected = CALLS[name](x)
    np.testing.assert_array_equal(CALLS[name](jnp.asarray(x)), expected)


def test_round_to_digits_and_to_an_integer():
    x = jnp.float32(2.6449)
    np.testing.assert_allclose(round(x, 2), 2.64, rtol=1e-6)
    rounded = round(x)
    assert (rounded.dtype, int(rounded)) == (np.int32, 3)


def test_rounded_integers_are_unchanged():
    np.testing.assert_array_equal(jnp.round(jnp.asarray(N), 2), N)


def test_methods_work_in_a_trace():
    doubled = sw.jit(lambda x: x.take(2, 1) + x.diagonal(1) + x.squeeze().sum())(jnp.asarray(X))
    np.testing.assert_array_equal(doubled, X.take(2, 1) + X.diagonal(1) + X.sum())


def test_arrays_and_tracers_have_the_methods_that_type_checkers_see():
    """The stub of `NamespaceMethods` says that it is `ArrayMethods`; at run time, its methods are attached."""
    methods = {name: x for name, x in vars(ArrayMethods).items() if callable(x) or isinstance(x, property)}
    assert {"sum", "at", "T", "__array_namespace__"} <= methods.keys()
    for cls in (NamespaceMethods, sw.Array, Tracer):
        assert {name: getattr(cls, name) for name in methods} == methods
