"""Convolutions and windowed reductions against JAX: values, dtypes, weak types, gradients and vmap."""

from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

OURS = SimpleNamespace(jax=sw, np=sw.numpy, lax=sw.lax)
THEIRS = SimpleNamespace(jax=jax, np=jax.numpy, lax=jax.lax)


def arrays(*shapes, dtype=np.float32):
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def close(ours, theirs):
    assert (ours.shape, ours.dtype, ours.weak_type) == (theirs.shape, theirs.dtype, theirs.weak_type)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-4)


def compare(function, *args, batch=True):
    """Compare values, gradients of a loss by all arguments, and vmap over one argument or both."""
    close(sw.jit(lambda *xs: function(OURS, *xs))(*args), jax.jit(lambda *xs: function(THEIRS, *xs))(*args))
    argnums = tuple(range(len(args)))

    def gradients(m):
        def loss(*xs):
            y = function(m, *xs)
            return (y * m.np.sin(y)).sum()

        return m.jax.jit(m.jax.grad(loss, argnums))(*args)

    for ours, theirs in zip(gradients(OURS), gradients(THEIRS), strict=True):
        close(ours, theirs)
    if not batch:
        return
    for dims in [(0,)] if len(args) == 1 else [(0, None), (None, 1), (1, 0)]:
        stacked = [x if dim is None else np.stack([x, 2 * x, -x], dim) for x, dim in zip(args, dims, strict=True)]
        close(
            *(m.jax.jit(m.jax.vmap(lambda *xs, m=m: function(m, *xs), in_axes=dims))(*stacked) for m in (OURS, THEIRS))
        )


# Strides, dilations of input and kernel, padding: each pair of values occurs at least once.
WINDOW_PARAMETERS = [
    (1, 1, 1, "SAME"),
    (1, 1, 2, "VALID"),
    (1, 2, 1, [(2, 1)]),
    (1, 3, 2, [(-1, 3)]),
    (2, 1, 1, "SAME_LOWER"),
    (2, 1, 2, "SAME"),
    (2, 2, 2, [(0, -2)]),
    (2, 3, 1, [(2, 1)]),
    (3, 1, 2, [(-1, 3)]),
    (3, 1, 1, "VALID"),
    (3, 2, 1, [(-1, 3)]),
    (3, 3, 2, [(0, -2)]),
]


@pytest.mark.table(default=1)
@pytest.mark.parametrize(("stride", "base", "dilation", "padding"), WINDOW_PARAMETERS, ids=str)
def test_strides_dilations_and_padding(stride, base, dilation, padding):
    x, kernel = arrays((2, 3, 11), (4, 3, 3))

    def function(m, x, k):
        return m.lax.conv_general_dilated(x, k, (stride,), padding, (base,), (dilation,))

    compare(function, x, kernel, batch=stride == 2)


@pytest.mark.table(default=1)
@pytest.mark.parametrize(
    ("lhs", "rhs", "features", "batches"),
    [
        ((2, 6, 7), (4, 3, 3), 2, 1),
        ((2, 6, 7), (6, 1, 3), 6, 1),
        ((2, 3, 7), (6, 1, 3), 3, 1),
        ((4, 3, 7), (4, 3, 3), 1, 2),
        ((4, 3, 7), (4, 3, 3), 1, 4),
    ],
    ids=["features", "depthwise", "depthwise with multiplier 2", "batch", "one group per batch element"],
)
def test_feature_and_batch_groups(lhs, rhs, features, batches):
    x, kernel = arrays(lhs, rhs)

    def function(m, x, k):
        return m.lax.conv_general_dilated(x, k, (2,), "SAME", feature_group_count=features, batch_group_count=batches)

    compare(function, x, kernel)


@pytest.mark.table(default=1)
@pytest.mark.parametrize(
    "numbers", [("NHWC", "HWIO", "NHWC"), ("CWNH", "IHOW", "HNCW"), ("NCHW", "OIHW", "NHWC")], ids=str
)
def test_dimension_numbers(numbers):
    sizes = {"N": 2, "C": 3, "O": 4, "I": 3, "H": 6, "W": 5}
    window = sizes | {"H": 3, "W": 2}
    x, kernel = arrays([sizes[d] for d in numbers[0]], [window[d] for d in numbers[1]])
    compare(lambda m, x, k: m.lax.conv_general_dilated(x, k, (2, 1), "SAME", dimension_numbers=numbers), x, kernel)
    ours, theirs = (m.lax.conv_dimension_numbers(x.shape, kernel.shape, numbers) for m in (OURS, THEIRS))
    assert tuple(ours) == tuple(map(tuple, theirs))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("count", [0, 2, 3])
def test_numbers_of_spatial_dims(count):
    x, kernel = arrays((2, 3, *(4, 5, 3)[:count]), (4, 3, *(3, 2, 2)[:count]))
    compare(lambda m, x, k: m.lax.conv(x, k, (1,) * count, "SAME"), x, kernel)


@pytest.mark.table(default=1)
@pytest.mark.parametrize(
    ("strides", "padding", "transpose_kernel"),
    [((1, 1), "SAME", True), ((2, 3), "SAME", False), ((4, 2), "VALID", True), ((2, 1), [(1, 0), (2, 1)], False)],
    ids=str,
)
def test_conv_transpose(strides, padding, transpose_kernel):
    x, kernel = arrays((2, 4, 3, 3), (3, 2, 3, 3))

    def function(m, x, k):
        return m.lax.conv_transpose(x, k, strides, padding, rhs_dilation=(1, 2), transpose_kernel=transpose_kernel)

    compare(function, x, kernel, batch=False)


