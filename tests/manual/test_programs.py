"""Programs with manual regions: compared with one device, with gradients; mixed with automatic axes; with effects."""

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
from tests.manual.stages import simulated, trace_and_partition

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def mesh_8():
    return sw.make_mesh((8,), ("x",))


@pytest.fixture(scope="module")
def mesh_4x2():
    return sw.make_mesh((4, 2), ("x", "y"))


def assert_close(actual, expected, tolerance=2e-5):
    for a, b in zip(sw.tree.leaves(actual), sw.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


ROWS, REPLICATED = P("x"), P()
PROGRAMS = {
    # per device; on one device; in_specs; out_specs; arguments; the collectives of value and gradients
    "ring attention": (
        regions.attention(sw, "x"),
        regions.attention_reference(sw),
        P(None, "x"),
        P(None, "x"),
        tuple(0.5 * normal(2, 16, 2, 4) for _ in range(3)),
        {"ppermute": 4},
    ),
    "mixture of experts": (
        regions.experts(sw, "x"),
        regions.experts_reference(sw),
        (ROWS, REPLICATED, ROWS, ROWS),
        ROWS,
        (normal(32, 6), normal(6, 16), normal(16, 6, 5), normal(16, 5, 6)),
        {"all_to_all": 4, "all_reduce": 1},
    ),
    "pipeline": (
        regions.pipeline(sw, "x"),
        regions.pipeline_reference(sw),
        (ROWS, REPLICATED),
        REPLICATED,
        (normal(8, 4, 4), normal(5, 3, 4)),
        {"ppermute": 2, "all_reduce": 2},
    ),
    "stencil": (
        regions.stencil(sw, "x", 3),
        regions.stencil_reference(sw, 3),
        ROWS,
        ROWS,
        (normal(16, 3),),
        {"ppermute": 4},
    ),
    "fully sharded layers": (
        regions.fsdp_layers(sw, "x"),
        regions.fsdp_layers_reference(sw),
        (ROWS, P(None, "x")),
        ROWS,
        (normal(16, 8), 0.3 * normal(3, 8, 8)),
        {"all_gather": 2, "reduce_scatter": 1},
    ),
    "Megatron layers": (
        regions.megatron_mlp(sw, "x"),
        regions.megatron_mlp_reference(sw),
        (REPLICATED, P(None, "x"), ROWS),
        REPLICATED,
        (normal(4, 6), normal(6, 16), normal(16, 6)),
        {"all_reduce": 2},
    ),
}


def with_gradients(f):
    """Return a function of the results, and of the gradients of their weighted sum for all arguments."""

    def both(weights, *args):
        y, pull = sw.vjp(f, *args)
        return y, pull(weights)

    return both


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_match_one_device(mesh_8, name):
    body, on_one_device, in_specs, out_specs, args, expected_counts = PROGRAMS[name]
    weights = normal(*sw.eval_shape(on_one_device, *args).shape)
    region = sw.shard_map(body, mesh=mesh_8, in_specs=in_specs, out_specs=out_specs)
    function = sw.jit(with_gradients(region))
    expected = sw.jit(with_gradients(on_one_device))(weights, *args)
    assert_close(function(weights, *args), expected)
    unchecked = sw.shard_map(body, mesh=mesh_8, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    assert_close(simulated(with_gradients(unchecked), mesh_8.abstract, weights, *args), expected)
    specs = (in_specs,) * len(args) if isinstance(in_specs, P) else in_specs
    sharded_args = [
        sw.device_put(x, NamedSharding(mesh_8, spec))
        for x, spec in zip((weights, *args), (out_specs, *specs), strict=True)
    ]
    assert sw.jit(with_gradients(region)).lower(*sharded_args).plan.counts() == expected_counts


def test_automatic_constrained_and_manual_layers_agree(mesh_8):
    """The comparison of JAX's introduction to parallel programming."""
    x, weights, bias = normal(32), normal(32, 4), normal(4)
    sharding = NamedSharding(mesh_8, P("x"))

    @sw.jit
    def layer(x, weights, bias):
        return sw.nn.sigmoid(x @ weights + bias)

    @sw.jit
    def constrained(x, weights, bias):
        x = lax.with_sharding_constraint(x, sharding)
        weights = lax.with_sharding_constraint(weights, sharding)
        return layer(x, weights, bias)

    @sw.jit
    @partial(sw.shard_map, mesh=mesh_8, in_specs=(P("x"), P("x", None), P(None)), out_specs=P(None))
    def manual(x, weights, bias):
        return sw.nn.sigmoid(lax.psum(x @ weights, "x") + bias)

    on_one_device = layer(x, weights, bias)
    for result in (
        layer(sw.device_put(x, sharding), sw.device_put(weights, sharding), bias),
        constrained(x, weights, bias),
        manual(x, weights, bias),
    ):
        assert_close(result, on_one_device)
    assert manual(x, weights, bias).sharding == NamedSharding(mesh_8, P(None))


# Manual along some axes, automatic along others.


def put_sharded(mesh, x, *spec):
    return sw.device_put(x, NamedSharding(mesh, P(*spec)))


def test_manual_along_one_axis_and_automatic_along_the_other(mesh_4x2):
    """The contraction over features is summed by hand; rows are sharded automatically, inside and outside."""
    x, w = normal(8, 16), normal(16, 6)

    def f(x, w):
        def body(x, w):
            y = lax.psum(jnp.sin(x @ w), "x")
            return lax.with_sharding_constraint(y, P("y"))

        region = sw.shard_map(body, mesh=mesh_4x2, in_specs=(P(None, "x"), P("x")), out_specs=P(), axis_names={"x"})
        return region(2 * x, w).sum(0)

    # The sine applies to partial products, so this differs from the sine of the global product.
    on_one_device = sum(np.sin(2 * x[:, 4 * k : 4 * k + 4] @ w[4 * k : 4 * k + 4]) for k in range(4)).sum(0)
    args = put_sharded(mesh_4x2, x, "y", "x"), put_sharded(mesh_4x2, w, "x")
    lowered = sw.jit(f).lower(*args)
    assert_close(sw.jit(f)(*args), on_one_device)
    rows = {(row.kind, row.axes): row.reason for row in lowered.plan.collectives}
    assert set(rows) == {("all_reduce", ("x",)), ("all_reduce", ("y",))}
    assert rows["all_reduce", ("x",)] == "written by hand, along 'x'"
    assert "leaves an unreduced sum over 'y'" in rows["all_reduce", ("y",)]
    explained = str(sw.explain(f)(*args))
    assert explained.count("written by hand, along 'x'") == 1
    gradient = sw.jit(sw.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)))(*args)

    def loop(x, w):
        total = sum(jnp.sin(2 * x[:, 4 * k : 4 * k + 4] @ w[4 * k : 4 * k + 4]) for k in range(4))
        return (total.sum(0) ** 2).sum()

    assert_close(gradient, sw.jit(sw.grad(loop, (0, 1)))(x, w), 1e-4)


