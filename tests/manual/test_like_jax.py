"""The same regions under JAX's shard_map and ours: values, dtypes, shapes, and the shards of every device."""

from typing import Any

import numpy as np
import pytest

import shardwise as sw
from benchmarks import regions
from tests.device_shards import shard_bounds

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

from benchmarks import ours, peer  # noqa: E402 - gives JAX eight devices

RNG = np.random.default_rng(3)
GRID = ((4, 2), ("x", "y"))
ARRAYS = [RNG.normal(size=shape).astype(np.float32) for shape in ((8, 12), (12, 16), (12,))]


class Library:
    """Shardwise or JAX, with a mesh, a shard_map on it, and arrays."""

    X: Any
    W: Any
    V: Any

    def __init__(self, side, sizes=GRID):
        self.jax = side.library
        self.np, self.lax, self.P = self.jax.numpy, self.jax.lax, self.jax.sharding.PartitionSpec
        self.mesh = side.mesh(*sizes)

    def map(self, f, in_specs, out_specs, **options):
        def spec(entry):
            if isinstance(entry, list):
                return tuple(map(spec, entry))
            return self.P(*entry)

        return self.jax.shard_map(f, mesh=self.mesh, in_specs=spec(in_specs), out_specs=spec(out_specs), **options)


# A spec is a tuple; several arguments or results have a list of them.
ROWS, ALL, NONE = ("x",), (("x", "y"),), ()

