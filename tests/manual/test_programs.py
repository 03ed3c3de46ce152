"""Whole programs with manual regions: equal to one device, with gradients; mixed with automatic ones; with effects."""

from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from benchmarks import regions
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.manual.stages import simulated, staged

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def line():
    return sw.make_mesh((8,), ("x",))


@pytest.fixture(scope="module")
def grid():
    return sw.make_mesh((4, 2), ("x", "y"))


def close(got, wanted, tolerance=2e-5):
    for a, b in zip(sw.tree.leaves(got), sw.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


ROWS, WHOLE = P("x"), P()
PROGRAMS = {
    # on pieces; alone; in_specs; out_specs; arguments; and the collectives of value and gradients
    "ring attention": (
        regions.attention(sw, "x"),
        regions.attention_alone(sw),
        P(None, "x"),
        P(None, "x"),
        tuple(0.5 * normal(2, 16, 2, 4) for _ in range(3)),
        {"ppermute": 4},
    ),
    "mixture of experts": (
        regions.experts(sw, "x"),
        regions.experts_alone(sw),
        (ROWS, WHOLE, ROWS, ROWS),
        ROWS,
        (normal(32, 6), normal(6, 16), normal(16, 6, 5), normal(16, 5, 6)),
        {"all_to_all": 4, "all_reduce": 1},
    ),
    "pipeline": (
        regions.pipeline(sw, "x"),
        regions.pipeline_alone(sw),
        (ROWS, WHOLE),
        WHOLE,
        (normal(8, 4, 4), normal(5, 3, 4)),
        {"ppermute": 2, "all_reduce": 2},
    ),
    "stencil": (
        regions.stencil(sw, "x", 3),
        regions.stencil_alone(sw, 3),
        ROWS,
        ROWS,
        (normal(16, 3),),
        {"ppermute": 4},
    ),
    "fully sharded layers": (
        regions.gathered(sw, "x"),
        regions.gathered_alone(sw),
        (ROWS, P(None, "x")),
        ROWS,
        (normal(16, 8), 0.3 * normal(3, 8, 8)),
        {"all_gather": 2, "reduce_scatter": 1},
    ),
    "Megatron's layers": (
        regions.summed(sw, "x"),
        regions.summed_alone(sw),
        (WHOLE, P(None, "x"), ROWS),
        WHOLE,
        (normal(4, 6), normal(6, 16), normal(16, 6)),
        {"all_reduce": 2},
    ),
}


def with_gradients(f):
    """Results, and the gradients of a sum with weights, for all arguments."""

    def both(weights, *args):
        y, pull = sw.vjp(f, *args)
        return y, pull(weights)

    return both


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_equal_one_device(line, name):
    body, alone, in_specs, out_specs, args, wanted = PROGRAMS[name]
    weights = normal(*sw.eval_shape(alone, *args).shape)
    region = sw.shard_map(body, mesh=line, in_specs=in_specs, out_specs=out_specs)
    function = sw.jit(with_gradients(region))
    expected = sw.jit(with_gradients(alone))(weights, *args)
    close(function(weights, *args), expected)
    unchecked = sw.shard_map(body, mesh=line, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    close(simulated(with_gradients(unchecked), line.abstract, weights, *args), expected)
    specs = (in_specs,) * len(args) if isinstance(in_specs, P) else in_specs
    placed = [
        sw.device_put(x, NamedSharding(line, spec))
        for x, spec in zip((weights, *args), (out_specs, *specs), strict=True)
    ]
    assert sw.jit(with_gradients(region)).lower(*placed).plan.counts() == wanted


def test_three_ways_to_a_layer(line):
    """Automatic, constrained and manual: the comparison of the introduction to parallel programming."""
    x, weights, bias = normal(32), normal(32, 4), normal(4)
    cut = NamedSharding(line, P("x"))

    @sw.jit
    def layer(x, weights, bias):
        return sw.nn.sigmoid(x @ weights + bias)

    @sw.jit
    def constrained(x, weights, bias):
        x = lax.with_sharding_constraint(x, cut)
        weights = lax.with_sharding_constraint(weights, cut)
        return layer(x, weights, bias)

    @sw.jit
    @partial(sw.shard_map, mesh=line, in_specs=(P("x"), P("x", None), P(None)), out_specs=P(None))
    def manual(x, weights, bias):
        return sw.nn.sigmoid(lax.psum(x @ weights, "x") + bias)

    alone = layer(x, weights, bias)
    for found in (
        layer(sw.device_put(x, cut), sw.device_put(weights, cut), bias),
        constrained(x, weights, bias),
        manual(x, weights, bias),
    ):
        close(found, alone)
    assert manual(x, weights, bias).sharding == NamedSharding(line, P(None))


# Mixed with automatic parallelism.


def placed(mesh, x, *spec):
    return sw.device_put(x, NamedSharding(mesh, P(*spec)))


def test_manual_along_one_axis_and_automatic_along_the_other(grid):
    """The product over features is summed by hand; rows are cut by the plan, inside as outside."""
    x, w = normal(8, 16), normal(16, 6)

    def f(x, w):
        def body(x, w):
            y = lax.psum(jnp.sin(x @ w), "x")
            return lax.with_sharding_constraint(y, P("y"))

        region = sw.shard_map(body, mesh=grid, in_specs=(P(None, "x"), P("x")), out_specs=P(), axis_names={"x"})
        return region(2 * x, w).sum(0)

    # The sine is of what each device has, so that the product of the whole is not it.
    alone = sum(np.sin(2 * x[:, 4 * k : 4 * k + 4] @ w[4 * k : 4 * k + 4]) for k in range(4)).sum(0)
    args = placed(grid, x, "y", "x"), placed(grid, w, "x")
    lowered = sw.jit(f).lower(*args)
    close(sw.jit(f)(*args), alone)
    rows = {(row.kind, row.axes): row.reason for row in lowered.plan.collectives}
    assert set(rows) == {("all_reduce", ("x",)), ("all_reduce", ("y",))}
    assert rows["all_reduce", ("x",)] == "written by hand, along 'x'"
    assert "leaves terms of a sum along 'y'" in rows["all_reduce", ("y",)]
    explained = str(sw.explain(f)(*args))
    assert explained.count("written by hand, along 'x'") == 1
    gradient = sw.jit(sw.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)))(*args)

    def loop(x, w):
        total = sum(jnp.sin(2 * x[:, 4 * k : 4 * k + 4] @ w[4 * k : 4 * k + 4]) for k in range(4))
        return (total.sum(0) ** 2).sum()

    close(gradient, sw.jit(sw.grad(loop, (0, 1)))(x, w), 1e-4)


