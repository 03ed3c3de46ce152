"""Large gathers that nobody asked for and that a constraint would spare: told once, and only these."""

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


def test_an_avoidable_gather_is_told_once_with_op_line_and_remedy(mesh):
    """A matrix dim must be whole for qr; the batch need not."""
    jitted = sw.jit(triangles)
    x = ones(mesh, P(None, "data"), 64, 512, 16)
    with pytest.warns(UserWarning) as caught:
        jitted(x)
        jitted(x)  # compiled already
    (warning,) = caught
    text = str(warning.message)
    line = triangles.__code__.co_firstlineno + 1
    assert text == (
        f"in `triangles`, qr at test_warnings.py:{line} gathers a value of f32[64,512,16] on each device, and all of "
        f"them then do the same work: `x` lies as P(None, 'data', None); qr at test_warnings.py:{line} needs "
        "P(None, None, None). Each device sends 1.5 MiB. If the value is pinned to P('data', None, None) before, by "
        "lax.with_sharding_constraint, the work is shared, and 1.1 MiB less are sent. See shardwise.explain."
    )
    assert warning.filename == __file__


def test_the_remedy_is_one(mesh):
    """What it says comes true: no warning, an exchange of just these bytes, the same result."""
    where = NamedSharding(mesh, P("data"))
    x = ones(mesh, P(None, "data"), 64, 512, 16)
    pinned = sw.jit(lambda x: triangles(lax.with_sharding_constraint(x, where)))
    plan = pinned.lower(x).compile().plan
    assert plan.counts() == {"all_to_all": 1}
    assert plan.wire_bytes == pytest.approx(0.375 * 2**20)
    with pytest.warns(UserWarning, match="gathers a value"):
        expected = sw.jit(lambda x: triangles(x) + 0)(x)  # which nobody has compiled yet
    np.testing.assert_array_equal(pinned(x), expected)


def test_several_are_one_warning(mesh):
    x, y = ones(mesh, P(None, "data"), 64, 512, 16), ones(mesh, P(None, "data"), 32, 1024, 32)
    with pytest.warns(
        UserWarning, match=r"gathers a value of f32\[32,1024,32\].* There are 1 more like it\.$"
    ) as caught:
        sw.jit(lambda x, y: (triangles(x), triangles(y)))(x, y)
    assert len(caught) == 1


def test_ops_that_only_move_elements_are_not_the_work(mesh):
    """cholesky first makes its operand symmetric: the transpose needs the gather, the work is behind it."""
    with pytest.warns(UserWarning, match=r"cholesky at .*; transpose at .* pinned to P\('data', None, None\) before"):
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
        "turned weight",
        "behind a transpose",
        "sum is dearer",
        "one device",
    ],
    ids=lambda name: name.replace(" ", "-"),
)
def test_what_is_small_asked_for_or_the_best_way_is_not_told(mesh, case):
    whole = NamedSharding(mesh, P())
    programs = {
        "small": (triangles, [ones(mesh, P(None, "data"), 64, 128, 16)]),
        "no other dim": (triangles, [ones(mesh, P("data"), 4096, 128)]),
        "odd batch": (triangles, [ones(mesh, P(None, "data"), 63, 512, 16)]),
        "constraint": (
            lambda x: triangles(lax.with_sharding_constraint(x, whole)),
            [ones(mesh, P(None, "data"), 64, 512, 16)],
        ),
        "output": (sw.jit(lambda x: x + 1, out_shardings=whole), [ones(mesh, P("data"), 4096, 128)]),
        "weight for a batch": (jnp.matmul, [ones(mesh, P("data"), 4096, 512), ones(mesh, P("data"), 512, 1024)]),
        "turned weight": (
            lambda x, w: x @ jnp.tanh(w).T,
            [ones(mesh, P("data"), 4096, 512), ones(mesh, P("data"), 1024, 512)],
        ),
        "behind a transpose": (jnp.linalg.cholesky, [ones(mesh, P(None, "data"), 7, 256, 256)]),
        # Cut along either other dim, the rows that are added would have to be summed or gathered in their turn.
        "sum is dearer": (
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