VALUES = {
    "local": lambda m: m.map(lambda x: m.np.sin(x) * 2, ROWS, ROWS)(m.X),
    "transposed": lambda m: m.map(lambda x: x.T, ("x", "y"), ("y", "x"))(m.X),
    "axes in both orders": lambda m: m.map(
        lambda x: x.T + m.lax.axis_index(("y", "x")), (("y", "x"),), (None, ("x", "y"))
    )(m.X),
    "vmap along an axis of the mesh": lambda m: m.jax.vmap(
        m.map(lambda x: m.lax.psum(x, "y"), ("y",), NONE), spmd_axis_name="x"
    )(m.X),
    "keepdims": lambda m: m.map(lambda x: x.sum(keepdims=True), ALL, ALL)(m.X),
    "psum": lambda m: m.map(lambda x: m.lax.psum(x, ("x", "y")), ALL, NONE)(m.X),
    "psum over one": lambda m: m.map(lambda x: m.lax.psum(x, "y"), ("x", "y"), ROWS)(m.X),
    "pmean": lambda m: m.map(lambda x: x - m.lax.pmean(x, "x"), ROWS, ROWS)(m.X),
    "pmax, pmin": lambda m: m.map(lambda x: (m.lax.pmax(x, "x"), m.lax.pmin(x, "x")), ROWS, NONE)(m.X),
    "gather": lambda m: m.map(lambda x: m.lax.all_gather(x, "x", axis=1), ROWS, ROWS)(m.X),
    "gather, tiled": lambda m: m.map(lambda x: m.lax.all_gather(x, ("y", "x"), axis=1, tiled=True), ALL, ALL)(m.X),
    "gather to invarying": lambda m: m.map(lambda x: m.lax.all_gather(x, "x", to="invarying"), ROWS, NONE)(m.X),
    "scatter": lambda m: m.map(lambda x: m.lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True), ROWS, ROWS)(m.X),
    "scatter over two": lambda m: m.map(
        lambda x: m.lax.psum_scatter(x[:, :8], ("x", "y"), scatter_dimension=1), ALL, ALL
    )(m.X),
    "exchange": lambda m: m.map(lambda x: m.lax.all_to_all(x, "x", 1, 0, tiled=True), ROWS, (None, "x"))(m.X),
    "exchange over two": lambda m: m.map(
        lambda x: m.lax.all_to_all(x[:, :8], ("y", "x"), 1, 0, tiled=True), ALL, (None, ("y", "x"))
    )(m.X),
    "permute": lambda m: m.map(lambda x: m.lax.ppermute(x, "x", [(0, 1), (1, 3), (3, 2)]), ROWS, ROWS)(m.X),
    "permute over two": lambda m: m.map(
        lambda x: m.lax.ppermute(x, ("x", "y"), [(k, (k + 3) % 8) for k in range(7)]), ALL, ALL
    )(m.X),
    "shuffle": lambda m: m.map(lambda x: m.lax.pshuffle(x, "x", [3, 1, 0, 2]), ROWS, ROWS)(m.X),
    "swap": lambda m: m.map(lambda x: m.lax.pswapaxes(x[:, :4], "x", 1), ROWS, ROWS)(m.X),
    "axis sizes and Python scalars": lambda m: m.map(
        lambda x: x * m.lax.axis_size("x") + m.lax.psum(1, ("x", "y")), ROWS, ROWS
    )(m.X),
    "cast": lambda m: m.map(lambda x: m.lax.pcast(x, "x", to="varying") * m.lax.axis_index("x"), NONE, ROWS)(m.X),
    "copies": lambda m: m.map(lambda x: x.sum()[None], NONE, ROWS)(m.X),
    "groups": lambda m: m.map(
        lambda x: (
            m.lax.psum(x, "x", axis_index_groups=[[0, 3], [2, 1]]),
            m.lax.pmax(x, ("x", "y"), axis_index_groups=[[0, 1, 7, 3], [4, 5, 6, 2]]),
            m.lax.all_gather(x, "x", axis_index_groups=[[0, 2], [3, 1]]),
            m.lax.psum_scatter(x, "x", scatter_dimension=1, axis_index_groups=[[0, 2], [3, 1]], tiled=True),
            m.lax.all_to_all(x, "x", 1, 0, axis_index_groups=[[0, 2], [3, 1]], tiled=True),
        ),
        ALL,
        ALL,
        check_vma=False,
    )(m.X),
    "replication not checked": lambda m: m.map(lambda x: m.lax.psum(x, "x") + 1, ROWS, NONE, check_vma=False)(m.X),
    "narrow floats and integers": lambda m: m.map(
        lambda x: (
            m.lax.psum(x.astype("bfloat16"), "x"),
            m.lax.psum((x * 10).astype("int8"), "x"),
            m.lax.psum(x > 0, "x"),
            m.lax.pmax((x * 10).astype("int32"), "x"),
        ),
        ROWS,
        NONE,
    )(m.np.round(m.X)),
    "trees": lambda m: m.map(lambda t, x: (x, [t["k"].sum() + x.sum()[None], (x, {})]), [NONE, ROWS], [ROWS, ROWS])(
        {"k": m.X}, m.X
    ),
    "branch": lambda m: m.map(
        lambda x: m.lax.cond(m.lax.axis_index("x") > 1, lambda z: z * 2, lambda z: z + 1, x), ROWS, ROWS
    )(m.X),
    "while": lambda m: m.map(
        lambda x: m.lax.while_loop(lambda c: c.sum() < 30.0 * (1 + m.lax.axis_index("x")), lambda c: c + 0.75, x),
        ROWS,
        ROWS,
    )(m.np.abs(m.X)),
    "scan": lambda m: m.map(
        lambda x: m.lax.scan(lambda c, _: (m.np.tanh(c + m.lax.pmean(c, "x")), c.sum(0)), x, None, length=3),
        ROWS,
        [ROWS, (None, "x")],
    )(m.X),
    "another jit": lambda m: m.map(m.jax.jit(lambda x: m.lax.psum(x, "x")), ROWS, NONE)(m.X),
    "random": lambda m: m.map(
        lambda k: m.jax.random.normal(m.jax.random.fold_in(k, m.lax.axis_index("x")), (2, 3)), NONE, ROWS
    )(m.jax.random.key(0)),
    "vmap": lambda m: m.jax.vmap(m.map(lambda x: m.lax.psum(x, "x"), ROWS, NONE))(m.X.reshape(2, 4, 12)),
    "vmap inside": lambda m: m.map(
        m.jax.vmap(lambda r: m.lax.all_gather(r, "x", tiled=True) + m.lax.axis_index("y")), ROWS, ("x", "y")
    )(m.X),
}