def test_what_is_automatic_inside_keeps_its_cut(grid):
    """Nothing is sent along the axis that is planned: rows come in cut, are cut inside, and leave cut."""

    def body(x, w):
        return lax.psum(x @ w, "x")

    region = sw.shard_map(body, mesh=grid, in_specs=(P(None, "x"), P("x")), out_specs=P(), axis_names={"x"})
    x, w = normal(8, 16), normal(16, 6)
    args = placed(grid, x, "y", "x"), placed(grid, w, "x")
    found = sw.jit(region)(*args)
    close(found, x @ w)
    assert found.sharding == NamedSharding(grid, P("y"))
    assert sw.jit(region).lower(*args).plan.counts() == {"all_reduce": 1}


def test_regions_in_regions(grid):
    x = normal(8, 6)

    def inner(z):
        return lax.psum(z, "y") * (1 + lax.axis_index("x"))

    def outer(x):
        nested = sw.shard_map(inner, in_specs=P(None, "y"), out_specs=P(), axis_names={"y"})
        return nested(x) + lax.pmean(x[:, :3], "x")

    region = sw.shard_map(outer, mesh=grid, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})

    def alone(x):
        pieces = x.reshape(4, 2, 6)
        total = (pieces[..., :3] + pieces[..., 3:]) * (1 + jnp.arange(4))[:, None, None]
        return (total + pieces[:, :, :3].mean(0)).reshape(8, 3)

    weights = normal(8, 3)
    close(sw.jit(with_gradients(region))(weights, x), sw.jit(with_gradients(alone))(weights, x))


