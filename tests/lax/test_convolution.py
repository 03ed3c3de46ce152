"""Convolutions and windowed reductions of lax: errors, and equal results on 8 devices and on one."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.arange(42, dtype=np.float32).reshape(2, 3, 7)
K = np.ones((4, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: lax.conv(X, K[0], (1,), "SAME"),
            TypeError,
            "convolution: operands must have the same rank, not shapes (2, 3, 7) and (3, 3)",
        ),
        (
            lambda: lax.conv(X[0, 0], X[0, 0], (), "SAME"),
            TypeError,
            "conv_general_dilated: the input must have a batch dim and a feature dim, not f32[7]",
        ),
        (
            lambda: lax.conv(X, K, (1, 1), "SAME"),
            ValueError,
            "conv_general_dilated: window_strides must have 1 numbers, one for each dim, not (1, 1)",
        ),
        (
            lambda: lax.conv(X, K, (1,), "FULL"),
            ValueError,
            "conv_general_dilated: padding must be 'SAME', 'SAME_LOWER', 'VALID' or a pair of numbers for each dim, "
            "not 'FULL'",
        ),
        (
            lambda: lax.conv_general_dilated(X, K, (1,), "SAME", lhs_dilation=(2,)),
            ValueError,
            "conv_general_dilated: with lhs_dilation, padding must be pairs of numbers; see also conv_transpose",
        ),
        (
            lambda: lax.conv_general_dilated(X, K, (1,), [(1, 1), (0, 0)]),
            ValueError,
            "conv_general_dilated: padding must have 1 pairs, one for each dim, not [(1, 1), (0, 0)]",
        ),
        (
            lambda: lax.conv_general_dilated(X, K, (1,), "SAME", dimension_numbers=("NCH", "OIW", "NCH")),
            ValueError,
            "convolution: 'NCH' in dimension_numbers ('NCH', 'OIW', 'NCH') must name 3 dims, each once: 'N', 'C' and "
            "the spatial dims of 'OIW', 'W'",
        ),
        (
            lambda: lax.conv_general_dilated(X, K, (1,), "SAME", dimension_numbers="NCH"),
            TypeError,
            "convolution: dimension_numbers must be None, a ConvDimensionNumbers, or three strings such as "
            "('NHWC', 'HWIO', 'NHWC'), not 'NCH'",
        ),
        (
            lambda: lax.conv(X, K[:, :2], (1,), "SAME"),
            ValueError,
            "conv_general_dilated: f32[2,3,7] has 3 features in 1 group, but the kernel f32[4,2,3] has 2 "
            "input features per group",
        ),
        (
            lambda: lax.conv_general_dilated(X, K[:, :1], (1,), "SAME", feature_group_count=3),
            ValueError,
            "conv_general_dilated: the number of output features of the kernel, 4, is not divisible by the number of "
            "groups, 3",
        ),
        (
            lambda: lax.conv_general_dilated(X, K, (1,), "SAME", batch_group_count=4),
            ValueError,
            "conv_general_dilated: the batch size, 2, is not divisible by the number of groups, 4",
        ),
        (
            lambda: lax.conv_general_dilated(X, K, (1,), "SAME", feature_group_count=3, batch_group_count=2),
            ValueError,
            "conv_general_dilated: feature_group_count and batch_group_count must be 1 or more, and one of them must "
            "be 1, not 3 and 2",
        ),
        (
            lambda: lax.conv(X, K.astype(np.float16), (1,), "SAME"),
            TypeError,
            "conv: operands must have one dtype, not f32[2,3,7] and f16[4,3,3]",
        ),
        (
            lambda: lax.conv(X, K, (1,), "SAME", preferred_element_type=np.float16),
            TypeError,
            "conv: f16 is too narrow for sums of products of f32[2,3,7]",
        ),
        (
            lambda: lax.conv(X, K, (1,), "SAME", precision="exact"),
            ValueError,
            "conv_general_dilated: 'exact' is not a precision; use one of default, high, highest, fastest, bfloat16, "
            "bfloat16_3x, tensorfloat32, float32",
        ),
        (
            lambda: lax.conv_transpose(X, K, (1,), "FULL"),
            ValueError,
            "conv_transpose: padding must be 'SAME', 'VALID' or a pair of numbers for each spatial dim, not 'FULL'",
        ),
        (
            lambda: lax.reduce_window(np.arange(4), 0.5, lax.add, (2,)),
            TypeError,
            "reduce_window: init_value must be a scalar that i32[4] can hold, not f32[]~",
        ),
        (
            lambda: lax.reduce_window(X, 0.0, lax.add, (2,)),
            ValueError,
            "reduce_window: window_dimensions must have 3 numbers, one for each dim, not (2,)",
        ),
        (
            lambda: jnp.convolve(X, K),
            ValueError,
            "convolve: needs two arrays of rank 1, not f32[2,3,7] and f32[4,3,3]",
        ),
        (
            lambda: jnp.correlate(X[0, 0], X[0, 0, :0]),
            ValueError,
            "correlate: an operand is empty: f32[7] and f32[0]",
        ),
        (
            lambda: jnp.convolve(X[0, 0], X[0, 0], "all"),
            ValueError,
            "convolve: mode must be 'full', 'same' or 'valid', not 'all'",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_error_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def network(x, kernels):
    """Two convolutions, one of them grouped and strided, max and mean pooling, and a transposed convolution."""
    first, second, up = kernels
    numbers = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=numbers)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    x = lax.conv_general_dilated(x, second, (2, 1), "SAME", dimension_numbers=numbers, feature_group_count=2)
    x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID") / 4
    return lax.conv_transpose(x, up, (2, 2), "SAME")


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    "spec",
    [P("data"), P(None, "data"), P(None, "data", "model"), P("model", "data"), P(None, None, ("data", "model"))],
    ids=str,
)
@pytest.mark.parametrize("size", [(32, 16), (26, 19)], ids=["even", "uneven"])
def test_8_devices_match_one_device(mesh, size, spec):
    rng = np.random.default_rng(0)
    shapes = [(3, 3, 2, 4), (3, 3, 2, 4), (3, 3, 4, 2)]
    kernels = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    x = rng.normal(size=(4, *size, 2)).astype(np.float32)

    def loss(x, kernels):
        y = network(x, kernels)
        return jnp.sum(y * jnp.sin(y)), y

    step = sw.jit(sw.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    unsharded = step(x, kernels)
    sharded = step(sw.device_put(x, NamedSharding(mesh, spec)), kernels)
    for actual, expected in zip(sw.tree.leaves(sharded), sw.tree.leaves(unsharded), strict=True):
        largest = float(np.abs(np.asarray(expected)).max())
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-4, atol=1e-4 * largest)