def test_automatic_axes_stay_sharded_inside(mesh_4x2):
    """Nothing is sent along the automatic axis: rows are sharded before, inside and after the region."""

    def body(x, w):
        return lax.psum(x @ w, "x")

    region = sw.shard_map(body, mesh=mesh_4x2, in_specs=(P(None, "x"), P("x")), out_specs=P(), axis_names={"x"})
    x, w = normal(8, 16), normal(16, 6)
    args = put_sharded(mesh_4x2, x, "y", "x"), put_sharded(mesh_4x2, w, "x")
    result = sw.jit(region)(*args)
    assert_close(result, x @ w)
    assert result.sharding == NamedSharding(mesh_4x2, P("y"))
    assert sw.jit(region).lower(*args).plan.counts() == {"all_reduce": 1}


def test_nested_regions(mesh_4x2):
    x = normal(8, 6)

    def inner(z):
        return lax.psum(z, "y") * (1 + lax.axis_index("x"))

    def outer(x):
        nested = sw.shard_map(inner, in_specs=P(None, "y"), out_specs=P(), axis_names={"y"})
        return nested(x) + lax.pmean(x[:, :3], "x")

    region = sw.shard_map(outer, mesh=mesh_4x2, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})

    def on_one_device(x):
        shards = x.reshape(4, 2, 6)
        total = (shards[..., :3] + shards[..., 3:]) * (1 + jnp.arange(4))[:, None, None]
        return (total + shards[:, :, :3].mean(0)).reshape(8, 3)

    weights = normal(8, 3)
    assert_close(sw.jit(with_gradients(region))(weights, x), sw.jit(with_gradients(on_one_device))(weights, x))