def test_regions_where_programs_are(grid):
    """In a loop, a branch, a checkpoint and another jit; around them, all of these again."""

    def body(x):
        def turn(c, _):
            c = jnp.tanh(c + lax.pmean(c, ("x", "y")))
            return lax.cond(c.ndim == 2, lambda c: c * 2, lambda c: c, c), c.sum()

        return lax.scan(sw.checkpoint(turn), x, None, length=3)

    region = sw.shard_map(body, mesh=grid, in_specs=P(("x", "y")), out_specs=(P(("x", "y")), P()), check_vma=False)
    checked = sw.shard_map(lambda x: body(x)[0], mesh=grid, in_specs=P(("x", "y")), out_specs=P(("x", "y")))
    x = normal(8, 3)

    def alone(c):
        for _ in range(3):
            c = jnp.tanh(c + c.mean(0)) * 2
        return c

    assert region(x)[1].shape == (3,)

    def around(f):
        def program(x):
            def turn(c, _):
                return lax.cond(c.sum() < 1e9, sw.checkpoint(sw.jit(f)), lambda c: c, c), None

            return lax.scan(turn, x, None, length=2)[0]

        return program

    weights = normal(8, 3)
    wanted = sw.jit(with_gradients(around(alone)))(weights, x)
    close(sw.jit(with_gradients(around(checked)))(weights, x), wanted, 1e-4)
    close(simulated(with_gradients(around(lambda x: region(x)[0])), grid.abstract, weights, x), wanted, 1e-4)


def test_a_rule_of_ones_own(grid):
    """A custom derivative inside, whose rule has collectives; and one around a region."""

    @sw.custom_vjp
    def total(x):
        return lax.psum(x, "x")

    total.defvjp(lambda x: (total(x), None), lambda _, g: (lax.pvary(3 * g, "x"),))
    region = sw.shard_map(lambda x: total(x) * 2, mesh=grid, in_specs=P("x"), out_specs=P())

    @sw.custom_vjp
    def around(x):
        return region(x)

    around.defvjp(lambda x: (region(x), x), lambda x, g: (x * g.sum(),))
    x = normal(4, 3)

    def gradients(x):
        return sw.grad(lambda x: region(x).sum())(x), sw.grad(lambda x: around(x).sum())(x)

    inside, outside = simulated(gradients, grid.abstract, x)
    close(inside, np.full((4, 3), 6, np.float32))
    close(outside, 3 * x)
    program, _, args = staged(lambda x: [region(x)], [x], grid.abstract, [()])
    close(evaluate(program, args), [2 * x.sum(0, keepdims=True)])


@sw.custom_vjp
def doubled_sine(z):
    return 2 * jnp.sin(z)


doubled_sine.defvjp(lambda z: (doubled_sine(z), z), lambda z, g: (2 * jnp.cos(z) * g,))

# Of what all devices have alike, and a device's places along x and y: what it makes of it, going its own way.
WAYS = {
    "taken": lambda w, x, y: lax.cond(x > 1, lambda w: 2 * w, lambda w: 1 - w, w),
    "captured": lambda w, x, y: lax.cond(x > 1, lambda: 3 * w, lambda: w * w),
    "loop": lambda w, x, y: lax.cond(
        x > 1, lambda: lax.scan(lambda s, _: (jnp.sin(s * w), None), w, None, length=3)[0], lambda: w
    ),
    "calls": lambda w, x, y: lax.cond(
        x > 1, lambda: sw.jit(lambda z: jnp.sin(z) * w)(w), lambda: sw.checkpoint(lambda z: jnp.cos(z * w))(w)
    ),
    "derivative": lambda w, x, y: lax.cond(
        x > 1, lambda: sw.grad(lambda z: (jnp.sin(z) * w).sum())(w), lambda: sw.vmap(lambda z: z * w[0])(w)
    ),
    "twice": lambda w, x, y: lax.cond(
        x > 1, lambda: lax.cond(y > 0, lambda: w * w, lambda: jnp.sin(w)), lambda: jnp.ones(3)
    ),
    "many": lambda w, x, y: lax.switch(
        x, [lambda: w, lambda: w * w, lambda: lax.fori_loop(0, 3, lambda _, s: s * w, w), lambda: jnp.zeros(3)]
    ),
    "rule": lambda w, x, y: lax.cond(x > 1, lambda: doubled_sine(w) * w, lambda: w),
}


