"""Methods of arrays against numpy and JAX."""

import inspect

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.array([[3.0, 1.0, 2.0], [0.0, -1.0, 5.0]], np.float32)
METHODS = {
    "argpartition": lambda x: x.argpartition(1)[..., 0],
    "byteswap": lambda x: x.byteswap(),
    "choose": lambda x: (x > 1).astype(np.int32).choose([x, -x]),
    "clip": lambda x: x.clip(0, 2),
    "compress": lambda x: x.compress(np.array([True, False, True]), axis=1),
    "conjugate": lambda x: x.conjugate(),
    "copy": lambda x: x.copy(),
    "cumprod": lambda x: x.cumprod(axis=1),
    "diagonal": lambda x: x.diagonal(1),
    "dot": lambda x: x.dot(x.T),
    "flatten": lambda x: x.flatten("F"),
    "itemsize": lambda x: x.itemsize,
    "mT": lambda x: x[None].mT,
    "max": lambda x: x.max(axis=0, initial=2.0, where=x > 0),
    "mean": lambda x: x.mean(axis=0, where=x > -1),
    "nonzero": lambda x: x.nonzero(),
    "prod": lambda x: x.prod(axis=1, keepdims=True),
    "ravel": lambda x: x.ravel(),
    "repeat": lambda x: x.repeat(2, axis=0),
    "reshape": lambda x: x.reshape(3, 2, order="F"),
    "round": lambda x: x.round(1),
    "searchsorted": lambda x: x[0, ::2][::-1].searchsorted(x),
    "sort": lambda x: x.sort() if not isinstance(x, np.ndarray) else np.sort(x),
    "squeeze": lambda x: x[:, None].squeeze(1),
    "std": lambda x: x.std(axis=1, ddof=1),
    "sum": lambda x: x.sum(initial=10.0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "take": lambda x: x.take(np.array([0, 2]), axis=1),
    "trace": lambda x: x.trace(1),
    "transpose": lambda x: x.transpose(1, 0),
    "transpose none": lambda x: x.transpose(None),
    "var": lambda x: x.var(),
    "view": lambda x: x.view(np.int32),
    "view bytes": lambda x: x.view(np.uint8),
    "view pairs": lambda x: x[:, :2].copy().view(np.complex64),
    "item": lambda x: x.item(1, 2),
    "item flat": lambda x: x.item(4),
    "contains": lambda x: (2.0 in x[0], 9.0 in x[0]),
    "round number": lambda x: round(x[0, 0] + 0.7),
    "format": lambda x: f"{x[0, 0]:.2f}",
    "index": lambda x: [7, 8, 9][x[0, 1].astype(np.int32)],
    "complex": lambda x: complex(x[0, 0]),
    "tobytes": lambda x: x.tobytes(),
}


@pytest.mark.table(default=7)
@pytest.mark.parametrize("name", METHODS)
def test_methods_like_numpy(name, mesh):
    expected = METHODS[name](X)
    for x in (jnp.array(X), sw.device_put(X, NamedSharding(mesh, P(None, "model")))):
        result = METHODS[name](x)
        for got, want in zip(
            *((part if isinstance(part, tuple) else (part,)) for part in (result, expected)), strict=True
        ):
            if isinstance(want, (str, bytes)):
                assert got == want
            else:
                np.testing.assert_allclose(np.asarray(got).astype(complex), np.asarray(want).astype(complex), rtol=1e-6)


def test_view_reinterprets_bits():
    x = jnp.array([1 + 2j, 3 - 4j], jnp.complex64)
    assert x.view(jnp.float32).tolist() == [1, 2, 3, -4]
    assert x.view(jnp.float32).view(jnp.complex64).tolist() == x.tolist()
    assert jnp.array([True, False]).view(jnp.int8).tolist() == [1, 0]
    assert jnp.array([2, 0], jnp.int8).view(bool).tolist() == [True, False]
    assert jnp.float32(1).view(jnp.int32).tolist() == 0x3F800000
    assert jnp.array([1.5, -2], jnp.bfloat16).view(jnp.uint16).tolist() == [0x3FC0, 0xC000]
    assert (
        jnp.array([1 + 2j], jnp.complex64).byteswap().tolist() == np.array([1 + 2j], np.complex64).byteswap().tolist()
    )
    assert x.view() is x


def test_arrays_have_the_methods_of_jax_arrays():
    jax = pytest.importorskip("jax")
    private = {"aval", "clone", "device_buffer", "device_buffers", "format", "platform", "traceback"}
    theirs = {name for name in dir(jax.numpy.ones(2)) if not name.startswith("_")} - private
    assert theirs <= set(dir(jnp.ones(2)))
    for name in theirs - {"at", "flat", "mT", "delete", "is_deleted", "block_until_ready", "on_device_size_in_bytes"}:
        mine, their = getattr(jnp.ones(2), name), getattr(jax.numpy.ones(2), name)
        if callable(mine):
            try:
                expected = list(inspect.signature(their).parameters)
            except ValueError:  # written in C++
                continue
            assert list(inspect.signature(mine).parameters) == expected, name


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.flat, NotImplementedError, "arrays have no `flat`; use `x.flatten()`"),
        (
            lambda x: x.__setitem__(0, 1),
            TypeError,
            "arrays are immutable: use `x = x.at[index].set(values)` instead of item assignment",
        ),
        (lambda x: x.view(type=int), NotImplementedError, "view: the parameter `type` is not supported"),
        (
            lambda x: x.view(jnp.complex64),
            ValueError,
            "view: the 96 bits of the last dim of f32[2,3] are not a multiple of the size of complex64",
        ),
        (
            lambda x: x[0, 0].view(jnp.int8),
            ValueError,
            "view: a scalar f32[] cannot be viewed as int8, which has a different size",
        ),
        (
            lambda x: 2.0 in x,
            ValueError,
            "`in` finds a scalar in a 1-d array, not f32[]~ in f32[2,3]: use `(array == x).any()`",
        ),
        (lambda x: x.mT.T[0].mT, ValueError, "matrix_transpose: needs an array of 2 or more dims, not f32[3]"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call(jnp.array(X))
    assert str(caught.value).split("\n")[0] == message