def test_conv_transpose_with_consistent_padding():
    x, kernel = arrays((1, 5, 2), (3, 2, 2))
    pads = {"padding": [(1, 1)], "transpose_kernel": True, "use_consistent_padding": True}
    compare(lambda m, x, k: m.lax.conv_transpose(x, k, (2,), **pads), x, kernel, batch=False)


def test_patches():
    (x,) = arrays((2, 5, 4, 3))
    for numbers in (None, ("NHWC", "HWIO", "NHWC")):

        def function(m, x, numbers=numbers):
            return m.lax.conv_general_dilated_patches(x, (2, 3), (1, 2), "SAME", dimension_numbers=numbers)

        compare(function, x)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.int32, np.uint8, np.complex64], ids=lambda d: d.__name__)
def test_dtypes(dtype):
    rng = np.random.default_rng(0)
    x, kernel = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((2, 3, 7), (4, 3, 3)))
    close(*(m.lax.conv(x, kernel, (1,), "SAME") for m in (OURS, THEIRS)))


def test_preferred_element_type_wider_than_operands():
    x, kernel = (np.arange(18).reshape(shape) for shape in ((1, 3, 6), (2, 3, 3)))
    for narrow, wide in (("bfloat16", "float32"), ("int8", "int32"), ("float16", "float32")):

        def function(m, narrow=narrow, wide=wide):
            operands = (m.np.asarray(y).astype(narrow) for y in (x, kernel))
            return m.lax.conv(*operands, (1,), "SAME", preferred_element_type=wide)

        close(*(function(m) for m in (OURS, THEIRS)))


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    ("strides", "padding"), [((1, 1, 1), "SAME"), ((1, 2, 3), "VALID"), ((1, 2, 1), [(0, 0), (1, 1), (2, 1)])], ids=str
)
@pytest.mark.parametrize("how", ["add", "max", "min"])
def test_reduce_window(how, strides, padding):
    (x,) = arrays((2, 7, 6))
    start = {"add": 0.0, "max": -np.inf, "min": np.inf}[how]
    compare(lambda m, x: m.lax.reduce_window(x, start, getattr(m.lax, how), (1, 3, 2), strides, padding), x)


@pytest.mark.parametrize("how", ["add", "max", "min"])
def test_reduce_window_with_dilation(how):
    (x,) = arrays((9, 4))
    start = {"add": 0.0, "max": -np.inf, "min": np.inf}[how]

    def function(m, x, base):
        return m.lax.reduce_window(x, start, getattr(m.lax, how), (3, 2), (2, 1), [(1, 1), (0, 1)], base, (2, 1))

    def values(m, base):
        return m.jax.jit(lambda x: function(m, x, base))(x)

    close(values(OURS, (1, 1)), values(THEIRS, (1, 1)))
    close(values(OURS, (2, 1)), values(THEIRS, (2, 1)))


@pytest.mark.parametrize("how", ["max", "min"])
def test_first_of_equal_elements_gets_the_gradient(how):
    x = np.array([[1, 2, 2, 0], [2, 2, 1, 1], [0, 0, 3, 3]], np.float32)

    def gradient(m):
        start = -np.inf if how == "max" else np.inf

        def pooled(x):
            return m.lax.reduce_window(x, start, getattr(m.lax, how), (2, 2), (1, 1), "VALID")

        weights = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
        return m.jax.grad(lambda x: (pooled(x) * weights).sum())(x)

    close(gradient(OURS), gradient(THEIRS))


def test_reduce_window_with_other_init_values_and_dtypes():
    x = np.array([3, -1, 4, 1, -5, 9], np.int32)
    calls = [
        lambda m: m.lax.reduce_window(x, 1, m.lax.max, (2,), (1,), [(1, 1)]),
        lambda m: m.lax.reduce_window(x, np.int32(2), m.lax.add, (2,), (2,), "VALID"),
        lambda m: m.lax.reduce_window(x, 1, m.lax.mul, (3,), (1,), "SAME"),
        lambda m: m.lax.reduce_window(x > 0, False, m.lax.bitwise_or, (2,), (1,), "SAME"),
        lambda m: m.lax.reduce_window(x > 0, True, m.lax.bitwise_and, (2,), (1,), "SAME"),
        lambda m: m.lax.reduce_window(x, -(2**31), m.np.maximum, (2,), (1,), "SAME"),
    ]
    for call in calls:
        close(call(OURS), call(THEIRS))


@pytest.mark.table(default=5)
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("sizes", [(7, 3), (3, 7), (6, 4), (4, 6), (5, 5)], ids=str)
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_convolve_and_correlate(name, sizes, mode):
    close(*(getattr(m.np, name)(*arrays(*((size,) for size in sizes)), mode) for m in (OURS, THEIRS)))
    a, v = ((x + 1j * x[::-1] ** 2).astype(np.complex64) for x in arrays(*((size,) for size in sizes)))
    close(*(getattr(m.np, name)(a, v, mode) for m in (OURS, THEIRS)))
    a, v = (np.arange(size) for size in sizes)
    close(*(getattr(m.np, name)(a, v, mode) for m in (OURS, THEIRS)))