def squared(f):
    return lambda *args: (f(*args) ** 2).sum()


GRADIENTS = {
    "inside": lambda m: m.map(lambda w, x: m.jax.grad(lambda w: m.np.sin(x @ w).sum())(w), [NONE, ROWS], NONE)(
        m.W, m.X
    ),
    "inside, of a sum": lambda m: m.map(
        lambda w, x: m.jax.grad(lambda w: m.lax.psum(m.np.sin(x @ w).sum(), "x"))(w), [NONE, ROWS], NONE
    )(m.W, m.X),
    "inside, unchecked": lambda m: m.map(
        lambda w, x: m.lax.psum(m.jax.grad(lambda w: m.np.sin(x @ w).sum())(w), "x"),
        [NONE, ROWS],
        NONE,
        check_vma=False,
    )(m.W, m.X),
    "replicated": lambda m: m.jax.grad(
        lambda w: m.map(lambda w, x: m.lax.psum(m.np.sin(x @ w).sum(), ("x", "y")), [(None, "y"), ROWS], NONE)(w, m.X)
    )(m.W),
    "unchecked": lambda m: m.jax.grad(
        lambda w: m.map(
            lambda w, x: m.lax.psum(m.np.sin(x @ w).sum(), ("x", "y")), [(None, "y"), ROWS], NONE, check_vma=False
        )(w, m.X)
    )(m.W),
    "gather": lambda m: m.jax.grad(
        squared(m.map(lambda x: m.lax.all_gather(x, "x", tiled=True) * (1 + m.lax.axis_index("x")), ROWS, ROWS))
    )(m.X),
    "scatter": lambda m: m.jax.grad(
        squared(m.map(lambda x: m.lax.psum_scatter(m.np.sin(x), "x", scatter_dimension=1, tiled=True), ROWS, ROWS))
    )(m.X),
    "exchange": lambda m: m.jax.grad(
        squared(m.map(lambda x: m.lax.all_to_all(m.np.sin(x), "x", 1, 0, tiled=True), ROWS, (None, "x")))
    )(m.X),
    "permute": lambda m: m.jax.grad(
        squared(m.map(lambda x: m.lax.ppermute(x, "x", [(0, 1), (1, 2), (2, 3)]) * x, ROWS, ROWS))
    )(m.X),
    "scan": lambda m: m.jax.grad(
        lambda w: m.map(
            lambda x, w: m.lax.scan(
                lambda c, _: (m.np.tanh(c + m.lax.pmean(m.np.sin(c) * w.mean(), "x")), c.sum()), x, None, length=3
            )[0],
            [ROWS, NONE],
            ROWS,
        )(m.X, w).sum()
    )(m.W),
    "remat": lambda m: m.jax.grad(
        lambda w: m.map(
            m.jax.checkpoint(lambda w, x: m.lax.psum(m.np.sin(m.np.sin(x @ w)).sum(), "x")), [NONE, ROWS], NONE
        )(w, m.X)
    )(m.W),
    "twice": lambda m: m.jax.hessian(
        lambda v: m.map(lambda v, x: m.lax.psum(m.np.sin(x @ v).sum(), "x"), [NONE, ROWS], NONE)(v, m.X)
    )(m.V),
    "forward": lambda m: m.jax.jvp(
        lambda w: m.map(lambda w, x: m.lax.psum(m.np.sin(x @ w), "x"), [NONE, ROWS], NONE)(w, m.X), (m.W,), (m.W * 2,)
    ),
    "vmap": lambda m: m.jax.vmap(
        m.jax.grad(
            squared(m.map(lambda x: m.lax.all_gather(x, "x", tiled=True) * (1 + m.lax.axis_index("x")), ROWS, ROWS))
        )
    )(m.X.reshape(2, 4, 12)),
    "custom_vjp": lambda m: custom_rule(m, 2),
    "along one axis of two": lambda m: m.jax.grad(
        squared(
            lambda w: m.map(lambda x, w: m.lax.psum(m.np.sin(x @ w), "x"), [(None, "x"), ROWS], NONE, axis_names={"x"})(
                m.X, w
            )
        )
    )(m.W),
}


