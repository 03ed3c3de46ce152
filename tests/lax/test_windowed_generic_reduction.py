"""reduce_window of several arrays, and by functions that no op computes, compared with a loop over the windows."""

import itertools

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, lax

WINDOWS = [
    ((2, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    ((3, 2), (2, 3), ((1, 2), (0, 3)), (1, 1), (2, 1)),
    ((3, 2), (1, 2), ((1, -1), (0, 3)), (2, 3), (2, 2)),
    ((1, 2), (1, 1), ((4, 0), (0, 4)), (1, 1), (1, 1)),
    ((9, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
]


def larger_with_index(x, y):
    """Return the pair with the larger value; the first one for equal values."""
    return tuple(jnp.where(x[0] >= y[0], a, b) for a, b in zip(x, y, strict=True))


def windows_of(shape, window, strides, padding, base, dilation):
    """Yield, per window, the indices of its elements in row-major order, without padding."""
    sizes = [(size - 1) * step + 1 + low + high for size, step, (low, high) in zip(shape, base, padding, strict=True)]
    counts = [
        max((size - (count - 1) * gap - 1) // stride + 1, 0)
        for size, count, gap, stride in zip(sizes, window, dilation, strides, strict=True)
    ]
    for start in itertools.product(*map(range, counts)):
        elements = []
        for offset in itertools.product(*map(range, window)):
            place = [
                at * stride + step * gap - low
                for at, stride, step, gap, (low, _) in zip(start, strides, offset, dilation, padding, strict=True)
            ]
            inside = all(
                0 <= p <= (size - 1) * step and p % step == 0 for p, size, step in zip(place, shape, base, strict=True)
            )
            if inside:
                elements.append(tuple(p // step for p, step in zip(place, base, strict=True)))
        yield start, elements


@pytest.mark.table(default=8)
@pytest.mark.parametrize("parameters", WINDOWS)
@pytest.mark.parametrize("spec", [None, P("x"), P(None, "x")])
def test_windowed_argmax(parameters, spec):
    values = np.random.default_rng(0).integers(0, 6, (7, 9)).astype(np.float32)
    indices = np.arange(63, dtype=np.int32).reshape(7, 9)
    expected = {}
    for start, elements in windows_of(values.shape, *parameters):
        best = max(elements, key=lambda at: values[at], default=None)
        start_pair = (np.float32(-1), np.int32(-5))
        expected[start] = start_pair if best is None else (values[best], indices[best])
    operands = (values, indices)
    if spec is not None:
        operands = sw.device_put(operands, NamedSharding(sw.make_mesh((8,), ("x",)), spec))
    inits = (np.float32(-1), np.int32(-5))
    maxima, places = sw.jit(lambda x: lax.reduce_window(x, inits, larger_with_index, *parameters))(operands)
    assert maxima.size == places.size == len(expected)
    for start, (value, index) in expected.items():
        assert (maxima[start], places[start]) == (value, index)


def test_init_value_that_is_not_neutral_counts_once():
    x = np.array([1.0, 2.0, 3.0], np.float32)
    out = lax.reduce_window(x, 10.0, lambda a, b: a + b + a * b, (2,), padding=((1, 1),))
    np.testing.assert_array_equal(out, [21, 65, 131, 43])  # (1+10)·(1+1) - 1, (1+10)·(1+1)·(1+2) - 1, …


def test_gradient():
    x = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    function = lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + b + a * b, (2,)).sum()  # noqa: E731
    np.testing.assert_array_equal(sw.grad(function)(x), [3, 6, 8, 4])


def test_errors():
    x = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="init_value must have the structure of the operand"):
        lax.reduce_window((x, x), 0.0, larger_with_index, (2,))
    with pytest.raises(TypeError, match=r"arrays of the same shape, not f32\[3\], f32\[2\]"):
        lax.reduce_window((x, x[:2]), (0.0, 0.0), larger_with_index, (2,))
    with pytest.raises(ValueError, match="computation must return the structure of its arguments"):
        lax.reduce_window((x, x), (0.0, 0.0), lambda a, b: a[0], (2,))
    with pytest.raises(TypeError, match="computation must return f32"):
        lax.reduce_window(x, 0.0, lambda a, b: a > b, (2,))