def test_regions_and_control_flow(mesh_4x2):
    """A loop, a branch, a checkpoint and a jit inside the region, and all of these around it."""

    def body(x):
        def turn(c, _):
            c = jnp.tanh(c + lax.pmean(c, ("x", "y")))
            return lax.cond(c.ndim == 2, lambda c: c * 2, lambda c: c, c), c.sum()

        return lax.scan(sw.checkpoint(turn), x, None, length=3)

    region = sw.shard_map(body, mesh=mesh_4x2, in_specs=P(("x", "y")), out_specs=(P(("x", "y")), P()), check_vma=False)
    checked = sw.shard_map(lambda x: body(x)[0], mesh=mesh_4x2, in_specs=P(("x", "y")), out_specs=P(("x", "y")))
    x = normal(8, 3)

    def on_one_device(c):
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
    expected = sw.jit(with_gradients(around(on_one_device)))(weights, x)
    assert_close(sw.jit(with_gradients(around(checked)))(weights, x), expected, 1e-4)
    assert_close(
        simulated(with_gradients(around(lambda x: region(x)[0])), mesh_4x2.abstract, weights, x), expected, 1e-4
    )


def test_custom_derivatives(mesh_4x2):
    """A custom_vjp inside, whose rule has collectives; and one around a region."""

    @sw.custom_vjp
    def total(x):
        return lax.psum(x, "x")

    total.defvjp(lambda x: (total(x), None), lambda _, g: (lax.pvary(3 * g, "x"),))
    region = sw.shard_map(lambda x: total(x) * 2, mesh=mesh_4x2, in_specs=P("x"), out_specs=P())

    @sw.custom_vjp
    def around(x):
        return region(x)

    around.defvjp(lambda x: (region(x), x), lambda x, g: (x * g.sum(),))
    x = normal(4, 3)

    def gradients(x):
        return sw.grad(lambda x: region(x).sum())(x), sw.grad(lambda x: around(x).sum())(x)

    inside, outside = simulated(gradients, mesh_4x2.abstract, x)
    assert_close(inside, np.full((4, 3), 6, np.float32))
    assert_close(outside, 3 * x)
    program, _, args = trace_and_partition(lambda x: [region(x)], [x], mesh_4x2.abstract, [()])
    assert_close(evaluate(program, args), [2 * x.sum(0, keepdims=True)])


@sw.custom_vjp
def doubled_sine(z):
    return 2 * jnp.sin(z)


doubled_sine.defvjp(lambda z: (doubled_sine(z), z), lambda z, g: (2 * jnp.cos(z) * g,))