@pytest.mark.parametrize("name", WAYS)
def test_devices_that_go_different_ways(grid, name):
    """Each has its own derivative with respect to what all have alike: they are summed where all meet again."""

    def body(w):
        return lax.psum(WAYS[name](w, lax.axis_index("x"), lax.axis_index("y")), ("x", "y"))

    def alone(w):
        return sum(WAYS[name](w, x, y) for x in range(4) for y in range(2))

    w, weights = normal(3), normal(3)
    region = sw.shard_map(body, mesh=grid, in_specs=P(), out_specs=P())
    found = simulated(with_gradients(region), grid.abstract, weights, w)
    close(found, simulated(with_gradients(alone), grid.abstract, weights, w))
    unchecked = sw.shard_map(body, mesh=grid, in_specs=P(), out_specs=P(), check_vma=False)
    close(found, simulated(with_gradients(unchecked), grid.abstract, weights, w))


# Effects, randomness, looking inside.


def test_each_device_calls(grid):
    seen = []

    def body(x):
        sw.debug.callback(lambda i, s: seen.append((int(i), float(s))), lax.axis_index(("x", "y")), x.sum())
        return sw.pure_callback(lambda v: np.asarray(v) * 3, sw.ShapeDtypeStruct(x.shape, x.dtype), x)

    cut = P(("x", "y"))
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    found = sw.jit(sw.shard_map(body, mesh=grid, in_specs=cut, out_specs=cut))(x)
    close(found, 3 * x)
    sw.effects_barrier()
    assert sorted(seen) == [(number, 4.0 * number + 1) for number in range(8)]


def test_each_device_prints(grid, capsys):
    def body(x):
        sw.debug.print("device {i} has {x}", i=lax.axis_index("x"), x=x[0])
        return x

    sw.jit(sw.shard_map(body, mesh=grid, in_specs=P("x"), out_specs=P("x")))(np.arange(4, dtype=np.int32))
    sw.effects_barrier()
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == sorted([f"device {number} has {number}" for number in range(4)] * 2)


def test_effects_are_not_repeated_by_derivatives(grid):
    seen = []

    def body(x):
        sw.debug.callback(lambda s: seen.append(float(s)), x.sum())
        return lax.psum(jnp.sin(x).sum(), ("x", "y"))

    region = sw.shard_map(sw.checkpoint(body), mesh=grid, in_specs=P(("x", "y")), out_specs=P())
    sw.jit(sw.grad(region))(np.arange(8, dtype=np.float32)).block_until_ready()
    sw.effects_barrier()
    assert sorted(seen) == list(map(float, range(8)))