def custom_rule(m, times):
    @m.jax.custom_vjp
    def f(x):
        return m.lax.psum(x, "x")

    f.defvjp(lambda x: (f(x), None), lambda _, g: (m.lax.pcast(g, "x", to="varying") * times,))
    return m.jax.grad(squared(m.map(f, ROWS, NONE)))(m.X)


def check_equal(table, compare_shardings, sizes=GRID):
    """Compare all rows, which are one program for each library."""
    results = []
    for library in (Library(ours, sizes), Library(peer, sizes)):

        def all_rows(arrays, m=library):
            m.X, m.W, m.V = arrays
            return {name: row(m) for name, row in table.items()}

        results.append(library.jax.jit(all_rows)(ARRAYS))
    for name in table:
        ours_leaves, theirs = sw.tree.leaves(results[0][name]), jax.tree.leaves(results[1][name])
        assert len(ours_leaves) == len(theirs) > 0, name
        for a, b in zip(ours_leaves, theirs, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), name
            tolerance = 0.02 if a.dtype == "bfloat16" else 1e-4
            np.testing.assert_allclose(
                np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance, err_msg=name
            )
            if compare_shardings:
                assert shard_bounds(a) == shard_bounds(b), name


def test_values_and_shardings():
    check_equal(VALUES, compare_shardings=True)


@pytest.mark.slow
def test_gradients():
    check_equal(GRADIENTS, compare_shardings=False)


def with_gradients(m, body, in_specs, out_specs, *args):
    region = m.map(body, in_specs, out_specs)

    def value_and_gradients(*args):
        y, pull = m.jax.vjp(region, *args)
        return y, pull(y)

    return value_and_gradients(*args)


@pytest.mark.slow  # test_programs.py compares them with one device
def test_programs():
    def normal(*shape):
        return RNG.normal(size=shape).astype(np.float32)

    q, k, v = (normal(2, 16, 2, 4) for _ in range(3))
    tokens, router, up, down = normal(32, 6), normal(6, 16), normal(16, 6, 5), normal(16, 5, 6)
    layers, batches = normal(8, 4, 4), normal(5, 3, 4)
    x, weights = normal(16, 8), 0.3 * normal(3, 8, 8)
    sequence = (None, "x")
    programs = {
        "ring attention": lambda m: with_gradients(m, regions.attention(m.jax, "x"), [sequence] * 3, sequence, q, k, v),
        "experts": lambda m: with_gradients(
            m, regions.experts(m.jax, "x"), [ROWS, NONE, ROWS, ROWS], ROWS, tokens, router, up, down
        ),
        "pipeline": lambda m: with_gradients(m, regions.pipeline(m.jax, "x"), [ROWS, NONE], NONE, layers, batches),
        "stencil": lambda m: with_gradients(m, regions.stencil(m.jax, "x", 3), [ROWS], ROWS, x),
        "FSDP layers": lambda m: with_gradients(m, regions.fsdp_layers(m.jax, "x"), [ROWS, sequence], ROWS, x, weights),
        "Megatron MLP": lambda m: with_gradients(
            m, regions.megatron_mlp(m.jax, "x"), [NONE, sequence, ROWS], NONE, x, weights[0], weights[1]
        ),
    }
    check_equal(programs, compare_shardings=False, sizes=((8,), ("x",)))