# Functions of a replicated value and of a device's coordinates, which take different branches on different devices.
BRANCHES = {
    "operand": lambda w, x, y: lax.cond(x > 1, lambda w: 2 * w, lambda w: 1 - w, w),
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


@pytest.mark.parametrize("name", BRANCHES)
def test_devices_take_different_branches(mesh_4x2, name):
    """Each device has its own derivative with respect to the replicated value; these are summed after the branch."""

    def body(w):
        return lax.psum(BRANCHES[name](w, lax.axis_index("x"), lax.axis_index("y")), ("x", "y"))

    def on_one_device(w):
        return sum(BRANCHES[name](w, x, y) for x in range(4) for y in range(2))

    w, weights = normal(3), normal(3)
    region = sw.shard_map(body, mesh=mesh_4x2, in_specs=P(), out_specs=P())
    result = simulated(with_gradients(region), mesh_4x2.abstract, weights, w)
    assert_close(result, simulated(with_gradients(on_one_device), mesh_4x2.abstract, weights, w))
    unchecked = sw.shard_map(body, mesh=mesh_4x2, in_specs=P(), out_specs=P(), check_vma=False)
    assert_close(result, simulated(with_gradients(unchecked), mesh_4x2.abstract, weights, w))


# Effects, random numbers, inspection.


def test_callbacks_run_on_every_device(mesh_4x2):
    seen = []

    def body(x):
        sw.debug.callback(lambda i, s: seen.append((int(i), float(s))), lax.axis_index(("x", "y")), x.sum())
        return sw.pure_callback(lambda v: np.asarray(v) * 3, sw.ShapeDtypeStruct(x.shape, x.dtype), x)

    spec = P(("x", "y"))
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    result = sw.jit(sw.shard_map(body, mesh=mesh_4x2, in_specs=spec, out_specs=spec))(x)
    assert_close(result, 3 * x)
    sw.effects_barrier()
    assert sorted(seen) == [(index, 4.0 * index + 1) for index in range(8)]


def test_debug_print_runs_on_every_device(mesh_4x2, capsys):
    def body(x):
        sw.debug.print("device {i} has {x}", i=lax.axis_index("x"), x=x[0])
        return x

    sw.jit(sw.shard_map(body, mesh=mesh_4x2, in_specs=P("x"), out_specs=P("x")))(np.arange(4, dtype=np.int32))
    sw.effects_barrier()
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == sorted([f"device {index} has {index}" for index in range(4)] * 2)


def test_effects_are_not_repeated_by_derivatives(mesh_4x2):
    seen = []

    def body(x):
        sw.debug.callback(lambda s: seen.append(float(s)), x.sum())
        return lax.psum(jnp.sin(x).sum(), ("x", "y"))

    region = sw.shard_map(sw.checkpoint(body), mesh=mesh_4x2, in_specs=P(("x", "y")), out_specs=P())
    sw.jit(sw.grad(region))(np.arange(8, dtype=np.float32)).block_until_ready()
    sw.effects_barrier()
    assert sorted(seen) == list(map(float, range(8)))


def test_shardings_inside_can_be_inspected(mesh_4x2, capsys):
    """jax#23936. The sharding is that along the automatic axes; along manual axes a value is a shard."""
    result = []

    def body(x):
        sw.debug.inspect_array_sharding(x)
        sw.debug.inspect_array_sharding(x @ x.T, callback=result.append)
        return x

    region = sw.shard_map(body, mesh=mesh_4x2, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    sw.jit(region)(put_sharded(mesh_4x2, normal(8, 4), "x", "y"))
    assert capsys.readouterr().out == "NamedSharding(mesh(x=4, y=2), P(None, 'y'))\n"
    assert [sharding.spec for sharding in result] == [P()]


def test_random_numbers_inside(mesh_4x2):
    """Samples vary over devices if the axis index is folded into the key; else they are replicated, also by type."""

    def body(key):
        own = sw.random.normal(sw.random.fold_in(key, lax.axis_index(("x", "y"))), (1, 3))
        return own, sw.random.normal(key, (3,))

    key = sw.random.key(7)
    region = sw.shard_map(body, mesh=mesh_4x2, in_specs=P(), out_specs=(P(("x", "y")), P()))
    own, same = sw.jit(region)(key)
    assert_close(same, sw.random.normal(key, (3,)))
    assert_close(own, np.stack([sw.random.normal(sw.random.fold_in(key, index), (3,)) for index in range(8)]))
    keys = sw.random.split(key, 8)
    sharded_keys = sw.shard_map(
        lambda k: sw.random.uniform(k[0], (2,)),
        mesh=mesh_4x2,
        in_specs=P(("x", "y")),
        out_specs=P("x"),
        check_vma=False,
    )
    assert sharded_keys(keys).shape == (8,)


# Ways to call shard_map.


def test_arguments_are_resharded_to_in_specs(mesh_4x2):
    x = normal(8, 4)
    region = sw.shard_map(lambda x: x * lax.axis_index("x"), mesh=mesh_4x2, in_specs=P("x"), out_specs=P("x"))
    expected = x * np.repeat(np.arange(4), 2)[:, None].astype(np.float32)
    for argument in (
        x,
        x.tolist(),
        put_sharded(mesh_4x2, x, "y"),
        put_sharded(mesh_4x2, x, None, ("y", "x")),
        jnp.asarray(x),
    ):
        result = region(argument) if not isinstance(argument, list) else region(jnp.asarray(argument))
        assert_close(result, expected)
        assert result.sharding == NamedSharding(mesh_4x2, P("x"))
    reversed_mesh = sw.sharding.Mesh(
        np.array(sw.devices())[::-1].reshape(4, 2), ("x", "y")
    )  # the same devices in another order
    assert_close(region(put_sharded(reversed_mesh, x, "x")), expected)


def test_decorators_pytrees_context_meshes_and_inferred_specs(mesh_4x2):
    x = normal(8, 4)

    @sw.shard_map(mesh=mesh_4x2, in_specs=P("x"), out_specs=P("x"))
    def decorated(x):
        return x + 1

    @partial(sw.shard_map, mesh=mesh_4x2, in_specs=({"a": P("x"), "b": P()},), out_specs=[P("x"), P()])
    def trees(t):
        return [t["a"], ([2 * b for b in t["b"]], t["b"])]

    assert_close(decorated(x), x + 1)
    assert decorated.__name__ == "decorated"
    first, (second, third) = trees({"a": x, "b": [x, x + 1]})
    assert_close((first, second, third), (x, [2 * x, 2 * x + 2], [x, x + 1]))
    with sw.set_mesh(mesh_4x2):
        assert_close(
            sw.shard_map(lambda x: lax.psum(x, "x"), in_specs=P("x"), out_specs=P())(x), x.reshape(4, 2, 4).sum(0)
        )
    inferred = sw.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh_4x2, out_specs=P(None, "y"))
    assert_close(inferred(put_sharded(mesh_4x2, x, "x", "y")), x.reshape(4, 2, 4).sum(0))


def test_abstract_meshes_and_shapes(mesh_4x2):
    region = sw.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh_4x2.abstract, in_specs=P("x"), out_specs=P())
    assert sw.eval_shape(region, sw.ShapeDtypeStruct((8, 4), np.float32)).shape == (2, 4)
    x = normal(8, 4)
    assert_close(sw.jit(region)(put_sharded(mesh_4x2, x, "x")), x.reshape(4, 2, 4).sum(0))


