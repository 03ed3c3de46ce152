"""pad in all modes against numpy and JAX; sharded, against one device, without all-gathers."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from shardwise.sharding import PartitionSpec as P
from tests.agreement import (
    PARTS,
    Case,
    gradients_like,
    mesh_like_one_device,
    values_like_both,
    values_like_numpy,
    vmap_like_loop,
)

try:
    import jax
except ImportError:
    jax = None

TABLE = np.array([[0.5, 3, -2, 4], [5, 1, 0, 1.5], [-1, 2, 6, 0.25]], np.float32)
INTEGERS = np.array([[1, 7, 2], [5, 4, 9]], np.int32)
UNEVEN = ((1, 2), (3, 0))
CASES = [
    *(Case("pad", (TABLE, UNEVEN, mode)) for mode in ("edge", "wrap", "linear_ramp", "empty")),
    *(Case("pad", (TABLE, UNEVEN, mode)) for mode in ("maximum", "minimum", "mean", "median")),
    *(
        Case("pad", (array, width, mode), {"reflect_type": turn})
        for mode in ("reflect", "symmetric")
        for turn in ("even", "odd")
        for array, width in ((TABLE, UNEVEN), (INTEGERS, 7))
    ),
    Case("pad", (INTEGERS, 7, "wrap")),
    Case("pad", (INTEGERS, ((0, 3), (0, 0)), "wrap")),
    Case("pad", (INTEGERS, (2, 3), "mean"), {"stat_length": ((1, 2), (2, 9))}),
    Case("pad", (INTEGERS, (2, 3), "median"), {"stat_length": 2}),
    Case("pad", (INTEGERS, (2, 3), "maximum"), {"stat_length": (1, 2)}),
    Case("pad", (TABLE, (2, 3), "linear_ramp"), {"end_values": (9, -3)}),
    Case("pad", (TABLE[:1, :1], 3, "reflect")),
    Case("pad", (TABLE > 1, 2, "mean")),
    Case("pad", (TABLE > 1, 2, "reflect")),
    Case("pad", (np.zeros((0, 3), np.float32), ((0, 0), (1, 2)), "edge")),
]


def _padded_parts(row, counts, dim, keywords):
    """The parts of a padded row, for arrays of any library; nothing is written in place."""
    first = row[counts[0] : counts[0] + 1] * 0 + keywords.get("number", 7)
    return [*([first] * counts[0]), row[counts[0] : row.shape[0] - counts[1]], *([first - dim] * counts[1])]


@pytest.mark.table(default=1)
@PARTS
def test_like_numpy_and_jax(part):
    values_like_both(
        jnp, [case for case in CASES if case.args[2] != "empty"][part], [c for c in CASES if c.args[2] == "empty"][part]
    )


def test_linear_ramp_of_integers_is_exact():
    """Like numpy, which computes in 64 bits; JAX rounds in float32 first."""
    values_like_numpy(jnp, [Case("pad", (INTEGERS, (2, 3), "linear_ramp"), {"end_values": ((0, 10), (-5, 5))})])


@pytest.mark.slow
def test_mode_function_like_numpy():
    def ours(row, counts, dim, keywords):
        return jnp.concatenate(_padded_parts(row, counts, dim, keywords))

    def theirs(row, counts, dim, keywords):
        row[:] = np.concatenate(_padded_parts(row, counts, dim, keywords))

    for keywords in ({}, {"number": 3}):
        actual, expected = jnp.pad(TABLE, UNEVEN, ours, **keywords), np.pad(TABLE, UNEVEN, theirs, **keywords)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@PARTS
def test_gradients_like_jax(part):
    gradients_like(jnp, jax.numpy, [case for case in CASES if case.args[0].dtype == np.float32][part], jax)


@pytest.mark.table(default=1)
@PARTS
def test_vmap_like_loop(part):
    vmap_like_loop(jnp, CASES[:16:2][part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_sharded_like_one_device(which, part):
    mesh_like_one_device(sw.make_mesh((2, 2), ("x", "y")), jnp, CASES[:-1][part], which)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "mean"])
def test_sharded_dim_is_not_all_gathered(mode):
    """Devices exchange only halos and the elements that shift to a neighbour, far less than a shard."""
    mesh = AbstractMesh((4,), ("x",))
    type = ArrayType((65536, 64), np.float32)
    program, _ = build(lambda x: [jnp.pad(x, ((2, 2), (0, 0)), mode)], [type], "padded")
    local = run_stages(program, mesh, [pin_of(P("x"), type.shape, mesh)], [None]).local
    sent = sum(local.bytes_sent(equation) for equation in local.collectives())
    shard_bytes = 4 * type.size / 4
    assert 0 < sent < 0.01 * shard_bytes
    assert local.outputs[0].layout.dims[0] == ("x",)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jnp.pad(TABLE, 1, "mirror"), NotImplementedError, "mode must be one of constant, edge, empty"),
        (
            lambda: jnp.pad(TABLE, 1, "edge", stat_length=1),
            ValueError,
            "mode 'edge' accepts no keywords, not stat_length",
        ),
        (lambda: jnp.pad(TABLE, 1, "mean", stat_length=0), ValueError, "stat_length must be 1 or more, not 0"),
        (lambda: jnp.pad(TABLE, 1, "mean", stat_length=(1, 2, 3)), ValueError, "stat_length of shape"),
        (lambda: jnp.pad(TABLE, 1, "reflect", reflect_type="x"), ValueError, "reflect_type must be 'even' or 'odd'"),
        (
            lambda: jnp.pad(TABLE[:0], 1, "wrap"),
            ValueError,
            "dim 0 of f32.0,4. has no elements, which mode 'wrap' needs",
        ),
    ],
    ids=["mode", "keyword", "length 0", "lengths", "type", "empty"],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()