def test_shardings_inside_can_be_inspected(grid, capsys):
    """jax#23936. Along the axes of the region a value is each device's own piece; along the others it is as planned."""
    found = []

    def body(x):
        sw.debug.inspect_array_sharding(x)
        sw.debug.inspect_array_sharding(x @ x.T, callback=found.append)
        return x

    region = sw.shard_map(body, mesh=grid, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    sw.jit(region)(placed(grid, normal(8, 4), "x", "y"))
    assert capsys.readouterr().out == "NamedSharding(mesh(x=4, y=2), P(None, 'y'))\n"
    assert [sharding.spec for sharding in found] == [P()]


def test_random_numbers_inside(grid):
    """Each device's own where its number is folded in; else all devices have the same, and types know."""

    def body(key):
        own = sw.random.normal(sw.random.fold_in(key, lax.axis_index(("x", "y"))), (1, 3))
        return own, sw.random.normal(key, (3,))

    key = sw.random.key(7)
    region = sw.shard_map(body, mesh=grid, in_specs=P(), out_specs=(P(("x", "y")), P()))
    own, same = sw.jit(region)(key)
    close(same, sw.random.normal(key, (3,)))
    close(own, np.stack([sw.random.normal(sw.random.fold_in(key, number), (3,)) for number in range(8)]))
    keys = sw.random.split(key, 8)
    cut = sw.shard_map(
        lambda k: sw.random.uniform(k[0], (2,)), mesh=grid, in_specs=P(("x", "y")), out_specs=P("x"), check_vma=False
    )
    assert cut(keys).shape == (8,)


# How it is called.


def test_arguments_are_moved_to_where_the_specs_say(grid):
    x = normal(8, 4)
    region = sw.shard_map(lambda x: x * lax.axis_index("x"), mesh=grid, in_specs=P("x"), out_specs=P("x"))
    wanted = x * np.repeat(np.arange(4), 2)[:, None].astype(np.float32)
    for there in (x, x.tolist(), placed(grid, x, "y"), placed(grid, x, None, ("y", "x")), jnp.asarray(x)):
        found = region(there) if not isinstance(there, list) else region(jnp.asarray(there))
        close(found, wanted)
        assert found.sharding == NamedSharding(grid, P("x"))
    turned = sw.sharding.Mesh(np.array(sw.devices())[::-1].reshape(4, 2), ("x", "y"))  # the same devices, otherwise
    close(region(placed(turned, x, "x")), wanted)


def test_ways_to_write_it(grid):
    x = normal(8, 4)

    @sw.shard_map(mesh=grid, in_specs=P("x"), out_specs=P("x"))
    def decorated(x):
        return x + 1

    @partial(sw.shard_map, mesh=grid, in_specs=({"a": P("x"), "b": P()},), out_specs=[P("x"), P()])
    def trees(t):
        return [t["a"], ([2 * b for b in t["b"]], t["b"])]

    close(decorated(x), x + 1)
    assert decorated.__name__ == "decorated"
    first, (second, third) = trees({"a": x, "b": [x, x + 1]})
    close((first, second, third), (x, [2 * x, 2 * x + 2], [x, x + 1]))
    with sw.set_mesh(grid):
        close(sw.shard_map(lambda x: lax.psum(x, "x"), in_specs=P("x"), out_specs=P())(x), x.reshape(4, 2, 4).sum(0))
    inferred = sw.shard_map(lambda x: lax.psum(x, "x"), mesh=grid, out_specs=P(None, "y"))
    close(inferred(placed(grid, x, "x", "y")), x.reshape(4, 2, 4).sum(0))


def test_abstract_meshes_and_shapes(grid):
    region = sw.shard_map(lambda x: lax.psum(x, "x"), mesh=grid.abstract, in_specs=P("x"), out_specs=P())
    assert sw.eval_shape(region, sw.ShapeDtypeStruct((8, 4), np.float32)).shape == (2, 4)
    x = normal(8, 4)
    close(sw.jit(region)(placed(grid, x, "x")), x.reshape(4, 2, 4).sum(0))


def test_types_say_over_which_axes_values_vary(grid):
    seen = []

    def body(x):
        total = lax.psum(x, "x")
        seen.extend(
            [sw.typeof(x).vma, sw.typeof(total).vma, sw.typeof(lax.pvary(total, ("x", "y"))).vma, str(sw.typeof(x))]
        )
        return total

    sw.eval_shape(sw.shard_map(body, mesh=grid, in_specs=P("x"), out_specs=P()), normal(8))
    assert seen == [{"x"}, frozenset(), {"x", "y"}, "f32[2]{x}"]
