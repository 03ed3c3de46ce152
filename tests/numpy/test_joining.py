"""concatenate, stack, split, flip and pad against numpy; dtype promotion follows JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = -np.arange(8, dtype=np.float32).reshape(2, 4)
CALLS = {
    "concatenate": lambda np: np.concatenate([X, Y, X]),
    "concatenate columns": lambda np: np.concatenate((X, X), axis=-1),
    "concatenate one": lambda np: np.concatenate([X], 1),
    "concatenate all": lambda np: np.concatenate([X, Y[0]], axis=None),
    "concatenate rows of an array": lambda np: np.concatenate(np.asarray(X)),
    "concatenate empty": lambda np: np.concatenate([X[:0], X]),
    "stack": lambda np: np.stack([X, 2 * X]),
    "stack last": lambda np: np.stack([X, 2 * X, X], axis=-1),
    "stack middle": lambda np: np.stack([X, X], 1),
    "stack one": lambda np: np.stack([X]),
    "stack an array": lambda np: np.stack(np.asarray(X), axis=1),
    "split in two": lambda np: np.split(X, 2, axis=1),
    "split rows": lambda np: np.split(X, 3),
    "split at": lambda np: np.split(X, [1, 1, 3], axis=-1),
    "flip": lambda np: np.flip(X),
    "flip rows": lambda np: np.flip(X, 0),
    "flip both": lambda np: np.flip(X, (-1, 0)),
    "pad": lambda np: np.pad(X, 2),
    "pad sides": lambda np: np.pad(X, (1, 2)),
    "pad each": lambda np: np.pad(X, ((1, 2), (0, 3)), constant_values=7),
    "pad values": lambda np: np.pad(X, ((1, 2), (3, 1)), constant_values=((1, 2), (3, 4))),
    "pad values by side": lambda np: np.pad(X, 1, "constant", constant_values=(5, 6)),
    "pad nothing": lambda np: np.pad(X, ((0, 0),)),
}


@pytest.mark.table(default=4)
@pytest.mark.parametrize("name", CALLS)
def test_like_numpy(name):
    expected = CALLS[name](np)
    for found in (CALLS[name](jnp), sw.jit(lambda: CALLS[name](jnp))()):
        if isinstance(expected, list):
            assert isinstance(found, list)
        for got, want in zip(*((x if isinstance(x, list) else [x]) for x in (found, expected)), strict=True):
            np.testing.assert_array_equal(got, want)


def test_dtypes_are_promoted():
    narrow = np.array([1, 2], np.int8)
    assert jnp.concatenate([narrow, np.array([0.5], np.float16)]).dtype == np.float16
    assert jnp.concatenate([narrow, X[0]], dtype=jnp.int32).tolist() == [1, 2, 0, 1, 2, 3]
    assert jnp.stack([1, 2.5]).tolist() == [1, 2.5]
    assert jnp.stack([jnp.int8(1), 2]).dtype == np.int8
    assert jnp.pad(narrow, 1, constant_values=2.7).tolist() == [2, 1, 2, 2]
    assert jnp.pad(narrow, (1, 0), constant_values=jnp.float32(5)).tolist() == [5, 1, 2]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jnp.concatenate([]), ValueError, "concatenate: needs at least one array"),
        (
            lambda: jnp.concatenate([jnp.array(1), X]),
            ValueError,
            "concatenate: 0-d arrays cannot be concatenated: i32[]~, f32[3,4]; use `stack`",
        ),
        (lambda: jnp.concatenate([X], 2), ValueError, "concatenate: axis 2 does not exist in an array of rank 2"),
        (
            lambda: jnp.concatenate([X, X.T]),
            TypeError,
            "concatenate: operands must have one dtype and equal sizes in all dims but 0, not f32[3,4], f32[4,3]",
        ),
        (
            lambda: jnp.concatenate([[1, 2]]),
            TypeError,
            "concatenate: needs an array or a number, not [1, 2] of type list",
        ),
        (lambda: jnp.stack([]), ValueError, "stack: needs at least one array"),
        (lambda: jnp.stack([X, Y]), ValueError, "stack: arrays must have equal shapes, not (3, 4), (2, 4)"),
        (lambda: jnp.stack([X], -4), ValueError, "stack: axis -4 does not exist in an array of rank 3"),
        (
            lambda: jnp.stack([X], 0, X),
            NotImplementedError,
            "stack: arrays are immutable, so `out` must be None; use the result",
        ),
        (lambda: jnp.split(X, 2), ValueError, "split: dim 0 of f32[3,4] cannot be split into 2 equal parts"),
        (lambda: jnp.split(X, 0), ValueError, "split: dim 0 of f32[3,4] cannot be split into 0 equal parts"),
        (
            lambda: jnp.split(X, [2, 1]),
            ValueError,
            "split: indices must ascend from 0 to 3, the size of dim 0 of f32[3,4], not [2, 1]",
        ),
        (
            lambda: jnp.split(X, [5]),
            ValueError,
            "split: indices must ascend from 0 to 3, the size of dim 0 of f32[3,4], not [5]",
        ),
        (lambda: jnp.flip(X, 2), ValueError, "flip: axis 2 does not exist in an array of rank 2"),
        (lambda: jnp.flip(X, (0, -2)), TypeError, "reverse: a dim repeats in (0, 0)"),
        (
            lambda: jnp.pad(X, 1, stat_length=1),
            ValueError,
            "pad: mode 'constant' accepts constant_values, not stat_length",
        ),
        (lambda: jnp.pad(X, 1.5), TypeError, "pad: pad_width must be integers, not 1.5"),
        (lambda: jnp.pad(X, -1), ValueError, "pad: pad_width cannot be negative: -1; use a slice to remove elements"),
        (
            lambda: jnp.pad(X, ((1, 2),) * 3),
            ValueError,
            "pad: pad_width of shape (3, 2) does not broadcast to a low and a high value for each dim of f32[3,4]",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("model", "data")], ids=str)
def test_sharded_like_numpy(mesh, spec):
    x = sw.device_put(X, NamedSharding(mesh, spec))
    for function in (
        lambda np, x: np.concatenate([x, x + 1]),
        lambda np, x: np.stack([x, x * 2], 1),
        lambda np, x: np.split(x, [1], 1)[1],
        lambda np, x: np.flip(x, 1),
        lambda np, x: np.pad(x, ((1, 0), (2, 1)), constant_values=9),
    ):
        np.testing.assert_array_equal(sw.jit(lambda x, function=function: function(jnp, x))(x), function(np, X))


def test_gradients():
    def loss(x, value):
        parts = jnp.split(x, [1], axis=1)
        joined = jnp.concatenate([parts[1], jnp.flip(parts[0])], axis=1)
        return (jnp.stack([joined, x]) * X).sum() + (jnp.pad(x, 1, constant_values=value) * 2).sum()

    x_gradient, value_gradient = sw.grad(loss, (0, 1))(X, 1.0)
    joined_gradient = np.concatenate([X[::-1, 3:], X[:, :3]], 1)
    np.testing.assert_allclose(x_gradient, joined_gradient + X + 2)
    assert float(value_gradient) == 2 * (5 * 6 - 3 * 4)
