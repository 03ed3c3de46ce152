"""Warnings about large all-gathers that the user did not ask for and that a constraint would avoid: once each."""

import warnings

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def ones(mesh, spec, *shape):
    return sw.device_put(np.ones(shape, np.float32), NamedSharding(mesh, spec))


def triangles(x):
    return jnp.linalg.qr(x)[1]


def test_an_avoidable_gather_warns_once_with_op_line_and_constraint(mesh):
    """qr needs the matrix dims unsharded, and the batch dim may be sharded."""
    jitted = sw.jit(triangles)
    x = ones(mesh, P(None, "data"), 64, 512, 16)
    with pytest.warns(UserWarning) as caught:
        jitted(x)
        jitted(x)  # compiled already
    (warning,) = caught
    text = str(warning.message)
    line = f"test_avoidable_gathers.py:{triangles.__code__.co_firstlineno + 1}"
    assert text == (
        f"in `triangles`, qr at {line} is computed redundantly after an all-gather to f32[64,512,16] "
        f"per device: `x` has sharding P(None, 'data', None); qr at {line} needs P(None, None, None). "
        "Each device sends 1.5 MiB. To shard the work and send 1.1 MiB less per device, pin the value to "
        "P('data', None, None) with lax.with_sharding_constraint. See shardwise.explain."
    )
    assert warning.filename == __file__


def test_the_constraint_saves_the_stated_bytes(mesh):
    """With the constraint there is no warning, an all-to-all of the stated bytes, and the same result."""
    where = NamedSharding(mesh, P("data"))
    x = ones(mesh, P(None, "data"), 64, 512, 16)
    pinned = sw.jit(lambda x: triangles(lax.with_sharding_constraint(x, where)))
    plan = pinned.lower(x).compile().plan
    assert plan.counts() == {"all_to_all": 1}
    assert plan.wire_bytes == pytest.approx(0.375 * 2**20)
    with pytest.warns(UserWarning, match="is computed redundantly after an all-gather"):
        expected = sw.jit(lambda x: triangles(x) + 0)(x)  # a new program: it is not in the cache
    np.testing.assert_array_equal(pinned(x), expected)


def test_several_avoidable_gathers_are_one_warning(mesh):
    x, y = ones(mesh, P(None, "data"), 64, 512, 16), ones(mesh, P(None, "data"), 32, 1024, 32)
    with pytest.warns(
        UserWarning,
        match=r"all-gather to f32\[32,1024,32\] per device.* Further avoidable all-gathers in this program: 1\.$",
    ) as caught:
        sw.jit(lambda x, y: (triangles(x), triangles(y)))(x, y)
    assert len(caught) == 1


def test_ops_that_only_move_elements_do_not_count_as_work(mesh):
    """cholesky first symmetrizes its operand: the transpose needs the all-gather, and cholesky is the work."""
    with pytest.warns(
        UserWarning, match=r"cholesky at .*; transpose at .* pin the value to P\('data', None, None\) with"
    ):
        sw.jit(jnp.linalg.cholesky)(ones(mesh, P(None, "data"), 8, 256, 256))


@pytest.mark.parametrize(
    "case",
    [
        "small",
        "no other dim",
        "odd batch",
        "constraint",
        "output",
        "weight for a batch",
        "transposed weight",
        "behind a transpose",
        "reduction costs more",
        "one device",
    ],
    ids=lambda name: name.replace(" ", "-"),
)
def test_gathers_that_are_small_requested_or_optimal_do_not_warn(mesh, case):
    replicated = NamedSharding(mesh, P())
    programs = {
        "small": (triangles, [ones(mesh, P(None, "data"), 64, 128, 16)]),
        "no other dim": (triangles, [ones(mesh, P("data"), 4096, 128)]),
        "odd batch": (triangles, [ones(mesh, P(None, "data"), 63, 512, 16)]),
        "constraint": (
            lambda x: triangles(lax.with_sharding_constraint(x, replicated)),
            [ones(mesh, P(None, "data"), 64, 512, 16)],
        ),
        "output": (sw.jit(lambda x: x + 1, out_shardings=replicated), [ones(mesh, P("data"), 4096, 128)]),
        "weight for a batch": (jnp.matmul, [ones(mesh, P("data"), 4096, 512), ones(mesh, P("data"), 512, 1024)]),
        "transposed weight": (
            lambda x, w: x @ jnp.tanh(w).T,
            [ones(mesh, P("data"), 4096, 512), ones(mesh, P("data"), 1024, 512)],
        ),
        "behind a transpose": (jnp.linalg.cholesky, [ones(mesh, P(None, "data"), 7, 256, 256)]),
        # Sharded along either other dim, the added rows would have to be reduced or gathered themselves.
        "reduction costs more": (
            lambda table, at, rows: table - 0.1 * jnp.zeros_like(table).at[at].add(rows),
            [ones(mesh, P(), 4096, 256), ones(mesh, P(), 32, 64).astype(int), ones(mesh, P("data"), 32, 64, 256)],
        ),
        "one device": (triangles, [np.ones((64, 512, 16), np.float32)]),
    }
    function, args = programs[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = sw.jit(function).lower(*args).compile().plan
    expected = {} if case == "one device" else {"all_gather": 1}
    assert plan.counts() == expected