def test_types_have_the_varying_axes(mesh_4x2):
    seen = []

    def body(x):
        total = lax.psum(x, "x")
        seen.extend(
            [sw.typeof(x).vma, sw.typeof(total).vma, sw.typeof(lax.pvary(total, ("x", "y"))).vma, str(sw.typeof(x))]
        )
        return total

    sw.eval_shape(sw.shard_map(body, mesh=mesh_4x2, in_specs=P("x"), out_specs=P()), normal(8))
    assert seen == [{"x"}, frozenset(), {"x", "y"}, "f32[2]{V:x}"]


def test_arguments_without_a_spec_are_passed_unchanged(mesh):
    """Where in_specs is None, an argument may be any object; arrays are closed over, and differentiable."""
    setting, seen = object(), []

    def f(setting, x, shape, scales):
        seen.append(setting)
        return x * scales["a"] + jnp.ones(shape)

    region = sw.shard_map(f, mesh=mesh, in_specs=(None, P("data"), None, {"a": None}), out_specs=P("data"))
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(region(setting, x, (2,), {"a": 3.0}), x * 3 + 1)
    np.testing.assert_array_equal(sw.jit(lambda x: region(setting, x, (2,), {"a": 3.0}))(x), x * 3 + 1)
    assert seen == [setting] * 2
    gradient = sw.grad(lambda scale: region(setting, x, (2,), {"a": scale}).sum())(3.0)
    assert gradient == x.sum()
    with pytest.raises(ValueError, match="not divisible by 4"):
        region(setting, x[:6], (2,), {"a": 3.0})


def test_abstract_values_inside_know_the_axes_over_which_they_vary(mesh):
    def f(x):
        struct = sw.eval_shape(jnp.sin, x)
        assert sw.typeof(struct).vma == x.vma == x.mat.varying == {"data"}
        assert sw.typeof(lax.full_like(struct, 2)).vma == {"data"}
        return x * lax.full_like(struct, 2)

    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(sw.shard_map(f, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x), x * 2)


def test_results_have_the_specs_that_the_user_wrote(mesh):
    """As in JAX, outside of jit: `P(None)` and `P()` mean the same, and are not equal."""
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    for spec in (P(), P(None), P(None, None), P("data"), P("data", None), P(("data", "model"))):
        y = sw.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)(x)
        assert y.sharding == NamedSharding(mesh, spec)
        np.testing.assert_array_equal(y, x)
