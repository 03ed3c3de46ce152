"""Compare initializers with JAX for the same keys, and scaled_matmul with numpy."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise import nn
from shardwise.sharding import NamedSharding, PartitionSpec
from tests.agreement import Case, assert_equal

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

BF16 = ml_dtypes.bfloat16
SCALINGS = [
    ("variance_scaling", (scale, mode, distribution), {}, shape, dtype)
    for scale, mode, distribution, shape, dtype in (
        (1.0, "fan_in", "normal", (5, 3), None),
        (2.0, "fan_out", "uniform", (3, 4, 5), None),
        (0.5, "fan_avg", "truncated_normal", (2, 3, 4, 5), None),
        (0.5, "fan_geo_avg", "normal", (4, 5), BF16),
        (1.0, "fan_in", "normal", (4, 5), np.complex64),
        (1.0, "fan_in", "uniform", (4, 5), np.complex64),
        (1.0, "fan_in", "truncated_normal", (4, 5), np.complex64),
    )
]
CALLS = [
    *SCALINGS,
    ("constant", (3,), {}, (2, 2), None),
    ("constant", (np.arange(3.0, dtype=np.float32),), {}, (2, 3), BF16),
    ("uniform", (), {}, (7,), None),
    ("uniform", (2.0, np.float16), {}, (7,), None),
    ("normal", (), {"stddev": 3.0}, (2, 5), None),
    ("truncated_normal", (0.5,), {"lower": -1.0, "upper": 1.5}, (9,), None),
    *(
        (name, (), {}, (4, 6), None)
        for name in ("glorot_uniform", "glorot_normal", "xavier_uniform", "xavier_normal", "lecun_uniform")
    ),
    *((name, (), {}, (3, 4, 6), None) for name in ("lecun_normal", "he_uniform", "he_normal", "kaiming_uniform")),
    ("orthogonal", (2.0,), {}, (5, 3), None),
    ("orthogonal", (), {"column_axis": 0}, (4, 2, 5), None),
    ("delta_orthogonal", (), {}, (3, 4, 2, 5), None),
    ("kaiming_normal", (), {"in_axis": (0, 1), "out_axis": 3, "batch_axis": 2}, (3, 4, 2, 6), None),
]


@pytest.mark.slow
def test_values_match_jax():
    def initialize(package, seed):
        key = package.random.PRNGKey(seed)
        initializers = package.nn.initializers
        arrays = [
            getattr(initializers, name)(*args, **keywords)(key, shape, *(() if dtype is None else (dtype,)))
            for name, args, keywords, shape, dtype in CALLS
        ]
        return [*arrays, initializers.zeros(key, (2, 3)), initializers.ones(key, (2,), np.int32)]

    ours, theirs = sw.jit(lambda: initialize(sw, 3))(), jax.jit(lambda: initialize(jax, 3))()
    for call, x, y in zip([*CALLS, "zeros", "ones"], ours, theirs, strict=True):
        assert_equal(x, y, Case(str(call), atol=1e-5))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("shape", [(8, 6), (7, 5)])
def test_out_sharding_does_not_change_the_values(mesh, shape):
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    key = sw.random.PRNGKey(1)
    for name in ("he_normal", "glorot_uniform"):
        init = getattr(nn.initializers, name)()
        sharded = init(key, shape, out_sharding=sharding)
        assert sharded.sharding.is_equivalent_to(sharding, 2)
        np.testing.assert_array_equal(sharded, init(key, shape))


def test_initializers_satisfy_the_protocol():
    assert isinstance(nn.initializers.he_normal(), nn.initializers.Initializer)


def test_invalid_arguments_raise():
    key = sw.random.PRNGKey(0)
    init = nn.initializers
    with pytest.raises(ValueError, match="has no axis -2 for the inputs"):
        init.he_normal()(key, (3,))
    with pytest.raises(ValueError, match="mode must be one of fan_in, fan_out, fan_avg, fan_geo_avg, not 'fan'"):
        init.variance_scaling(1.0, "fan", "normal")(key, (3, 3))
    with pytest.raises(ValueError, match="distribution must be one of truncated_normal, normal, uniform, not 'cauchy'"):
        init.variance_scaling(1.0, "fan_in", "cauchy")(key, (3, 3))
    with pytest.raises(ValueError, match="the shape must have at least two dims"):
        init.orthogonal()(key, (3,))
    with pytest.raises(ValueError, match=r"must not have fewer outputs \(dim -1\) than inputs \(dim -2\)"):
        init.delta_orthogonal()(key, (3, 4, 2))


RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=(2, rows, 8)).astype(np.float32) for rows in (3, 5))
A_SCALES, B_SCALES = (RNG.normal(size=(2, rows, 4)).astype(np.float32) for rows in (3, 5))


def test_scaled_matmul_matches_numpy():
    """The oracle is numpy because JAX supports scaled_matmul on some GPUs only."""

    def scaled(x, scales):
        return x.astype(np.float32) * np.repeat(scales, x.shape[2] // scales.shape[2], 2)

    for narrow in (np.float32, BF16, ml_dtypes.float8_e4m3fn):
        a, b = A.astype(narrow), B.astype(narrow)
        expected = np.einsum("bmk,bnk->bmn", scaled(a, A_SCALES), scaled(b, B_SCALES))
        out = nn.scaled_matmul(a, b, A_SCALES, B_SCALES)
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
        assert nn.scaled_matmul(a, b, A_SCALES, B_SCALES, BF16).dtype == BF16
    with pytest.raises(ValueError, match="must have the second dims"):
        nn.scaled_matmul(A, B, B_SCALES, A_SCALES)
